"""Who is asked to publish exactly, and how many at once."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.unit.controller.contexts import context
from tests.unit.node.fakekube import FakeKube

from tonnage.controller.tier_hints import FIRST, ROUND, TierNotices
from tonnage.controller.tier_objects import CapacityTiers
from tonnage.kubernetes.api import kinds, names
from tonnage_box.testing.clock import ManualClock

SYSTEM, CLASS = names.SYSTEM_NAMESPACE, "late"
LABEL = names.tier_label(CLASS)


class Cluster:
    """Nodes in tiers, pods that were rejected."""

    def __init__(self, clock: Any) -> None:
        self.fake = FakeKube()
        kube = cast(Any, self.fake)
        body = {"provisioner": names.DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
        self.fake.put(kinds.STORAGE_CLASSES, CLASS, body)
        self._tiers = CapacityTiers(context(kube, kube, capacity="tiers", namespace=SYSTEM, clock=clock))
        self.notices = TierNotices(context(kube, kube, namespace=SYSTEM, clock=clock))

    def node(self, name: str, value: str, **spec: Any) -> None:
        labels = {LABEL: value, "name": name}
        self.fake.put(kinds.NODES, name, {"metadata": {"labels": labels}, "spec": spec})

    def claim(self, name: str, size: str, **notes: str) -> None:
        spec = {"storageClassName": CLASS, "resources": {"requests": {"storage": size}}}
        self.fake.put(kinds.CLAIMS, name, {"metadata": {"annotations": notes}, "spec": spec}, "default")

    def pod(self, name: str, *claims: str, rejected: bool = True, **spec: Any) -> None:
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        body = {"spec": {"volumes": volumes, **spec}, "status": {"conditions": [condition] if rejected else []}}
        self.fake.put(kinds.PODS, name, body, "default")

    async def asked(self) -> tuple[str, list[str]]:
        """From which size on, and which nodes; after one look."""
        await self._tiers.reconcile(CLASS)
        await self.notices.reconcile("all")
        (notice,) = [o for o in self.fake.all(kinds.CAPACITIES) if o.metadata.labels[names.TIER] == names.TIER_NOTICE]
        notes = notice.metadata.annotations
        return notes.get(names.EXACT_CAPACITY_MIN, ""), list(
            filter(None, notes.get(names.EXACT_CAPACITY_NODES, "").split(","))
        )


@pytest.fixture
async def cluster(manual_clock: ManualClock) -> Cluster:
    return Cluster(manual_clock)


async def test_highest_tiers_first_and_none_that_cannot_have_so_much(cluster: Cluster) -> None:
    for name, value in (("a", "64Gi"), ("b", "32Gi"), ("c", "16Gi"), ("d", "8Gi"), ("e", "128Gi")):
        cluster.node(name, value)
    cluster.claim("c", "100Gi")
    cluster.pod("p", "c")
    assert await cluster.asked() == ("100Gi", ["a", "b", "c"]), "e admits it, a node of d's tier has less than 64Gi"


async def test_a_few_at_first_and_ever_more(cluster: Cluster, manual_clock: ManualClock) -> None:
    for number in range(40):
        cluster.node(f"n{number:02}", "64Gi" if number >= 30 else "32Gi")
    cluster.claim("c", "100Gi")
    cluster.pod("p", "c")
    _, first = await cluster.asked()
    assert len(first) == FIRST
    assert {f"n{number}" for number in range(30, 40)} <= set(first)
    manual_clock.now += ROUND
    assert len((await cluster.asked())[1]) == 2 * FIRST
    manual_clock.now += ROUND
    assert len((await cluster.asked())[1]) == 40
    cluster.fake.remove(kinds.PODS, "p", "default")
    assert await cluster.asked() == ("", [])


async def test_claims_of_one_pod_are_asked_for_together(cluster: Cluster) -> None:
    cluster.node("a", "64Gi")
    cluster.claim("one", "40Gi")
    cluster.claim("two", "50Gi")
    cluster.pod("p", "one", "two")
    assert await cluster.asked() == ("90Gi", ["a"])


async def test_a_pod_that_nobody_has_rejected_is_not_asked_for(cluster: Cluster) -> None:
    cluster.node("a", "64Gi")
    cluster.claim("c", "100Gi")
    cluster.pod("p", "c", rejected=False)
    assert await cluster.asked() == ("", [])


@pytest.mark.parametrize("spec", [{"nodeSelector": {"name": "a"}}, {"tolerations": []}])
async def test_only_where_the_pod_may_run(cluster: Cluster, spec: dict[str, Any]) -> None:
    cluster.node("a", "32Gi")
    cluster.node("b", "64Gi", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    cluster.claim("c", "100Gi")
    cluster.pod("p", "c", **spec)
    assert await cluster.asked() == ("100Gi", ["a"])


@pytest.mark.parametrize(("withdrawn", "asked"), [("", []), ("2", []), ("3", ["a"])])
async def test_one_that_a_node_keeps_after_many_rounds_waits_for_others(
    cluster: Cluster, withdrawn: str, asked: list[str]
) -> None:
    cluster.node("a", "64Gi")
    notes = {names.SELECTED_NODE: "z", **({names.RESCHEDULES: withdrawn} if withdrawn else {})}
    cluster.claim("c", "100Gi", **notes)
    cluster.pod("p", "c")
    assert (await cluster.asked())[1] == asked


async def test_nothing_is_written_again(cluster: Cluster) -> None:
    cluster.node("a", "64Gi")
    cluster.claim("c", "100Gi")
    cluster.pod("p", "c")
    await cluster.asked()
    before = cluster.fake.writes
    await cluster.asked()
    assert cluster.fake.writes == before
