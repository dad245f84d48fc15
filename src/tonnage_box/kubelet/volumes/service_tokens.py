"""Service account tokens that a CSI driver asks for (CSIDriver tokenRequests; KEP-1855).

Tokens are bound to the pod. One is asked for again when 80 % of its time have gone, as kubelet/token does, so that
publishing again each minute costs no request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tonnage.base.aio.clock import time_of
from tonnage.base.errors import UnavailableError
from tonnage.kubernetes.api.kinds import SERVICE_ACCOUNTS
from tonnage.kubernetes.api.names import CSI_TOKENS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client

KEY = CSI_TOKENS
_FRESH = 0.8


class ServiceTokens:
    """Tokens of one node's pods. now: seconds since the epoch."""

    def __init__(self, client: Client, *, now: Callable[[], float] = time.time) -> None:
        self._client, self._now = client, now
        self._known: dict[tuple[str, str, int | None], tuple[float, dict[str, str]]] = {}

    async def of(self, pod: Pod, requests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The entry for the volume's context, or its secrets; empty when nothing is asked for. Raises: ApiError."""
        if not requests:
            return {}
        tokens = {}
        for request in requests:
            audience, seconds = request.get("audience", ""), request.get("expirationSeconds")
            tokens[audience] = await self._one(pod, audience, seconds)
        return {KEY: msgspec.json.encode(tokens, order="sorted").decode()}

    async def _one(self, pod: Pod, audience: str, seconds: int | None) -> dict[str, str]:
        key = (pod.metadata.uid, audience, seconds)
        now = self._now()
        renew_at, token = self._known.get(key, (0.0, {}))
        if now >= renew_at:
            token = await self._request(pod, audience, seconds)
            end = time_of(token["expirationTimestamp"]) or now
            self._known[key] = (now + (end - now) * _FRESH, token)
        return token

    async def _request(self, pod: Pod, audience: str, seconds: int | None) -> dict[str, str]:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid}
        spec: dict[str, Any] = {"audiences": [audience] if audience else [], "boundObjectRef": bound}
        if seconds is not None:
            spec["expirationSeconds"] = seconds
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = pod.spec.service_account_name or "default"
        path = f"{SERVICE_ACCOUNTS.path(pod.metadata.namespace, account)}/token"
        answer = msgspec.json.decode(await self._client.post(path, body))
        status = answer.get("status") or {}
        if not status.get("token"):
            raise UnavailableError(f"service account {pod.metadata.namespace}/{account}: the API server gave no token")
        return {"token": str(status["token"]), "expirationTimestamp": str(status.get("expirationTimestamp", ""))}

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        for key in [key for key in self._known if key[0] == uid]:
            del self._known[key]
