"""Pods whose claims are to be copies: sent where the source is, with all other claims of theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.controller.contexts import context
from tests.unit.fixture_types import Running, Told

from tonnage.controller.preassigned import PreassignedPods
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, NODES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]


@pytest.fixture
async def controller(
    kube: Client, informers: Informers, events: EventRecorder, manual_clock: ManualClock, make_class: Make
) -> PreassignedPods:
    """It steers for all schedulers but one."""
    await make_class("late")
    for name in ("n1", "n2"):
        await kube.create(NODES, {"metadata": {"name": name, "labels": {names.TOPOLOGY_NODE: name}}})
    return PreassignedPods(context(kube, informers, events, choosing=[names.SCHEDULER], clock=manual_clock))


@pytest.fixture
def make_source(kube: Client, make_claim: Make, make_volume: Make) -> Make:
    """make_source(name, node): a claim that is bound to a volume of that node."""

    async def make(name: str, node: str = "n2") -> None:
        if not any(c.metadata.name == name for c in (await kube.list(CLAIMS, "default")).items):
            await make_claim(name, storageClassName="late")
        terms = [{"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": [node]}]}]
        await make_volume(f"pv-{name}", nodeAffinity={"required": {"nodeSelectorTerms": terms}})
        bound = {"metadata": {"annotations": {names.BIND_COMPLETED: "yes"}}, "spec": {"volumeName": f"pv-{name}"}}
        await kube.patch(CLAIMS, name, bound, "default")

    return make


def copy_of(name: str) -> dict[str, Any]:
    return {"storageClassName": "late", "dataSource": {"kind": "PersistentVolumeClaim", "name": name}}


async def sent(kube: Client, *claims: str) -> list[str]:
    """The nodes that they were sent to."""
    found = [await kube.get(CLAIMS, name, "default") for name in claims]
    return [claim.metadata.annotations.get(names.SELECTED_NODE, "") for claim in found]


async def test_all_claims_of_the_pod_go_where_the_source_is(
    kube: Client, controller: PreassignedPods, make_source: Make, make_claim: Make, make_pod: Make, settle: Settle
) -> None:
    await make_source("a")
    await make_claim("copy", **copy_of("a"))
    await make_claim("again", **copy_of("a"))
    await make_claim("plain", storageClassName="late")
    await make_pod("p", claims=["plain", "copy", "again"])
    await settle()
    await controller.reconcile("default/p")
    assert await sent(kube, "copy", "again", "plain") == ["n2", "n2", "n2"]


@pytest.mark.parametrize("why", ["no copy", "a scheduler that sees", "nowhere", "in two places", "source unbound"])
async def test_schedulers_choose_otherwise(
    kube: Client,
    controller: PreassignedPods,
    make_source: Make,
    make_claim: Make,
    make_pod: Make,
    settle: Settle,
    why: str,
) -> None:
    await make_source("a")
    await make_source("b", "n1")
    await make_claim("unbound", storageClassName="late")
    source = "unbound" if why == "source unbound" else "a"
    await make_claim("copy", **({"storageClassName": "late"} if why == "no copy" else copy_of(source)))
    await make_claim("other", **copy_of("b"))
    if why == "nowhere":
        await kube.delete(VOLUMES, "pv-a")
        await kube.patch(VOLUMES, "pv-a", {"metadata": {"finalizers": None}})
    claims = ["copy", "other"] if why == "in two places" else ["copy"]
    more = {"schedulerName": names.SCHEDULER} if why == "a scheduler that sees" else {}
    await make_pod("p", claims=claims, **more)
    await settle()
    await controller.reconcile("default/p")
    assert set(await sent(kube, *claims)) == {""}


@pytest.mark.parametrize("last", ["pod", "claim", "source", "node"])
async def test_whatever_comes_last(
    kube: Client, controller: PreassignedPods, make_source: Make, make_claim: Make, make_pod: Make, settle: Settle,
    running: Running, eventually: Eventually, last: str,
) -> None:  # fmt: skip
    async def is_sent() -> bool:
        return await sent(kube, "copy") == ["n2"]

    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "node": lambda: kube.create(NODES, {"metadata": {"name": "n2", "labels": {names.TOPOLOGY_NODE: "n2"}}}),
        "source": lambda: make_source("a"),
        "claim": lambda: make_claim("copy", **copy_of("a")),
        "pod": lambda: make_pod("p", claims=["copy"]),
    }
    if last == "node":
        await kube.delete(NODES, "n2")
    else:
        del steps["node"]
    await make_claim("a", storageClassName="late")
    async with running(controller):
        for name in sorted(steps, key=lambda step: step == last):
            await settle()
            await steps[name]()
        assert await eventually(is_sent)


async def test_a_node_without_room_is_told_to_the_pod(
    kube: Client,
    controller: PreassignedPods,
    make_source: Make,
    make_claim: Make,
    make_pod: Make,
    settle: Settle,
    told: Told,
) -> None:
    await make_source("a")
    await make_claim("copy", annotations={names.RESCHEDULES: "2"}, **copy_of("a"))
    await make_pod("p", claims=["copy"])
    await settle()
    assert await controller.reconcile("default/p") == pytest.approx(1.0)
    ((about, _, reason, text),) = await told()
    assert (about, reason) == ("p", "InsufficientStorage")
    assert "its claim copy clones claim a, which is there, so no other node is possible" in text


def restored(name: str) -> dict[str, Any]:
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}
    return {"storageClassName": "late", "dataSource": source}


@pytest.mark.parametrize("last", ["pod", "claim", "snapshot", "content", "label", "node"])
async def test_pods_of_restored_claims_go_where_the_snapshot_is_and_are_told(
    kube: Client, controller: PreassignedPods, make_claim: Make, make_pod: Make, settle: Settle,
    running: Running, eventually: Eventually, told: Told, last: str,
) -> None:  # fmt: skip
    labels = {"labels": {MANAGED_BY: "n2"}}
    ref = {"namespace": "default", "name": "monday"}
    spec = {"driver": names.DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": "p/v"}}
    source = {"volumeSnapshotContentName": "kept"}

    async def content() -> None:
        meta = {"name": "kept", **(labels if last != "label" else {})}
        await kube.create(SNAPSHOT_CONTENTS, {"metadata": meta, "spec": {**spec, "volumeSnapshotRef": ref}})

    body = {"metadata": {"name": "monday"}, "spec": {"source": source}}
    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "node": lambda: kube.create(NODES, {"metadata": {"name": "n2", "labels": {names.TOPOLOGY_NODE: "n2"}}}),
        "snapshot": lambda: kube.create(SNAPSHOTS, body, "default"),
        "content": content,
        "claim": lambda: make_claim("copy", **restored("monday")),
        "pod": lambda: make_pod("p", claims=["copy"]),
        "label": lambda: kube.patch(SNAPSHOT_CONTENTS, "kept", {"metadata": labels}),
    }
    await kube.delete(NODES, "n2")

    async def is_sent() -> bool:
        return await sent(kube, "copy") == ["n2"]

    async with running(controller):
        for name, step in steps.items():
            if name not in (last, "label"):
                await step()
        await settle()
        await steps[last]()
        await eventually(is_sent)
        text = "node n2 is selected: its claim copy restores snapshot monday, which is there"
        assert [told_text for _, _, _, told_text in await told()] == [text]
