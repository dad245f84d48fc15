"""Node health: a node whose lease is not renewed is not Ready (Kubernetes' controller/nodelifecycle).

Only nodes with a lease are looked at: Nodes that somebody made by hand for tests have no kubelet, and stay as they are.
The kubelet itself says that it is Ready again; then the taint goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.kubernetes.api.core import Lease, Node
from tonnage.kubernetes.api.kinds import LEASES, NODES
from tonnage.kubernetes.api.meta import condition, to_builtins
from tonnage.kubernetes.client.client import Client, StrategicPatch, refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers

NAMESPACE = "kube-node-lease"
GRACE = 50.0
"""Seconds without a renewal after which a node is not Ready (node-monitor-grace-period)."""
UNREACHABLE = "node.kubernetes.io/unreachable"
_WHY = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")


class NodeHealth(Reconciler[str]):
    """Writes the conditions and taint of nodes that are silent; a key is a node's name."""

    def __init__(self, client: Client, informers: Informers, events: EventRecorder, *, clock: Clock) -> None:
        self._client, self._events, self._clock = client, events, clock
        self._renewed: dict[str, float] = {}
        """When a renewal was seen; by the monotonic clock, which stops while the machine sleeps."""
        nodes, leases = informers.of(NODES), informers.of(LEASES)
        self._nodes, self._leases = nodes.cache, leases.cache
        super().__init__("node_health", workers=2)
        self.watch(nodes, _ready_changed)
        self.watch(leases, self._lease_changed)

    async def reconcile(self, name: str) -> float | None:
        """Look at one node; returns the seconds until it may be silent for too long. Raises: ApiError."""
        node, lease = self._nodes.get(name), self._leases.get(f"{NAMESPACE}/{name}")
        if node is None or lease is None:
            return None
        now = self._clock.monotonic()
        left = self._renewed.setdefault(name, now) + GRACE - now
        if left > 0:
            await self._reached(node)
            return left
        await self._silent(node)
        return GRACE

    async def _silent(self, node: Node) -> None:
        name, old, now = node.metadata.name, node.status.conditions, rfc3339(self._clock.time())
        if not any(taint.key == UNREACHABLE for taint in node.spec.taints):
            taint = {"key": UNREACHABLE, "effect": "NoSchedule", "timeAdded": now}
            step: dict[str, Any] = {"op": "add", "path": "/spec/taints/-", "value": taint}
            if not node.spec.taints:
                step |= {"path": "/spec/taints", "value": [taint]}
            node = await self._client.patch(NODES, name, [_same(node), step])
        if any(c.type == "Ready" and c.status == "Unknown" for c in old):
            return
        unknown = [to_builtins(condition(old, kind, "Unknown", *_WHY, now=now)) for kind in _CONDITIONS]
        patch = StrategicPatch(status={"conditions": unknown})  # those of others stay
        await self._client.patch(NODES, name, patch, subresource="status")
        self._events.normal(refer(NODES, node), "NodeNotReady", f"Node {name} status is now: NodeNotReady")

    async def _reached(self, node: Node) -> None:
        if not any(c.type == "Ready" and c.status == "True" for c in node.status.conditions):
            return
        for index, taint in enumerate(node.spec.taints):
            if taint.key == UNREACHABLE:
                step = {"op": "remove", "path": f"/spec/taints/{index}"}
                await self._client.patch(NODES, node.metadata.name, [_same(node), step])
                return

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> Iterable[str]:
        """Note renewals; they cause no look, since the time of the next one is known."""
        if new is None or new.metadata.namespace != NAMESPACE:
            return ()
        if old is None or old.spec.renew_time != new.spec.renew_time:
            self._renewed[new.metadata.name] = self._clock.monotonic()
        return (new.metadata.name,) if old is None else ()


def _same(node: Node) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version}


def _ready_changed(old: Node | None, new: Node | None) -> Iterable[str]:
    if new is None or (old is not None and old.status.conditions == new.status.conditions):
        return ()
    return (new.metadata.name,)
