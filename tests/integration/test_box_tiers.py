"""A box whose nodes publish in tiers: our scheduler places by them, and large claims too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, NODES, PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.api.wait import until
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

LABEL = names.tier_label(names.SCRATCH_CLASS)


def running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


def box(folder: Path, *, nodes: int, capacity: str) -> Box:
    data = DataFolder(folder / "d")
    settings = Settings(nodes=nodes, pools=["fake,size=100Gi"], runtime="none", capacity=capacity)
    return Box(data, plan(data, settings))


async def own(made: Box) -> Counter[str]:
    """Class -> how many nodes publish exactly."""
    found = (await made.client.list(CAPACITIES)).items
    return Counter(o.storage_class_name for o in found if names.NODE_LABEL in o.metadata.labels)


async def test_pods_are_placed_by_tiers_and_one_that_no_tier_admits_too(tmp_path: Path) -> None:
    made = box(tmp_path, nodes=3, capacity="tiers")
    await made.start()
    try:
        for name in ("node-1", "node-2", "node-3"):
            await until(made.client, NODES, name, _in_tier)
        for n in range(9):
            await made.client.create(PODS, pod_with(f"small-{n}", {"data": "1Gi"}), "default")
        for n in range(9):
            await until(made.client, PODS, f"small-{n}", running, namespace="default")
        await made.client.create(PODS, pod_with("large", {"a": "40Gi", "b": "50Gi"}), "default")
        await until(made.client, PODS, "large", running, namespace="default")
        withdrawn = [c for c in (await made.client.list(CLAIMS)).items if names.RESCHEDULES in c.metadata.annotations]
        assert not withdrawn
        await made.client.create(PODS, pod_with("huge", {"a": "99Gi"}), "default")
        await until(made.client, PODS, "huge", _rejected, namespace="default")
    finally:
        await made.stop()


def _in_tier(node: Node) -> bool:
    return LABEL in node.metadata.labels


def _rejected(pod: Pod) -> bool:
    return any(c.reason == "Unschedulable" and "enough free storage" in c.message for c in pod.status.conditions)


@pytest.mark.parametrize("capacity", ["exact", "auto"])
async def test_a_small_box_is_exact_unless_told(tmp_path: Path, capacity: str) -> None:
    made = box(tmp_path, nodes=1, capacity=capacity)
    await made.start()
    try:
        assert not _in_tier(await made.client.get(NODES, "node-1"))
        assert (await own(made))[names.SCRATCH_CLASS] == 1
    finally:
        await made.stop()


def test_a_large_box_is_in_tiers(tmp_path: Path) -> None:
    assert box(tmp_path, nodes=101, capacity="auto").plan.capacity == "tiers"
    assert box(tmp_path, nodes=100, capacity="auto").plan.capacity == "exact"
