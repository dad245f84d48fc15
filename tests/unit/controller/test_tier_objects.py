"""Objects of tiers: which there are, and when they are kept at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.controller.contexts import context
from tests.unit.node.fakekube import FakeKube

from tonnage.controller.tier_objects import CapacityTiers, body
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.provisioning.capacity import tier
from tonnage_box.testing.clock import ManualClock

SYSTEM, CLASS = names.SYSTEM_NAMESPACE, "late"
LABEL = names.tier_label(CLASS)


@pytest.fixture
async def kube() -> FakeKube:
    made = FakeKube()
    made.put(kinds.STORAGE_CLASSES, CLASS, {"provisioner": names.DRIVER, "volumeBindingMode": "WaitForFirstConsumer"})
    made.put(kinds.STORAGE_CLASSES, "theirs", {"provisioner": "other.example.com"})
    return made


def node(kube: FakeKube, name: str, value: str = "") -> None:
    kube.put(kinds.NODES, name, {"metadata": {"labels": {LABEL: value} if value else {}}})


def loop(kube: Any, clock: Any, mode: str) -> CapacityTiers:
    return CapacityTiers(context(kube, kube, provisioners={names.DRIVER}, capacity=mode, namespace=SYSTEM, clock=clock))


def tiers(kube: FakeKube) -> set[str]:
    return {found.metadata.labels[names.TIER] for found in kube.all(kinds.CAPACITIES)}


async def test_auto_keeps_tiers_on_large_clusters(kube: FakeKube, manual_clock: ManualClock) -> None:
    controller = loop(kube, manual_clock, "auto")
    for number in range(100):
        node(kube, f"n{number}")
    await controller.reconcile(CLASS)
    assert tiers(kube) == set()
    node(kube, "n100", "16Gi")
    await controller.reconcile(CLASS)
    assert tiers(kube) == {names.TIER_NOTICE, "16Gi"}
    for number in range(20):
        kube.remove(kinds.NODES, f"n{number}")
    await controller.reconcile(CLASS)
    assert tiers(kube) == {names.TIER_NOTICE, "16Gi"}, "81 nodes: it goes on as it was"
    kube.remove(kinds.NODES, "n20")
    await controller.reconcile(CLASS)
    assert tiers(kube) == {"16Gi"}, "as long as a node is in it"
    node(kube, "n100")
    manual_clock.now += 1
    assert await controller.reconcile(CLASS) == 60.0
    manual_clock.now += 60
    await controller.reconcile(CLASS)
    assert tiers(kube) == set()


async def test_a_tier_to_which_a_node_comes_back_is_kept(kube: FakeKube, manual_clock: ManualClock) -> None:
    controller = loop(kube, manual_clock, "tiers")
    for value in ("16Gi", "", "16Gi", ""):
        node(kube, "n", value)
        await controller.reconcile(CLASS)
        manual_clock.now += 40
    assert "16Gi" in tiers(kube)
    manual_clock.now += 61
    await controller.reconcile(CLASS)
    assert tiers(kube) == {names.TIER_NOTICE}


async def test_labels_that_are_no_tiers_and_classes_of_others_get_none(
    kube: FakeKube, manual_clock: ManualClock
) -> None:
    controller = loop(kube, manual_clock, "tiers")
    for number, value in enumerate(("3Gi", "no", "1024Mi")):
        node(kube, f"n{number}", value)
    await controller.reconcile(CLASS)
    await controller.reconcile("theirs")
    assert [(o.storage_class_name, o.metadata.labels[names.TIER]) for o in kube.all(kinds.CAPACITIES)] == [
        (CLASS, names.TIER_NOTICE)
    ]


def test_a_tier_of_flexvolumes_is_of_the_driver_that_makes_them() -> None:
    made = msgspec.convert({"metadata": {"name": "c"}, "provisioner": "tonnage.dev/flex-provisioner"}, StorageClass)
    labels = body(made, "16Gi")["metadata"]["labels"]
    assert (labels[names.CAPACITY_DRIVER], labels[names.POOL_LABEL]) == (names.DRIVER, names.DRIVER)


async def test_what_somebody_else_called_a_tier_goes(kube: FakeKube, manual_clock: ManualClock) -> None:
    strange = {"metadata": {"labels": {names.TIER: "16Gi"}}, "storageClassName": CLASS, "capacity": "9Ti"}
    kube.put(kinds.CAPACITIES, "strange", strange, SYSTEM)
    elsewhere = kube.put(kinds.CAPACITIES, "strange", strange, "elsewhere")
    controller = loop(kube, manual_clock, "tiers")
    await controller.reconcile(CLASS)
    left = {found.key for found in kube.all(kinds.CAPACITIES)}
    assert left == {elsewhere.key, f"{SYSTEM}/{tier.object_name(CLASS, names.TIER_NOTICE)}"}


async def test_the_notice_keeps_what_it_asks(kube: FakeKube, manual_clock: ManualClock) -> None:
    controller = loop(kube, manual_clock, "tiers")
    await controller.reconcile(CLASS)
    name = tier.object_name(CLASS, names.TIER_NOTICE)
    await kube.patch(kinds.CAPACITIES, name, {"metadata": {"annotations": {names.EXACT_CAPACITY_NODES: "n"}}}, SYSTEM)
    before = kube.writes
    await controller.reconcile(CLASS)
    assert kube.writes == before
