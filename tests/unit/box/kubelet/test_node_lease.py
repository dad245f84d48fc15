"""The lease of a node."""

from __future__ import annotations

from typing import Any

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api.kinds import LEASES, NODES
from tonnage.kubernetes.client.client import Client
from tonnage_box.kubelet.node_lease import NAMESPACE, NodeLease


async def test_is_made_once_and_renewed(kube: Client) -> None:
    node = await kube.create(NODES, {"metadata": {"name": "n"}})
    lease = NodeLease(kube, RealClock(), "n")
    await lease.renew(node)
    first = await kube.get(LEASES, "n", NAMESPACE)
    assert (first.spec.holder_identity, first.spec.lease_duration_seconds) == ("n", 40)
    assert [owner.uid for owner in first.metadata.owner_references] == [node.metadata.uid]
    assert await lease.renew_safely(node)
    second = await kube.get(LEASES, "n", NAMESPACE)
    assert (second.spec.renew_time or "") > (first.spec.renew_time or "")


async def test_the_kubelet_holds_one_and_says_that_it_is_ready(machine: Any) -> None:
    lease = None
    while lease is None:
        leases = (await machine.client.list(LEASES, NAMESPACE)).items
        lease = next(iter(leases), None)
    assert lease.metadata.name == "node-1"
    unknown = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    node = await machine.client.patch(NODES, "node-1", {"status": {"conditions": unknown}}, subresource="status")
    await machine.kubelet._node.repair(node)
    node = await machine.client.get(NODES, "node-1")
    assert [c.status for c in node.status.conditions if c.type == "Ready"] == ["True"]
