"""Capacity in tiers: agents with real drivers, the controller's loops, a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context

from tonnage.base.errors import ApiError
from tonnage.controller.tier_hints import TierNotices
from tonnage.controller.tier_objects import CapacityTiers
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.capacity import tier
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeClass, MakePod
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
SYSTEM = names.SYSTEM_NAMESPACE
UNUSED = 61.0
"""Seconds after which a tier that no node is in has no object any more."""
LABEL = names.tier_label("late")


class Stage:
    """What a test asks about capacity."""

    def __init__(self, kube: Client) -> None:
        self.kube = kube

    async def own(self) -> dict[str, str | None]:
        """Node -> what it publishes exactly for class late."""
        found = (await self.kube.list(kinds.CAPACITIES, SYSTEM)).items
        return {
            o.metadata.labels[names.NODE_LABEL]: o.capacity
            for o in found
            if o.storage_class_name == "late" and names.NODE_LABEL in o.metadata.labels
        }

    async def tiers(self) -> dict[str, str | None]:
        """Tier -> what its object promises."""
        found = (await self.kube.list(kinds.CAPACITIES, SYSTEM)).items
        return {o.metadata.labels[names.TIER]: o.capacity for o in found if names.TIER in o.metadata.labels}

    async def labels(self) -> dict[str, str]:
        """Node -> the tier that it says it is in."""
        found = (await self.kube.list(kinds.NODES)).items
        return {n.metadata.name: n.metadata.labels[LABEL] for n in found if LABEL in n.metadata.labels}

    async def is_in(self, labels: dict[str, str], own: dict[str, str | None]) -> bool:
        """Whether that is how nodes publish now."""
        return (await self.labels(), await self.own()) == (labels, own)

    async def is_in_tier(self, value: str, *nodes: str) -> bool:
        """Whether these nodes are in a tier and publish nothing of their own."""
        return await self.is_in(dict.fromkeys(nodes or ("node-1",), value), {})

    async def unschedulable(self, pod: str) -> None:
        """What a scheduler writes that found no node."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        await self.kube.patch(kinds.PODS, pod, {"status": {"conditions": [condition]}}, "default", subresource="status")

    async def asked(self) -> tuple[str, str]:
        """From which size on nodes are asked to publish exactly, and which."""
        name = tier.object_name("late", names.TIER_NOTICE)
        notes = (await self.kube.get(kinds.CAPACITIES, name, SYSTEM)).metadata.annotations
        return notes.get(names.EXACT_CAPACITY_MIN, ""), notes.get(names.EXACT_CAPACITY_NODES, "")

    async def asks_nothing(self) -> bool:
        """Whether no node is asked."""
        return await self.asked() == ("", "")


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written of capacity from now on: verb and kind, by anybody in this process."""
    told: list[str] = []

    def count(verb: str) -> None:
        original = getattr(Client, verb)

        async def counted(self: Client, kind: Any, *arguments: Any, **more: Any) -> Any:
            if kind in (kinds.CAPACITIES, kinds.NODES):
                told.append(f"{verb} {kind.kind}")
            return await original(self, kind, *arguments, **more)

        monkeypatch.setattr(Client, verb, counted)

    for verb in ("create", "patch", "delete"):
        count(verb)
    return told


@pytest.fixture
def stage(kube: Client) -> Stage:
    """Questions."""
    return Stage(kube)


@pytest.fixture
async def control(kube: Client) -> AsyncIterator[Callable[..., Awaitable[Callable[[], Awaitable[None]]]]]:
    """await control(mode="tiers"): run the controller's loops; returns what ends them."""
    ends = []

    async def start(mode: str = "tiers") -> Callable[[], Awaitable[None]]:
        found = Informers(kube)
        more: Any = {"namespace": SYSTEM, "clock": LoopClock()}
        tiers = CapacityTiers(context(kube, found, provisioners={names.DRIVER}, capacity=mode, **more))
        loops: list[Any] = [tiers, TierNotices(context(kube, found, **more))]
        found.start()
        tasks = [asyncio.ensure_future(loop.run()) for loop in loops]

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await found.close()

        ends.append(end)
        return end

    yield start
    for end in ends:
        await end()


