"""Lease of a node: a heartbeat of its kubelet every 10 s, valid for 40 s (KEP-589, component-helpers nodelease)."""

from __future__ import annotations

import logging
from typing import Any

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.errors import ApiAlreadyExistsError, ApiError, ApiNotFoundError, UnavailableError
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import LEASES
from tonnage.kubernetes.client.client import Client

log = logging.getLogger(__name__)
NAMESPACE = "kube-node-lease"
DURATION = 40
RENEW_EVERY = 10.0


class NodeLease:
    """Renews the lease of one node, which is its owner."""

    def __init__(self, client: Client, clock: Clock, node: str) -> None:
        self._client, self._clock, self._name = client, clock, node

    async def renew(self, node: Node) -> None:
        """Renew the lease, or create it. Raises: ApiError, UnavailableError."""
        now = rfc3339(self._clock.time(), micro=True)
        try:
            await self._client.patch(LEASES, self._name, {"spec": {"renewTime": now}}, NAMESPACE)
        except ApiNotFoundError:
            await self._create(node, now)

    async def _create(self, node: Node, now: str) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node.metadata.uid}
        spec: dict[str, Any] = {
            "holderIdentity": self._name,
            "leaseDurationSeconds": DURATION,
            "renewTime": now,
        }
        body = {"metadata": {"name": self._name, "ownerReferences": [owner]}, "spec": spec}
        try:
            await self._client.create(LEASES, body, NAMESPACE)
        except (ApiAlreadyExistsError, ApiNotFoundError) as failure:  # the next renewal comes soon
            log.debug("lease not created node=%s error=%s", self._name, failure)

    async def renew_safely(self, node: Node) -> bool:
        """renew(); False, and a line in the log, when the API server does not answer."""
        try:
            await self.renew(node)
        except (ApiError, UnavailableError) as failure:
            log.info("lease not renewed node=%s error=%s", self._name, failure)
            return False
        return True
