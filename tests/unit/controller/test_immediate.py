"""Claims that bind at once: which node they are sent to, what is promised, what is said when nothing fits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running, Told

from tonnage.base.errors import UnavailableError
from tonnage.controller.config import LoopKey
from tonnage.controller.immediate import ImmediateController
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, CSI_DRIVERS, NODES, VOLUMES
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.data_source import POPULATED
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]


@pytest.fixture
async def controller(
    kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock, make_class: Make
) -> ImmediateController:
    await kube.create(CSI_DRIVERS, {"metadata": {"name": names.DRIVER}, "spec": {"storageCapacity": True}})
    await make_class("now", mode=names.IMMEDIATE)
    return ImmediateController(context(kube, informers, events, clock=manual_clock), quiet=0.0)


@pytest.fixture
def make_node(kube: Client) -> Make:
    """make_node(name, free, cls="now", labels={}, pool="", counted="", largest="")"""

    async def make(
        name: str,
        free: str = "",
        *,
        cls: str = "now",
        labels: dict[str, str] | None = None,
        pool: str = "",
        counted: str = "",
        largest: str = "",
        **spec: Any,
    ) -> None:
        topology = {names.TOPOLOGY_NODE: name}
        await kube.create(NODES, {"metadata": {"name": name, "labels": {**topology, **(labels or {})}}, "spec": spec})
        if free:
            await publish(name, free, cls=cls, pool=pool, counted=counted, largest=largest)

    async def publish(name: str, free: str, *, cls: str, pool: str, counted: str, largest: str) -> None:
        meta: dict[str, Any] = {"name": f"{name}-{cls}"}
        if pool:
            meta["labels"] = {names.POOL_LABEL: pool}
        if counted:
            meta["annotations"] = {names.OBSERVED_CLAIM_VERSION: counted}
        body = {"metadata": meta, "storageClassName": cls, "capacity": free}
        body["nodeTopology"] = {"matchLabels": {names.TOPOLOGY_NODE: name}}
        if largest:
            body["maximumVolumeSize"] = largest
        await kube.create(CAPACITIES, body, "default")

    return make


async def node_of(kube: Client, name: str) -> str:
    claim = await kube.get(CLAIMS, name, "default")
    return claim.metadata.annotations.get(names.SELECTED_NODE, "")


async def test_most_free_node_in_one_write(
    kube: Client, controller: ImmediateController, make_node: Make, make_claim: Make, settle: Settle
) -> None:
    for name, free in (("n1", "5Gi"), ("n2", "9Gi"), ("n3", "1Gi")):
        await make_node(name, free)
    before = await make_claim("c", "2Gi", storageClassName="now")
    await settle()
    assert await controller.reconcile(LoopKey("claim", "default/c")) is None
    claim = await kube.get(CLAIMS, "c", "default")
    assert claim.metadata.annotations == {
        names.SELECTED_NODE: "n2",
        names.STORAGE_PROVISIONER: names.DRIVER,
        names.BETA_STORAGE_PROVISIONER: names.DRIVER,
    }
    assert claim.metadata.labels == {names.NODE_LABEL: "n2"}
    assert int(claim.metadata.resource_version) == int(before.metadata.resource_version) + 1


@pytest.mark.parametrize(
    ("nodes", "cls", "expected"),
    [
        pytest.param({"n1": {"free": "2Gi"}}, {}, "n1", id="exact fit"),
        pytest.param({"n1": {"free": "2047Mi"}}, {}, "", id="one byte of room too few"),
        pytest.param({"n1": {"free": "9Gi", "largest": "1Gi"}, "n2": {"free": "3Gi"}}, {}, "n2", id="in pieces"),
        pytest.param({"n1": {"free": "9Gi", "unschedulable": True}, "n2": {"free": "3Gi"}}, {}, "n2", id="cordoned"),
        pytest.param(
            {"n1": {"free": "9Gi"}, "n2": {"free": "3Gi", "labels": {"zone": "a"}}},
            {"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]},
            "n2",
            id="allowed topologies",
        ),
        pytest.param({"n1": {"free": "9Gi", "cls": "other"}}, {}, "", id="capacity of another class"),
        pytest.param({"n1": {}}, {}, "", id="no capacity published"),
        pytest.param({"n1": {"free": "9Gi"}}, {"mode": names.WAIT_FOR_FIRST_CONSUMER}, "", id="late binding"),
        pytest.param({"n1": {"free": "9Gi"}}, {"provisioner": "another.driver"}, "", id="driver without capacity"),
        pytest.param(
            {"n1": {"free": "9Gi"}}, {"provisioner": "tonnage.dev/flex-provisioner"}, "n1", id="FlexVolume provisioner"
        ),
    ],
)
async def test_where_it_goes(
    kube: Client,
    controller: ImmediateController,
    make_node: Make,
    make_class: Make,
    make_claim: Make,
    settle: Settle,
    nodes: dict[str, dict[str, Any]],
    cls: dict[str, Any],
    expected: str,
) -> None:
    await make_class("this", **{"mode": names.IMMEDIATE, **cls})
    for name, more in nodes.items():
        await make_node(name, **{"cls": "this", **more})
    await make_claim("c", "2Gi", storageClassName="this")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == expected


async def test_volume_that_is_there_goes_first(
    kube: Client, controller: ImmediateController, make_node: Make, make_claim: Make, make_volume: Make, settle: Settle
) -> None:
    await make_node("n1", "9Gi")
    volume = await make_volume("v", "2Gi", storageClassName="now")
    await kube.patch(VOLUMES, volume.key, {"status": {"phase": "Available"}}, subresource="status")
    await make_claim("c", "2Gi", storageClassName="now")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == ""


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_was_sent_is_not_promised_twice(
    kube: Client, controller: ImmediateController, make_node: Make, make_claim: Make, settle: Settle, at_once: bool
) -> None:
    for name in ("n1", "n2"):
        await make_node(name, "3Gi", counted="1")
    for number in range(4):
        await make_claim(f"c{number}", "2Gi", storageClassName="now")
    await settle()
    keys = [LoopKey("claim", f"default/c{number}") for number in range(4)]
    if at_once:
        await asyncio.gather(*map(controller.reconcile, keys))
    else:
        for key in keys:
            await controller.reconcile(key)
            await settle()
    assert sorted([await node_of(kube, f"c{number}") for number in range(4)]) == ["", "", "n1", "n2"]


async def test_counted_promises_are_dropped_and_classes_share_a_pool(
    kube: Client, controller: ImmediateController, make_node: Make, make_class: Make, make_claim: Make, settle: Settle
) -> None:
    await make_class("also", mode=names.IMMEDIATE)
    await make_node("n1", "5Gi", pool="ssd", counted="1")
    body = {
        "metadata": {
            "name": "n1-also",
            "labels": {names.POOL_LABEL: "ssd"},
            "annotations": {names.OBSERVED_CLAIM_VERSION: "1"},
        },
        "storageClassName": "also",
        "capacity": "5Gi",
        "nodeTopology": {"matchLabels": {names.TOPOLOGY_NODE: "n1"}},
    }
    await kube.create(CAPACITIES, body, "default")
    await make_claim("a", "3Gi", storageClassName="now")
    await make_claim("b", "3Gi", storageClassName="also")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/a"))
    assert await controller.reconcile(LoopKey("claim", "default/b")) is not None  # it looks again: promises are open
    assert await node_of(kube, "b") == ""
    sent = await kube.get(CLAIMS, "a", "default")
    counted = {"annotations": {names.OBSERVED_CLAIM_VERSION: sent.metadata.resource_version}}
    await kube.patch(CAPACITIES, "n1-also", {"metadata": counted, "capacity": "4Gi"}, "default")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/b"))
    assert await node_of(kube, "b") == "n1"


async def test_claim_sent_back_frees_its_promise_and_waits(
    kube: Client,
    controller: ImmediateController,
    make_node: Make,
    make_claim: Make,
    settle: Settle,
    manual_clock: ManualClock,
) -> None:
    await make_node("n1", "3Gi", counted="1")
    await make_claim("c", "2Gi", storageClassName="now")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/c"))
    back = {"annotations": {names.SELECTED_NODE: None, names.RESCHEDULES: "1"}, "labels": None}
    await kube.patch(CLAIMS, "c", {"metadata": back}, "default")
    await settle()
    assert controller._published.outstanding() == 0
    assert await controller.reconcile(LoopKey("claim", "default/c")) == pytest.approx(0.5)
    manual_clock.now += 0.5
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == "n1"


async def test_bound_claim_is_counted_after_a_while_at_the_latest(
    kube: Client,
    controller: ImmediateController,
    make_node: Make,
    make_claim: Make,
    settle: Settle,
    manual_clock: ManualClock,
) -> None:
    await make_node("n1", "4Gi", counted="1")
    for name in ("a", "b"):
        await make_claim(name, "3Gi", storageClassName="now")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/a"))
    bound = {"metadata": {"annotations": {names.BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "v"}}
    await kube.patch(CLAIMS, "a", bound, "default")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/b"))
    assert await node_of(kube, "b") == ""
    manual_clock.now += 2.1
    await controller.reconcile(LoopKey("claim", "default/b"))
    assert await node_of(kube, "b") == "n1"


async def test_claims_sent_before_a_restart_are_held_against_the_node(
    kube: Client,
    controller: ImmediateController,
    make_node: Make,
    make_claim: Make,
    informers: Informers,
    settle: Settle,
) -> None:
    await make_node("n1", "4Gi", counted="1")
    await make_claim("a", "3Gi", storageClassName="now")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/a"))
    await make_claim("b", "3Gi", storageClassName="now")
    await settle()
    again = ImmediateController(context(kube, informers, EventRecorder(kube, "test")))
    await again.reconcile(LoopKey("claim", "default/b"))
    assert await node_of(kube, "b") == ""


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (
            "1Gi",
            "insufficient storage for 2Gi of class now: maximum volume size is 1Gi (node n1);"
            " retried when capacity grows",
        ),
        ("", "no node has published capacity for 2Gi of class now: does driver csi.tonnage.dev run on the nodes?"),
    ],
)
async def test_no_room_is_said_once_and_looked_at_slowly(
    controller: ImmediateController,
    make_node: Make,
    make_claim: Make,
    settle: Settle,
    told: Told,
    free: str,
    message: str,
) -> None:
    await make_node("n1", free)
    await make_claim("c", "2Gi", storageClassName="now")
    await settle()
    for _ in range(3):
        assert await controller.reconcile(LoopKey("claim", "default/c")) == 60
    assert await told() == [("c", "Warning", "ProvisioningFailed", message)]


async def test_what_changes_is_told_once_a_minute(
    kube: Client, controller: ImmediateController, make_node: Make, make_claim: Make, settle: Settle, told: Told,
    manual_clock: ManualClock,
) -> None:  # fmt: skip
    await make_node("n1", "1Gi")
    await make_claim("c", "9Gi", storageClassName="now")
    for free in range(10):
        await kube.patch(CAPACITIES, "n1-now", {"capacity": f"{free}Mi"}, "default")
        await settle()
        await controller.reconcile(LoopKey("claim", "default/c"))
    assert len(await told()) == 1
    manual_clock.now += 60
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert len(await told()) == 2


async def test_room_of_late_claims_that_others_sent_is_not_promised_again(
    kube: Client, controller: ImmediateController, make_node: Make, make_class: Make, make_claim: Make, settle: Settle
) -> None:
    await make_class("late")
    await make_node("n1", "3Gi", pool="ssd", counted="1")
    body = {
        "metadata": {
            "name": "n1-late",
            "labels": {names.POOL_LABEL: "ssd"},
            "annotations": {names.OBSERVED_CLAIM_VERSION: "1"},
        },
        "storageClassName": "late",
        "capacity": "3Gi",
        "nodeTopology": {"matchLabels": {names.TOPOLOGY_NODE: "n1"}},
    }
    await kube.create(CAPACITIES, body, "default")
    await make_claim("c", "2Gi", storageClassName="now")
    await make_claim("p-late", "2Gi", storageClassName="late")
    await settle()
    sent = await kube.patch(CLAIMS, "p-late", {"metadata": {"annotations": {names.SELECTED_NODE: "n1"}}}, "default")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == ""
    # The other class's number counts it, this one's is older.
    counted = {"annotations": {names.OBSERVED_CLAIM_VERSION: sent.metadata.resource_version}}
    await kube.patch(CAPACITIES, "n1-late", {"metadata": counted, "capacity": "1Gi"}, "default")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == ""
    await kube.delete(CLAIMS, "p-late", "default")
    await kube.patch(CLAIMS, "p-late", {"metadata": {"finalizers": None}}, "default")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == "n1"


async def test_a_change_of_capacity_wakes_only_what_may_fit(
    kube: Client,
    controller: ImmediateController,
    make_node: Make,
    make_claim: Make,
    settle: Settle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await make_node("n1", "1Gi")
    for name, size in (("small", "2Gi"), ("large", "9Gi")):
        await make_claim(name, size, storageClassName="now")
    await settle()
    for name in ("small", "large"):
        await controller.reconcile(LoopKey("claim", f"default/{name}"))
    woken: list[Any] = []
    monkeypatch.setattr(controller, "enqueue", woken.append)
    await kube.patch(CAPACITIES, "n1-now", {"capacity": "3Gi"}, "default")
    await settle()
    woken.clear()
    await controller.reconcile(LoopKey("class", "now"))
    assert woken == [("claim", "default/small")]


async def test_a_write_that_fails_waits_for_its_back_off(
    controller: ImmediateController, make_node: Make, make_claim: Make, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> Any:
        raise UnavailableError("connection lost")

    await make_node("n1", "3Gi", counted="1")
    await make_claim("c", "2Gi", storageClassName="now")
    await settle()
    woken: list[Any] = []
    monkeypatch.setattr(controller, "enqueue", woken.append)
    monkeypatch.setattr("tonnage.controller.immediate.send", fails)
    with pytest.raises(UnavailableError):
        await controller.reconcile(LoopKey("claim", "default/c"))
    assert woken == []
    assert controller._published.outstanding() == 0


async def test_the_fault_of_a_class_is_said(
    kube: Client,
    controller: ImmediateController,
    make_node: Make,
    make_claim: Make,
    settle: Settle,
    told: Told,
) -> None:
    for node in ("n1", "n2"):
        await make_node(node, "0")
    for capacity in (await kube.list(CAPACITIES)).items:
        body = {"metadata": {"annotations": {names.REASON: "there is no pool 'nope'"}}}
        await kube.patch(CAPACITIES, capacity.metadata.name, body, capacity.metadata.namespace)
    await make_claim("c", "2Gi", storageClassName="now")
    await settle()

    await controller.reconcile(LoopKey("claim", "default/c"))

    message = "no node can make a volume of class now: there is no pool 'nope'"
    assert await told() == [("c", "Warning", "ProvisioningFailed", message)]


async def test_that_volumes_are_made_before_claims_is_no_fault_of_the_class(
    kube: Client, controller: ImmediateController, make_node: Make, make_claim: Make, settle: Settle, told: Told
) -> None:
    await make_node("n1", "0")
    await kube.patch(CAPACITIES, "n1-now", {"metadata": {"annotations": {names.REASON: names.AHEAD}}}, "default")
    await make_claim("c", "2Gi", storageClassName="now")
    await settle()

    await controller.reconcile(LoopKey("claim", "default/c"))

    assert await told() == [
        ("c", "Warning", "ProvisioningFailed", f"no free volume fits 2Gi of class now: {names.AHEAD}")
    ]


@pytest.mark.parametrize("what", ["capacity grows", "node is uncordoned", "class comes", "driver comes"])
async def test_waiting_claim_goes_when_something_changes(
    kube: Client,
    informers: Informers,
    events: EventRecorder,
    make_node: Make,
    make_class: Make,
    make_claim: Make,
    running: Running,
    settle: Settle,
    eventually: Eventually,
    what: str,
) -> None:
    async def driver() -> None:
        await kube.create(CSI_DRIVERS, {"metadata": {"name": names.DRIVER}, "spec": {"storageCapacity": True}})

    async def sent() -> bool:
        return await node_of(kube, "c") == "n1"

    changes: dict[str, Callable[[], Awaitable[Any]]] = {
        "capacity grows": lambda: kube.patch(CAPACITIES, "n1-now", {"capacity": "5Gi"}, "default"),
        "node is uncordoned": lambda: kube.patch(NODES, "n1", {"spec": {"unschedulable": None}}),
        "class comes": lambda: make_class("now", mode=names.IMMEDIATE),
        "driver comes": driver,
    }
    if what != "class comes":
        await make_class("now", mode=names.IMMEDIATE)
    if what != "driver comes":
        await driver()
    free = "1Gi" if what == "capacity grows" else "5Gi"
    await make_node("n1", free, unschedulable=what == "node is uncordoned")
    async with running(ImmediateController(context(kube, informers, events), quiet=0.0)):
        await make_claim("c", "2Gi", storageClassName="now")
        await settle()
        assert not await sent()
        await changes[what]()
        assert await eventually(sent)


async def test_a_tier_is_each_nodes_own_room(
    kube: Client, controller: ImmediateController, make_node: Make, make_claim: Make, settle: Settle
) -> None:
    label = names.tier_label("now")
    for name in ("n1", "n2", "n3"):
        await make_node(name, labels={label: "4Gi"})
    meta = {"name": "tier", "labels": {names.TIER: "4Gi", names.POOL_LABEL: names.DRIVER}}
    body = {"metadata": meta, "storageClassName": "now", "capacity": "4Gi"}
    await kube.create(CAPACITIES, {**body, "nodeTopology": {"matchLabels": {label: "4Gi"}}}, "default")
    claims = [f"c{n}" for n in range(4)]
    for name in claims:
        await make_claim(name, "3Gi", storageClassName="now")
    await settle()
    await asyncio.gather(*(controller.reconcile(LoopKey("claim", f"default/{name}")) for name in claims))
    assert sorted([await node_of(kube, name) for name in claims]) == ["", "n1", "n2", "n3"]


async def test_a_copy_goes_where_its_source_is(
    kube: Client, controller: ImmediateController, make_node: Make, make_claim: Make, make_volume: Make, settle: Settle,
    told: Told,
) -> None:  # fmt: skip
    for name, free in (("n1", "5Gi"), ("n2", "9Gi")):
        await make_node(name, free)
    await make_claim("a", storageClassName="now")
    await make_claim("c", storageClassName="now", dataSource={"kind": "PersistentVolumeClaim", "name": "a"})
    await settle()
    assert await controller.reconcile(LoopKey("claim", "default/c")) == 2.5
    ((_, _, _, text),) = await told()
    assert text == "cannot clone: claim a is not bound yet"
    terms = [{"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["n1"]}]}]
    await make_volume("v", nodeAffinity={"required": {"nodeSelectorTerms": terms}})
    bound = {"metadata": {"annotations": {names.BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "v"}}
    await kube.patch(CLAIMS, "a", bound, "default")
    await settle()
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == "n1"


async def test_a_claim_of_a_volume_populator_is_left_alone(
    kube: Client, controller: ImmediateController, make_node: Make, make_claim: Make, settle: Settle, told: Told
) -> None:
    await make_node("n1", "1Gi")
    source = {"apiGroup": "x.org", "kind": "Image", "name": "i"}
    await make_claim("c", storageClassName="now", dataSourceRef=source)
    await make_claim("prime", storageClassName="now")
    await settle()
    for _ in range(2):
        assert await controller.reconcile(LoopKey("claim", "default/c")) is None
    await controller.reconcile(LoopKey("claim", "default/prime"))
    assert [await node_of(kube, name) for name in ("c", "prime")] == ["", "n1"], "and takes no room from others"
    assert await told() == [("c", "Normal", "Provisioning", POPULATED)]


async def test_only_the_provisioners_asked_for(
    kube: Client, controller: ImmediateController, informers: Informers, events: EventRecorder, make_node: Make,
    make_claim: Make, settle: Settle,
) -> None:  # fmt: skip
    await make_node("n1", "5Gi")
    await make_claim("c", storageClassName="now")
    picky = ImmediateController(context(kube, informers, events, provisioners=["another.driver"]), quiet=0.0)
    await settle()
    await picky.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == ""
    await controller.reconcile(LoopKey("claim", "default/c"))
    assert await node_of(kube, "c") == "n1"
