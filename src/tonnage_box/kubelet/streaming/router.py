"""Sessions of all pods of a box: routes each to the node of its pod, and limits their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.base.errors import ApiError
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.client.client import Client
from tonnage_box.api.remote_command import Session, StreamOptions, Streams

if TYPE_CHECKING:
    from tonnage_box.kubelet.kubelet import Kubelet

MAX_SESSIONS = 256


class StreamRouter:
    """Opens exec and attach sessions. The limit counts those of all nodes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._nodes: dict[str, Kubelet] = {}
        self._count = 0

    def add(self, node: str, kubelet: Kubelet) -> None:
        """Make a node known."""
        self._nodes[node] = kubelet

    async def open(self, namespace: str, name: str, options: StreamOptions) -> Session:
        """See OpenSession."""
        pod = await self._client.get(PODS, name, namespace)
        if not (node := pod.spec.node_name):
            raise ApiError(f"pod {name} does not have a host assigned", code=400, reason="BadRequest")
        if node not in self._nodes:
            raise ApiError(f"node {node} of pod {name} is not served here", code=503, reason="ServiceUnavailable")
        session = self._nodes[node].streams.open(pod, options)
        self._check()

        async def serve(streams: Streams) -> int:
            self._check()  # many may have been opened at once
            self._count += 1
            try:
                return await session(streams)
            finally:
                self._count -= 1

        return serve

    def _check(self) -> None:
        if self._count >= MAX_SESSIONS:
            why = f"{MAX_SESSIONS} exec and attach sessions are open: end one, or try again later (limit)"
            raise ApiError(why, code=429, reason="TooManyRequests", retry_after=1)
