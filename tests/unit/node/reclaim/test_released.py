"""Volumes whose claim is gone: what is deleted, when, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import UnavailableError
from tonnage.base.observe.metrics import REGISTRY
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakePod, MakeVolume
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
_ELSEWHERE = {"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["node-2"]}


class _Failing(FakePool):
    """delete() fails while `why` is set."""

    why = ""

    async def delete(self, name: str, *, wait: bool = True) -> None:
        if self.why:
            raise UnavailableError(self.why)
        await super().delete(name, wait=wait)


async def _bound(node: FakeNode, make_claim: MakeClaim, eventually: Eventually, name: str = "data", **spec: Any) -> Any:
    await make_claim(name, "4Gi", storageClassName="late", **spec)
    await node.select(name)
    await eventually(lambda: node.is_bound(name))
    claim = await node.claim(name)
    return await node.client.get(kinds.VOLUMES, claim.spec.volume_name)


def _counted(what: str) -> float:
    """A metric of deletions of class late, so far."""
    return REGISTRY.get_sample_value(f"controller_persistentvolume_delete_{what}", {"class": "late"}) or 0.0


def _has_no_volume(node: FakeNode) -> Any:
    async def ask() -> bool:
        return bool(await node.volumes() == [])

    return ask


async def test_a_persistent_volume_goes_with_its_claim(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    volume = await _bound(node, make_claim, eventually)
    assert names.PROVISIONER_FINALIZER in volume.metadata.finalizers
    name = (await node.release("data")).metadata.name

    async def asked() -> bool:
        now = await node.client.get(kinds.VOLUMES, name)
        return now.metadata.deleting and names.PROVISIONER_FINALIZER not in now.metadata.finalizers

    await eventually(asked)
    assert await node.volumes() == []
    await node.client.patch(kinds.VOLUMES, name, {"metadata": {"finalizers": None}})
    assert await node.is_gone(kinds.VOLUMES, name)


async def test_a_persistent_volume_that_a_person_deletes_first_waits_for_its_claim(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    volume = await _bound(node, make_claim, eventually)
    await node.client.delete(kinds.VOLUMES, volume.metadata.name)
    assert len(await node.volumes()) == 1
    await node.release("data")
    await eventually(_has_no_volume(node))


async def test_retain_keeps_the_volume_and_lets_its_pv_go(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    volume = await _bound(node, make_claim, eventually)
    policy = {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
    await node.client.patch(kinds.VOLUMES, volume.metadata.name, policy)

    async def free() -> bool:
        now = await node.client.get(kinds.VOLUMES, volume.metadata.name)
        return names.PROVISIONER_FINALIZER not in now.metadata.finalizers

    await eventually(free)
    await node.release("data")
    other = await _bound(node, make_claim, eventually, "other")
    assert set(await node.volumes()) == {volume.metadata.name, other.metadata.name}


async def test_a_volume_that_cannot_be_reached_is_never_reported_deleted(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    pool = _Failing("scratch", 10 * GIB, directories=False)
    node = await make_node(pool=pool)
    volume = await _bound(node, make_claim, eventually)
    deleted, failed, measured = map(_counted, ("total", "failed_total", "duration_seconds_count"))
    pool.why = "the disk is offline"
    await node.release("data")

    async def told() -> Any:
        return [t for about, reason, t in await all_events() if reason == "VolumeFailedDelete"]

    assert (await eventually(told))[0] == "rpc error: code = Unavailable desc = the disk is offline"
    assert not (await node.client.get(kinds.VOLUMES, volume.metadata.name)).metadata.deleting
    assert _counted("failed_total") > failed
    assert (_counted("total"), _counted("duration_seconds_count")) == (deleted, measured)
    await node.kill_agent()
    await node.start_agent()
    pool.why = ""
    await eventually(_has_no_volume(node))

    async def is_counted() -> bool:
        return (_counted("total"), _counted("duration_seconds_count")) == (deleted + 1, measured + 1)

    await eventually(is_counted)


async def test_a_pv_that_is_removed_by_force_before_its_volume_leaves_it(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    """Its policy may have been changed since the watch showed it."""
    pool = _Failing("scratch", 10 * GIB, directories=False)
    node = await make_node(pool=pool)
    await scratch_pod("app", "4Gi")
    await node.select("app-v0")
    await eventually(lambda: node.is_bound("app-v0"))
    name = (await node.claim("app-v0")).spec.volume_name
    await node.use(name)
    pool.why = "busy"
    await node.release("app-v0")
    await node.client.delete(kinds.VOLUMES, name)
    await node.client.patch(kinds.VOLUMES, name, {"metadata": {"finalizers": None}})
    assert await node.is_gone(kinds.VOLUMES, name)
    pool.why = ""

    async def told() -> bool:
        return [orphan.id for orphan in node.agents[0].sweep.orphans] == [f"scratch/{name}"]

    await eventually(told)
    assert await node.volumes() == [name]


async def test_a_pv_asks_for_a_sweep_only_if_its_volume_was_not_deleted_before(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    lost = list[str]()
    await _bound(node, make_claim, eventually)
    node.agents[0].reclaimer.on_lost = lambda: lost.append("")
    name = (await node.release("data")).metadata.name

    async def is_let_go() -> bool:
        now = await node.client.get(kinds.VOLUMES, name)
        return now.metadata.deleting and names.PROVISIONER_FINALIZER not in now.metadata.finalizers

    async def is_told() -> bool:
        return bool(lost)

    await eventually(is_let_go)
    await node.client.patch(kinds.VOLUMES, name, {"metadata": {"finalizers": None}})
    other = (await _bound(node, make_claim, eventually, "other")).metadata.name
    assert lost == []
    await node.client.delete(kinds.VOLUMES, other)
    await node.client.patch(kinds.VOLUMES, other, {"metadata": {"finalizers": None}})
    await eventually(is_told)
    assert len(lost) == 1


async def test_a_pv_of_a_driver_that_is_not_here_vanishes_without_a_failure(
    make_node: MakeNode, make_volume: MakeVolume, make_claim: MakeClaim, eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    node = await make_node()
    await make_volume(
        "foreign",
        labels={names.NODE_LABEL: "node-1"},
        annotations={names.PROVISIONED_BY: "other.example.com"},
        csi={"driver": "other.example.com", "volumeHandle": "h"},
        claimRef={"kind": "PersistentVolumeClaim", "namespace": "default", "name": "x", "uid": "y"},
        persistentVolumeReclaimPolicy="Delete",
    )
    await node.client.patch(kinds.VOLUMES, "foreign", {"status": {"phase": "Released"}}, subresource="status")
    await _bound(node, make_claim, eventually)
    await node.client.delete(kinds.VOLUMES, "foreign")
    await node.client.patch(kinds.VOLUMES, "foreign", {"metadata": {"finalizers": None}})
    await _bound(node, make_claim, eventually, "later")
    assert [record.getMessage() for record in caplog.records if "foreign" in record.getMessage()] == []


async def test_a_pv_that_only_lost_its_label_keeps_its_volume(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    pool = _Failing("scratch", 30 * GIB, directories=False)
    node = await make_node(pool=pool)
    volume = await _bound(node, make_claim, eventually)
    pool.why = "busy"
    await node.release("data")
    await node.client.patch(kinds.VOLUMES, volume.metadata.name, {"metadata": {"labels": {names.NODE_LABEL: None}}})
    pool.why = ""
    await _bound(node, make_claim, eventually, "other")
    assert volume.metadata.name in await node.volumes()


async def test_foreign_and_handmade_volumes_are_left_alone(
    make_node: MakeNode, make_volume: MakeVolume, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    async with CsiClient(node.driver.endpoints[0]) as person:
        made = await person.create_volume("by-hand", GIB, [VolumeCapability()])
    source = {"csi": {"driver": names.DRIVER, "volumeHandle": made.id}}
    ref = {"claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "x", "uid": "y"}}
    spec = {**source, **ref, "persistentVolumeReclaimPolicy": "Delete"}
    await make_volume("by-hand", labels={names.NODE_LABEL: "node-1"}, **spec)
    await node.client.patch(kinds.VOLUMES, "by-hand", {"status": {"phase": "Released"}}, subresource="status")
    await make_volume(
        "far",
        labels={names.NODE_LABEL: "node-1"},
        annotations={names.PROVISIONED_BY: names.DRIVER},
        nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [_ELSEWHERE]}]}},
        **spec,
    )
    await node.client.patch(kinds.VOLUMES, "far", {"status": {"phase": "Released"}}, subresource="status")
    await _bound(node, make_claim, eventually)
    assert "by-hand" in await node.volumes()
    assert not (await node.client.get(kinds.VOLUMES, "far")).metadata.deleting