async def test_a_roomy_node_says_it_by_a_label_and_publishes_no_object(
    make_node: MakeNode, control: Any, stage: Stage, eventually: Eventually
) -> None:
    await control()
    await make_node("100Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("16Gi"))
    assert await stage.tiers() == {names.TIER_NOTICE: None, "16Gi": "16Gi"}
    (obj,) = [o for o in (await stage.kube.list(kinds.CAPACITIES, SYSTEM)).items if o.capacity]
    assert obj.node_topology is not None
    assert obj.node_topology.match_labels == {LABEL: "16Gi"}
    assert obj.maximum_volume_size == "16Gi"


@pytest.mark.parametrize("mode", ["auto", "exact"])
async def test_without_a_controller_that_keeps_tiers_it_publishes_exactly(
    make_node: MakeNode, control: Any, stage: Stage, eventually: Eventually, mode: str
) -> None:
    await control("exact")
    await make_node("100Gi", capacity=mode)
    await eventually(lambda: stage.is_in({}, {"node-1": "100Gi"}))


async def test_a_tier_without_an_object_stands_for_nothing(
    make_node: MakeNode, control: Any, stage: Stage, eventually: Eventually
) -> None:
    """No agent depends on the controller: the node says its tier, and publishes exactly until somebody keeps it."""
    await make_node("100Gi", capacity="tiers")
    await eventually(lambda: stage.is_in({"node-1": "16Gi"}, {"node-1": "100Gi"}))
    end = await control()
    await eventually(lambda: stage.is_in_tier("16Gi"))
    await end()
    await stage.kube.delete(kinds.CAPACITIES, tier.object_name("late", "16Gi"), SYSTEM)
    await eventually(lambda: stage.is_in({"node-1": "16Gi"}, {"node-1": "100Gi"}))


async def test_a_pool_that_fills_goes_down_tier_by_tier_and_ends_exact(
    make_node: MakeNode, make_claim: MakeClaim, control: Any, stage: Stage, eventually: Eventually, writes: list[str]
) -> None:
    await control()
    node = await make_node("128Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("32Gi"))
    writes.clear()
    steps: list[str] = []
    for n in range(30):
        await make_claim(f"c{n}", "4Gi", storageClassName="late")
        await node.select(f"c{n}")
        await eventually(lambda n=n: node.is_bound(f"c{n}"))
        left = 128 - 4 * (n + 1)
        if left >= 16:
            await eventually(lambda left=left: _is_one_of(stage, left))
            if left == 16:
                assert len(writes) <= 12, f"28 volumes, while there is room: {writes}"
        else:
            await eventually(lambda left=left: stage.is_in({}, {"node-1": f"{left}Gi"}))
        labels = await stage.labels()
        steps += [value for value in labels.values() if value not in steps]
    assert steps == ["32Gi", "16Gi", "8Gi"]
    for n in range(30):
        await node.release(f"c{n}")
    await eventually(lambda: stage.is_in_tier("32Gi"))


async def _is_one_of(stage: Stage, left: int) -> bool:
    """In a tier that holds, and nothing of its own once that tier's object is there."""
    labels, own = await stage.labels(), await stage.own()
    return not own and bool(labels) and 2 * to_bytes(labels["node-1"]) <= left << 30


async def test_a_claim_that_no_tier_admits_makes_nodes_publish_exactly_until_it_is_placed(
    make_node: MakeNode, scratch_pod: MakePod, control: Any, stage: Stage, eventually: Eventually
) -> None:
    await control()
    node = await make_node("100Gi", capacity="auto")
    await make_node("20Gi", name="node-2", capacity="auto")
    both = {"node-1": "16Gi", "node-2": "4Gi"}
    await eventually(lambda: stage.is_in(both, {}))

    await scratch_pod("large", "60Gi")
    await stage.unschedulable("large")
    await eventually(lambda: stage.is_in(both, {"node-1": "100Gi"}))
    assert await stage.asked() == ("60Gi", "node-1"), "60Gi cannot be on a node that is in a tier of 4Gi"

    await node.select("large-v0")
    await eventually(lambda: node.is_bound("large-v0"))
    await eventually(lambda: stage.is_in({"node-2": "4Gi"}, {"node-1": "40Gi"}))
    await eventually(stage.asks_nothing)
    # One claim of 60Gi is all that was ever asked there: until smaller ones come, 40Gi are not far above it.
    for n in range(10):
        await scratch_pod(f"small-{n}", "1Gi")
        await node.select(f"small-{n}-v0")

    async def is_in_a_tier() -> bool:
        """A tier that is chosen while 32Gi or more are free stays true at 30Gi."""
        return any([await stage.is_in({"node-1": chosen, "node-2": "4Gi"}, {}) for chosen in ("4Gi", "8Gi")])

    await eventually(is_in_a_tier)


async def test_a_claim_that_goes_is_asked_for_no_more(
    make_node: MakeNode, scratch_pod: MakePod, control: Any, stage: Stage, eventually: Eventually
) -> None:
    await control()
    await make_node("100Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("16Gi"))
    await scratch_pod("large", "60Gi")
    await stage.unschedulable("large")
    await eventually(lambda: stage.is_in({"node-1": "16Gi"}, {"node-1": "100Gi"}))
    await stage.kube.delete(kinds.PODS, "large", "default")
    await eventually(lambda: stage.is_in_tier("16Gi"))


async def test_only_nodes_are_asked_on_which_the_pod_may_run(
    make_node: MakeNode,
    scratch_pod: MakePod,
    make_pod: MakePod,
    make_claim: MakeClaim,
    control: Any,
    stage: Stage,
    eventually: Eventually,
) -> None:
    """Though another node's tier admits the claim."""
    await control()
    await make_node("40Gi", capacity="auto")
    await make_node("1Ti", name="node-2", capacity="auto")
    await stage.kube.patch(kinds.NODES, "node-1", {"metadata": {"labels": {"zone": "a"}}})
    await eventually(lambda: stage.is_in({"node-1": "8Gi", "node-2": "256Gi"}, {}))
    await make_claim("c", "30Gi", storageClassName="late")
    await make_pod("picky", claims=["c"], nodeSelector={"zone": "a"})
    await stage.unschedulable("picky")
    await eventually(lambda: stage.is_in({"node-1": "8Gi", "node-2": "256Gi"}, {"node-1": "40Gi"}))


async def test_a_claim_that_binds_at_once_is_asked_for_too(
    make_node: MakeNode,
    make_class: MakeClass,
    make_claim: MakeClaim,
    control: Any,
    stage: Stage,
    eventually: Eventually,
) -> None:
    await make_class("now", mode=names.IMMEDIATE)
    await control()
    await make_node("100Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("16Gi"))
    await make_claim("c", "60Gi", storageClassName="now")
    await eventually(lambda: stage.is_in({"node-1": "16Gi"}, {"node-1": "100Gi"}))  # they share the pool


async def test_a_restarted_agent_writes_nothing(
    make_node: MakeNode, control: Any, stage: Stage, eventually: Eventually
) -> None:
    await control()
    node = await make_node("100Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("16Gi"))
    await asyncio.sleep(5.0)  # all else that it writes at its start, as the mark of history
    await node.kill_agent()
    version = (await stage.kube.list(kinds.NODES)).resource_version
    agent = await node.start_agent(capacity="auto")
    await eventually(lambda: _has_read(agent))
    await asyncio.sleep(5.0)
    assert (await stage.kube.list(kinds.NODES)).resource_version == version
    assert await stage.is_in_tier("16Gi")


async def _has_read(agent: Any) -> bool:
    return any(agent.ledger.capacity(source) for driver in agent.drivers for source in agent.readings.sources(driver))


@pytest.mark.parametrize(("value", "then"), [("512Gi", "32Gi"), ("1Gi", "16Gi"), ("whatever", "16Gi")])
async def test_what_somebody_else_makes_of_the_label_is_put_right(
    make_node: MakeNode, control: Any, stage: Stage, eventually: Eventually, value: str, then: str
) -> None:
    await control()
    await make_node("100Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("16Gi"))
    await stage.kube.patch(kinds.NODES, "node-1", {"metadata": {"labels": {LABEL: value}}})
    await eventually(lambda: stage.is_in_tier(then))


async def test_what_somebody_else_makes_of_a_tier_is_put_right(
    make_node: MakeNode, control: Any, stage: Stage, eventually: Eventually
) -> None:
    await control()
    await make_node("100Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("16Gi"))
    name = tier.object_name("late", "16Gi")
    await stage.kube.patch(kinds.CAPACITIES, name, {"capacity": "1Ti", "maximumVolumeSize": "1Ti"}, SYSTEM)

    async def right() -> bool:
        return (await stage.tiers()).get("16Gi") == "16Gi" and await stage.is_in_tier("16Gi")

    await eventually(right)


async def test_an_agent_that_may_not_label_its_node_publishes_exactly(
    make_node: MakeNode, control: Any, stage: Stage, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    await control()
    node = await make_node("100Gi", agent=False)
    patch = Client.patch

    async def rejected(self: Client, kind: Any, *arguments: Any, **more: Any) -> Any:
        if kind is kinds.NODES:
            raise ApiError("not yours", code=403, reason="Forbidden")
        return await patch(self, kind, *arguments, **more)

    monkeypatch.setattr(Client, "patch", rejected)
    await node.start_agent(capacity="auto")
    await eventually(lambda: stage.is_in({}, {"node-1": "100Gi"}))


async def test_tiers_that_nobody_uses_go_and_switching_off_makes_all_exact(
    make_node: MakeNode, make_class: MakeClass, control: Any, stage: Stage, eventually: Eventually
) -> None:
    end = await control()
    await make_node("100Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("16Gi"))
    await end()
    await control("exact")
    await eventually(lambda: stage.is_in({}, {"node-1": "100Gi"}))

    async def none() -> bool:
        return not await stage.tiers()

    await asyncio.sleep(UNUSED)
    await eventually(none)


async def test_a_class_that_goes_takes_its_labels_and_tiers_with_it(
    make_node: MakeNode, make_class: MakeClass, control: Any, stage: Stage, eventually: Eventually
) -> None:
    await make_class("more")
    await control()
    await make_node("100Gi", capacity="auto")

    async def labelled() -> bool:
        node = await stage.kube.get(kinds.NODES, "node-1")
        return tier.labels_of(node.metadata.labels) == {LABEL: "16Gi", names.tier_label("more"): "16Gi"}

    await eventually(labelled)
    await stage.kube.delete(kinds.STORAGE_CLASSES, "more")

    async def gone() -> bool:
        node = await stage.kube.get(kinds.NODES, "node-1")
        found = (await stage.kube.list(kinds.CAPACITIES, SYSTEM)).items
        left = {o.storage_class_name for o in found}
        return tier.labels_of(node.metadata.labels) == {LABEL: "16Gi"} and left == {"late"}

    await asyncio.sleep(UNUSED)
    await eventually(gone)


async def test_an_agent_that_is_told_to_publish_exactly_takes_its_label_off(
    make_node: MakeNode, control: Any, stage: Stage, eventually: Eventually
) -> None:
    await control()
    node = await make_node("100Gi", capacity="auto")
    await eventually(lambda: stage.is_in_tier("16Gi"))
    await node.kill_agent()
    await node.start_agent(capacity="exact")
    await eventually(lambda: stage.is_in({}, {"node-1": "100Gi"}))


async def test_classes_of_one_pool_are_all_in_tiers_or_all_exact(
    make_node: MakeNode, make_class: MakeClass, scratch_pod: MakePod, control: Any, stage: Stage, eventually: Eventually
) -> None:
    """Else a scheduler could not tell that they draw on the same bytes."""
    await make_class("more")
    await control()
    await make_node("100Gi", capacity="auto")

    async def own() -> set[str]:
        found = (await stage.kube.list(kinds.CAPACITIES, SYSTEM)).items
        return {o.storage_class_name for o in found if names.NODE_LABEL in o.metadata.labels}

    async def none() -> bool:
        return not await own()

    async def both() -> bool:
        return await own() == {"late", "more"}

    await eventually(lambda: stage.is_in_tier("16Gi"))
    await eventually(none)
    await scratch_pod("large", "60Gi", storage_class="more")
    await stage.unschedulable("large")
    await eventually(both)
