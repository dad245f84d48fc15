"""Capacity objects of nodes that do not exist yet: configured, learned, kept and removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running

from tonnage.controller.node_templates import NodeTemplates, body
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, NAMESPACES, NODES, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.capacity.node_template import NodeTemplate, TemplateCapacity, is_template
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]
GROUP_LABEL = "example.com/group"
BIG = f"{GROUP_LABEL}=big"
GI = 1 << 30


@pytest.fixture
def templates(kube: Client, informers: Informers, manual_clock: ManualClock) -> Callable[..., NodeTemplates]:
    """templates(**more): the controller, which looks whenever it is told to."""

    def make(**more: Any) -> NodeTemplates:
        timing = {"pace": 0.0, **{name: more.pop(name) for name in ("keep", "pace", "settle") if name in more}}
        options = {"group_labels": [GROUP_LABEL], "clock": manual_clock, **more}
        return NodeTemplates(context(kube, informers, **options), **timing)

    return make


@pytest.fixture
def make_node(kube: Client) -> Make:
    """make_node(name, free="", group="big"): a node of a group, and what its agent publishes."""

    async def make(name: str, free: str = "", *, group: str = "big", cls: str = "late", **more: Any) -> None:
        labels = {names.TOPOLOGY_NODE: name, GROUP_LABEL: group}
        await kube.create(NODES, {"metadata": {"name": name, "labels": labels}})
        if free:
            meta = {"name": f"{name}-{cls}", "labels": {names.NODE_LABEL: name, names.POOL_LABEL: "p"}}
            topology = {"matchLabels": {names.TOPOLOGY_NODE: name}}
            body = {"metadata": meta, "storageClassName": cls, "capacity": free, "nodeTopology": topology}
            await kube.create(CAPACITIES, {**body, "maximumVolumeSize": free, **more}, names.SYSTEM_NAMESPACE)

    return make


@pytest.fixture(autouse=True)
async def _cluster(kube: Client, make_class: Make) -> None:
    await kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await make_class("late")


async def made(kube: Client) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    """(group, class) -> what the template says."""
    found = {}
    for obj in (await kube.list(CAPACITIES)).items:
        if is_template(obj):
            assert obj.node_topology is not None
            labels = dict(obj.node_topology.match_labels)
            assert labels.pop(names.TEMPLATE_NODE) == "true"
            ((key, value),) = labels.items()
            found[f"{key}={value}", obj.storage_class_name] = (obj.capacity, obj.maximum_volume_size)
    return found


async def test_configured_ones_need_no_node(kube: Client, templates: Any, settle: Settle) -> None:
    chosen = NodeTemplate(BIG, {"late": TemplateCapacity(100 * GI, 50 * GI), "unknown": TemplateCapacity(GI, GI)})
    controller = templates(templates=[chosen], group_labels=[])
    await settle()
    for _ in range(2):
        await controller.reconcile(BIG)
        await settle()
    assert await made(kube) == {(BIG, "late"): ("100Gi", "50Gi")}

    less = templates(templates=[NodeTemplate(BIG, {"late": TemplateCapacity(GI, GI)})], group_labels=[])
    await less.reconcile(BIG)
    assert await made(kube) == {(BIG, "late"): ("1Gi", "1Gi")}


async def test_no_real_node_is_selected(
    kube: Client, templates: Any, make_node: Make, informers: Informers, settle: Settle
) -> None:
    await make_node("n1", "10Gi")
    controller = templates()
    await settle()
    await controller.reconcile(BIG)
    (found,) = [obj for obj in (await kube.list(CAPACITIES)).items if is_template(obj)]
    selects = from_label_selector(found.node_topology)  # type: ignore[arg-type]
    for node in (await kube.list(NODES)).items:
        assert not selects.matches(node.metadata.labels)
        assert selects.matches({**node.metadata.labels, names.TEMPLATE_NODE: "true"})


async def test_learned_of_a_node_with_volumes(
    kube: Client, templates: Any, make_node: Make, make_volume: Make, settle: Settle
) -> None:
    await make_node("n1", "6Gi")
    await make_volume("v", "4Gi", storageClassName="late")
    await kube.patch(VOLUMES, "v", {"metadata": {"labels": {names.NODE_LABEL: "n1"}}})
    await make_node("small", "2Gi", group="other")
    controller = templates()
    await settle()
    await controller.reconcile(BIG)
    await controller.reconcile(f"{GROUP_LABEL}=other")
    assert await made(kube) == {
        (BIG, "late"): ("10Gi", "10Gi"),
        (f"{GROUP_LABEL}=other", "late"): ("2Gi", "2Gi"),
    }


async def test_more_is_said_at_once_less_after_a_while(
    kube: Client, templates: Any, make_node: Make, settle: Settle, manual_clock: ManualClock
) -> None:
    await make_node("n1", "6Gi")
    controller = templates(settle=300.0)

    async def see(free: str) -> float | None:
        numbers = {"capacity": free, "maximumVolumeSize": free}
        await kube.patch(CAPACITIES, "n1-late", numbers, names.SYSTEM_NAMESPACE)
        await settle()
        after: float | None = await controller.reconcile(BIG)
        await settle()
        return after

    assert await see("6Gi") is None
    assert await see("8Gi") is None
    assert await made(kube) == {(BIG, "late"): ("8Gi", "8Gi")}
    assert await see("5Gi") == 300  # a volume is being made
    manual_clock.now += 100
    assert await see("7Gi") == 200
    assert await made(kube) == {(BIG, "late"): ("8Gi", "8Gi")}
    manual_clock.now += 200
    assert await see("5Gi") is None
    assert await made(kube) == {(BIG, "late"): ("7Gi", "7Gi")}
    assert await see("7Gi") is None


async def test_what_was_learned_outlives_the_last_node_for_a_while(
    kube: Client, templates: Any, make_node: Make, settle: Settle, manual_clock: ManualClock
) -> None:
    await make_node("n1", "6Gi")
    controller = templates(keep=1000.0)
    await settle()
    await controller.reconcile(BIG)
    await kube.delete(CAPACITIES, "n1-late", names.SYSTEM_NAMESPACE)
    await settle()
    assert await controller.reconcile(BIG) is None  # it has yet to publish
    await kube.delete(NODES, "n1")
    await settle()
    assert await controller.reconcile(BIG) == 1000
    await settle()
    manual_clock.now += 900
    assert await controller.reconcile(BIG) == pytest.approx(100, abs=1)
    assert await made(kube) == {(BIG, "late"): ("6Gi", "6Gi")}

    await make_node("n2", "6Gi")  # scaled up from zero: the time begins anew
    await settle()
    await controller.reconcile(BIG)
    await kube.delete(NODES, "n2")
    await kube.delete(CAPACITIES, "n2-late", names.SYSTEM_NAMESPACE)
    await settle()
    assert await controller.reconcile(BIG) == 1000
    await settle()
    manual_clock.now += 1001
    await controller.reconcile(BIG)
    assert await made(kube) == {}


@pytest.mark.parametrize("what", ["group label", "driver"])
async def test_what_nobody_wants_any_more_goes(
    kube: Client, templates: Any, make_node: Make, settle: Settle, running: Running, eventually: Eventually, what: str
) -> None:
    await make_node("n1", "6Gi")
    controller = templates()
    await settle()
    await controller.reconcile(BIG)
    await settle()
    assert len(await made(kube)) == 1

    async def gone() -> bool:
        return not await made(kube)

    drivers = ["another.driver"] if what == "driver" else [names.DRIVER]
    labels = [] if what == "group label" else [GROUP_LABEL]
    fresh = Informers(kube)
    later = NodeTemplates(context(kube, fresh, drivers=dict.fromkeys(drivers, ""), group_labels=labels), pace=0.0)
    fresh.start()
    try:
        async with running(later):
            assert await eventually(gone)
    finally:
        await fresh.close()


async def test_templates_of_another_installation_stay(kube: Client, templates: Any, settle: Settle) -> None:
    """The controller may write in its own namespace only."""
    await kube.create(NAMESPACES, {"metadata": {"name": "other"}})
    storage_class = await kube.get(STORAGE_CLASSES, "late")
    await kube.create(CAPACITIES, body(BIG, storage_class, TemplateCapacity(5 * GI, 5 * GI)), "other")
    controller = templates(group_labels=[])
    await settle()
    assert await controller.reconcile(BIG) is None
    assert await made(kube) == {(BIG, "late"): ("5Gi", "5Gi")}

    chosen = NodeTemplate(BIG, {"late": TemplateCapacity(GI, GI)})
    await templates(templates=[chosen], group_labels=[]).reconcile(BIG)
    sizes = {obj.metadata.namespace: obj.capacity for obj in (await kube.list(CAPACITIES)).items}
    assert sizes == {"other": "5Gi", names.SYSTEM_NAMESPACE: "1Gi"}


async def test_nodes_that_come_are_learned_and_a_removed_object_is_made_again(
    kube: Client, templates: Any, make_node: Make, running: Running, eventually: Eventually
) -> None:
    async def there() -> bool:
        return await made(kube) == {(BIG, "late"): ("6Gi", "6Gi")}

    async with running(templates()):
        await make_node("n1", "6Gi")
        assert await eventually(there)
        (found,) = [obj for obj in (await kube.list(CAPACITIES)).items if is_template(obj)]
        await kube.delete(CAPACITIES, found.metadata.name, names.SYSTEM_NAMESPACE)
        assert await eventually(there)


async def test_a_group_is_looked_at_every_now_and_then(
    kube: Client, templates: Any, make_node: Make, settle: Settle, manual_clock: ManualClock
) -> None:
    await make_node("n1", "6Gi")
    controller = templates(pace=10.0)
    await settle()
    assert await controller.reconcile(BIG) is None
    manual_clock.now += 4
    assert await controller.reconcile(BIG) == 6
