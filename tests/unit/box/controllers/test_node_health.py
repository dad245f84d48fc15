"""Nodes whose leases are not renewed."""

from __future__ import annotations

from typing import Any

from tests.unit.fixture_types import Settle, Told

from tonnage.kubernetes.api.kinds import LEASES, NODES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.node_health import GRACE, NAMESPACE, UNREACHABLE, NodeHealth
from tonnage_box.testing.clock import ManualClock

READY = [{"type": "Ready", "status": "True"}, {"type": "Mine", "status": "True"}]
OTHER = {"key": "mine", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}


async def _node(kube: Client, *, lease: bool = True, taints: list[Any] | None = None) -> None:
    await kube.create(NODES, {"metadata": {"name": "n"}, "spec": {"taints": taints or []}})
    await kube.patch(NODES, "n", {"status": {"conditions": READY}}, subresource="status")
    if lease:
        await kube.create(
            LEASES, {"metadata": {"name": "n"}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}, NAMESPACE
        )


async def _ready(kube: Client) -> str:
    node = await kube.get(NODES, "n")
    assert any(c.type == "Mine" for c in node.status.conditions)
    return next(c.status for c in node.status.conditions if c.type == "Ready")


async def test_a_silent_node_is_unknown_until_it_speaks_again(
    kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock, settle: Settle, told: Told
) -> None:
    health = NodeHealth(kube, informers, events, clock=manual_clock)
    await _node(kube, taints=[OTHER])
    await settle()
    assert await health.reconcile("n") == GRACE
    manual_clock.now += GRACE - 10
    await kube.patch(LEASES, "n", {"spec": {"renewTime": "2026-01-01T00:00:40.000000Z"}}, NAMESPACE)
    await settle()
    manual_clock.now += 10
    assert await health.reconcile("n") == GRACE - 10
    assert await _ready(kube) == "True"
    manual_clock.now += GRACE
    for _ in range(2):
        await health.reconcile("n")
        await settle()
    assert await _ready(kube) == "Unknown"
    raw = await kube.get(NODES, "n")
    assert [taint.key for taint in raw.spec.taints] == ["mine", UNREACHABLE]
    await kube.patch(LEASES, "n", {"spec": {"renewTime": "2026-01-01T00:09:00.000000Z"}}, NAMESPACE)
    await kube.patch(NODES, "n", {"status": {"conditions": READY}}, subresource="status")
    await settle()
    await health.reconcile("n")
    assert [taint.key for taint in (await kube.get(NODES, "n")).spec.taints] == ["mine"]
    assert [(reason, message) for _, _, reason, message in await told()] == [
        ("NodeNotReady", "Node n status is now: NodeNotReady")
    ]


async def test_a_node_without_a_lease_stays_as_it_is(
    kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock, settle: Settle
) -> None:
    health = NodeHealth(kube, informers, events, clock=manual_clock)
    await _node(kube, lease=False)
    await settle()
    manual_clock.now += 10 * GRACE
    assert await health.reconcile("n") is None
    assert await _ready(kube) == "True"
