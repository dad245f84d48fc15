"""Removes the start-up taint of its node when its storage is ready.

A cluster may give new nodes the taint `tonnage.dev/agent-not-ready`, and then no pod comes before its storage. Until
CSINode lists the driver, the scheduler assumes no volume limits and the kubelet fails mounts. Until capacity is
published, an autoscaler assumes a node without storage and adds another. Only the Node is watched; CSINode is read
while the taint is there. A node without the taint costs nothing. A pool that does not answer delays the removal by a
minute at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CSI_NODES, NODES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.config.agent import AgentConfig

log = logging.getLogger(__name__)


PATIENCE = 60.0
"""Seconds that a listed driver may take to publish capacity."""


class StartupTaint(Reconciler[str]):
    """Controller of the start-up taint.

    config: has the node, and the drivers that CSINode must list, all of them. is_published: whether the node's capacity
    is published.
    """

    def __init__(
        self, client: Client, informers: Informers, config: AgentConfig, is_published: Callable[[], bool], clock: Clock
    ) -> None:
        self._client, self._node, self._drivers = client, config.node_name, config.startup_taint
        self._is_published, self._clock = is_published, clock
        self._listed: float | None = None
        nodes = informers.of(NODES, fields=f"metadata.name={self._node}")
        self._nodes = nodes.cache
        self._pause = Backoff(initial=0.2, maximum=10.0)
        super().__init__("startup_taint", workers=1)
        self.watch(nodes, self._node_changed)

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """Handle a node with the taint.

        The Node may have been deleted and registered again.
        """
        return [new.metadata.name] if new is not None and _place(new) is not None else []

    async def reconcile(self, name: str) -> float | None:
        """Remove the taint, or return seconds to wait. Idempotent.

        Raises: ApiError (a taint that moved in the list is a conflict), UnavailableError.
        """
        node = self._nodes.get(name)
        place = _place(node) if node is not None else None
        if place is None:
            self._pause.forget(name)
            self._listed = None
            return None
        if not await self._is_listed() or not self._is_ready():
            return self._pause.next(name)
        path = f"/spec/taints/{place}"
        patch = [
            {"op": "test", "path": f"{path}/key", "value": names.STARTUP_TAINT},
            {"op": "remove", "path": path},
        ]
        await self._client.patch(NODES, name, patch)
        log.info("start-up taint removed node=%s", name)
        return None

    def _is_ready(self) -> bool:
        now = self._clock.monotonic()
        self._listed = now if self._listed is None else self._listed
        return self._is_published() or now - self._listed > PATIENCE

    async def _is_listed(self) -> bool:
        try:
            found = await self._client.get(CSI_NODES, self._node)
        except ApiNotFoundError:
            return False
        return all(found.driver(name) is not None for name in self._drivers)


def _place(node: Node) -> int | None:
    """Return the taint's index in the node's list, or None."""
    keys = [taint.key for taint in node.spec.taints]
    return keys.index(names.STARTUP_TAINT) if names.STARTUP_TAINT in keys else None
