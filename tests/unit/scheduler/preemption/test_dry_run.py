"""Preemption asks the real filters about nodes without some of their pods, and changes nothing by asking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.scheduler.world import World

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.policy import NEVER
from tonnage.scheduler.framework.plugin import Diagnosis
from tonnage.scheduler.framework.pod_info import Ask, compile_ask
from tonnage.scheduler.preemption.dry_run import Preemption
from tonnage.scheduler.preemption.victims import Budget, PreemptionCandidate

POLICY = {"persistentVolumeReclaimPolicy": "Delete"}


class Stage:
    """A world with a class of storage and pods that have volumes."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.storage_class()

    def scratch(
        self, name: str, size: str, *, node: str, priority: int = 0, policy: str = "Delete", **spec: Any
    ) -> None:
        """A pod with an ephemeral volume, on its node, the volume made."""
        pod = self.world.pod(name, ephemeral=["data"], priority=priority, **spec)
        self.world.bound_claim(f"{name}-data", f"pv-{name}", size, owner=name)
        self.world.volume(f"pv-{name}", size, node=node, claim=f"{name}-data", persistentVolumeReclaimPolicy=policy)
        self.placed(pod, node)

    def placed(self, pod: Any, node: str) -> None:
        """The pod is on a node."""
        self.world.cluster.pod_placed(replace(pod, spec=replace(pod.spec, node_name=node)))

    def find(self, pod: Any) -> tuple[str, list[str]] | None:
        """(node, victims) for a pod that was rejected; asserts that asking changes nothing."""
        cycle = self.world.cycle
        before = self.state()
        ask = compile_ask(pod)
        rejection = cycle.decide(ask)
        assert isinstance(rejection, Diagnosis), rejection
        found = Preemption(cycle).find(ask, rejection)
        assert self.state() == before
        return (found.node, [v.metadata.name for v in found.victims]) if found else None

    def state(self) -> Any:
        cluster = self.world.cluster
        columns = cluster.columns
        offers = {
            node: [(o.key, o.capacity, o.left, o.largest) for some in cluster.published.on(node).values() for o in some]
            for node in columns.slots
        }
        free = {name: list(column) for name, column in columns.free.items()}
        census = cluster.topology_pairs
        kinds = {key: dict(slots) for key, slots in census._slots.items()}
        users = {key: set(uids) for key, uids in columns.claim_users.items()}
        return kinds, set(census.foes), free, offers, users, sorted(columns.placed), [dict(p) for p in columns.ports]


@pytest.fixture
def stage(world: World) -> Stage:
    return Stage(world)


def test_cpu_of_the_least_important(stage: Stage) -> None:
    for node, priority in (("node-1", 5), ("node-2", 3)):
        stage.world.node(node, cpu="4")
        stage.placed(stage.world.pod(f"old-{node}", requests={"cpu": "3"}, priority=priority), node)
    assert stage.find(stage.world.pod("new", requests={"cpu": "2"}, priority=10)) == ("node-2", ["old-node-2"])


def test_nobody_of_equal_priority(stage: Stage) -> None:
    stage.world.node("node-1", cpu="4")
    stage.placed(stage.world.pod("old", requests={"cpu": "3"}, priority=10), "node-1")
    assert stage.find(stage.world.pod("new", requests={"cpu": "2"}, priority=10)) is None


def test_never_means_never(stage: Stage) -> None:
    stage.world.node("node-1", cpu="4")
    stage.placed(stage.world.pod("old", requests={"cpu": "3"}), "node-1")
    new = stage.world.pod("new", requests={"cpu": "2"}, priority=10, preemptionPolicy=NEVER)
    assert stage.find(new) is None


def test_room_that_ephemeral_volumes_give_back(stage: Stage) -> None:
    stage.world.node("node-1")
    stage.world.capacity("node-1", "1Gi", counted=100, pool="scratch")
    for name, size in (("small", "2Gi"), ("large", "6Gi")):
        stage.scratch(name, size, node="node-1")
    stage.world.claim("new-data", "6Gi", owner="new")
    assert stage.find(stage.world.pod("new", ephemeral=["data"], priority=10)) == ("node-1", ["large"])


def test_only_as_many_as_needed_and_the_least_important(stage: Stage) -> None:
    stage.world.node("node-1")
    stage.world.capacity("node-1", "0", counted=100, pool="scratch")
    for name, priority in (("a", 3), ("b", 1), ("c", 2)):
        stage.scratch(name, "2Gi", node="node-1", priority=priority)
    stage.world.claim("new-data", "4Gi", owner="new")
    node, victims = stage.find(stage.world.pod("new", ephemeral=["data"], priority=10)) or ("", [])
    assert (node, sorted(victims)) == ("node-1", ["b", "c"])


def test_kept_volumes_give_nothing_back(stage: Stage) -> None:
    stage.world.node("node-1")
    stage.world.capacity("node-1", "1Gi", counted=100, pool="scratch")
    stage.scratch("retained", "6Gi", node="node-1", policy="Retain")
    stage.world.bound_claim("own", "pv-own", "6Gi")
    stage.world.volume("pv-own", "6Gi", node="node-1", claim="own", **POLICY)
    stage.placed(stage.world.pod("persistent", claims=["own"]), "node-1")
    stage.world.claim("new-data", "6Gi", owner="new")
    assert stage.find(stage.world.pod("new", ephemeral=["data"], priority=10)) is None


@pytest.mark.parametrize(("kept", "phase", "helps"), [(None, "Running", True), ("1Gi", "Running", False)])
def test_inline_volumes_give_back_their_size(stage: Stage, kept: str | None, phase: str, helps: bool) -> None:
    """To claims only where nothing is kept for inline volumes."""
    stage.world.node("node-1")
    capacity = stage.world.capacity("node-1", "1Gi", counted=100, pool="scratch")
    marks = dict(capacity.metadata.annotations) | ({names.INLINE_CAPACITY: kept} if kept else {})
    labels = capacity.metadata.labels | {names.CAPACITY_DRIVER: names.DRIVER}
    meta = replace(capacity.metadata, annotations=marks, labels=labels, resource_version=stage.world.version())
    stage.world.capacities.put(replace(capacity, metadata=meta))
    source = {"driver": names.DRIVER, "volumeAttributes": {"size": "3Gi"}}
    body = {"spec": {"volumes": [{"name": "data", "csi": source}]}, "status": {"phase": phase}}
    stage.placed(stage.world.read(PODS, "old", body, "default"), "node-1")
    stage.world.claim("new-data", "4Gi", owner="new")
    new = stage.world.pod("new", ephemeral=["data"], priority=10)
    assert stage.find(new) == (("node-1", ["old"]) if helps else None)


def test_a_rule_about_the_largest_volume_is_not_lifted(stage: Stage) -> None:
    stage.world.node("node-1")
    stage.world.capacity("node-1", "8Gi", largest="4Gi", counted=100, pool="scratch")
    stage.scratch("old", "6Gi", node="node-1")
    stage.world.claim("new-data", "6Gi", owner="new")
    assert stage.find(stage.world.pod("new", ephemeral=["data"], priority=10)) is None


def test_classes_of_one_pool_share_what_comes_back(stage: Stage) -> None:
    stage.world.node("node-1")
    stage.world.storage_class("other")
    for name in ("late", "other"):
        stage.world.capacity("node-1", "0", storage_class=name, counted=100, pool="scratch")
    stage.scratch("old", "4Gi", node="node-1")
    stage.world.claim("new-data", "4Gi", owner="new", storageClassName="other")
    assert stage.find(stage.world.pod("new", ephemeral=["data"], priority=10)) == ("node-1", ["old"])


def test_a_claim_that_one_pod_alone_may_use(stage: Stage) -> None:
    stage.world.node("node-1")
    stage.world.node("node-2")
    stage.world.bound_claim("alone", "pv-alone", accessModes=[names.READ_WRITE_ONCE_POD])
    stage.world.volume("pv-alone", node="node-1", claim="alone", accessModes=[names.READ_WRITE_ONCE_POD])
    stage.placed(stage.world.pod("old", claims=["alone"]), "node-1")
    assert stage.find(stage.world.pod("new", claims=["alone"], priority=10)) == ("node-1", ["old"])


def test_taints_are_not_helped(stage: Stage) -> None:
    stage.world.node("node-1", cpu="4", unschedulable=True)
    stage.world.node("node-2", cpu="1")
    stage.placed(stage.world.pod("old", requests={"cpu": "3"}), "node-1")
    stage.placed(stage.world.pod("other", requests={"cpu": "1"}), "node-2")
    assert stage.find(stage.world.pod("new", requests={"cpu": "2"}, priority=10)) is None


def test_a_pod_that_wants_no_other_beside_it(stage: Stage) -> None:
    for node in ("node-1", "node-2"):
        stage.world.node(node)
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": names.HOSTNAME_LABEL}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for name, priority in (("old", 0), ("important", 10)):
        body = {"spec": {"priority": priority, "affinity": apart}}
        pod = stage.world.read(PODS, name, body, "default", labels={"app": "web"})
        stage.placed(pod, "node-1" if name == "old" else "node-2")
    new = stage.world.read(PODS, "new", {"spec": {"priority": 10, "affinity": apart}}, "default", labels={"app": "web"})
    assert stage.find(new) == ("node-1", ["old"])


def test_nothing_is_looked_at_twice_for_equal_pods(stage: Stage) -> None:
    stage.world.node("node-1", cpu="4")
    stage.placed(stage.world.pod("old", requests={"cpu": "1"}), "node-1")
    stage.placed(stage.world.pod("firm", requests={"cpu": "3"}, priority=50), "node-1")
    cycle = stage.world.cycle
    asked: list[str] = []

    class Counted(Preemption):
        def on(self, node: str, ask: Ask, budgets: Sequence[Budget] = ()) -> PreemptionCandidate | None:
            asked.append(node)
            return super().on(node, ask, budgets)

    preemption = Counted(cycle)
    for number in range(3):
        ask = compile_ask(stage.world.pod(f"new-{number}", requests={"cpu": "2"}, priority=10))
        rejection = cycle.decide(ask)
        assert isinstance(rejection, Diagnosis)
        assert preemption.find(ask, rejection) is None
    assert len(asked) == 1

    cycle.cluster.pod_lifted("uid-firm")  # somebody went: look again
    stage.placed(stage.world.pod("other", requests={"cpu": "2"}), "node-1")
    ask = compile_ask(stage.world.pod("new-4", requests={"cpu": "2"}, priority=10))
    rejection = cycle.decide(ask)
    assert isinstance(rejection, Diagnosis)
    assert preemption.find(ask, rejection) is not None
