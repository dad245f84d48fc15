"""PersistentVolumes that lack the finalizer get it, slowly, and once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tonnage.base.aio.tasks import Background
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.client.informer import Informer
from tonnage.node.reclaim.finalizers import PAUSE
from tonnage_box.testing.node import FakeNode, MakeNode
from tonnage_box.testing.objects import MakeClaim, MakeVolume
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
NAMES = [f"data-{number}" for number in range(12)]


async def _bound(node: FakeNode, make_claim: MakeClaim, eventually: Eventually, name: str) -> str:
    """A bound claim; the name of its volume."""
    await make_claim(name, "1Gi", storageClassName="late")
    await node.select(name)
    await eventually(lambda: node.is_bound(name))
    return (await node.claim(name)).spec.volume_name


async def _finalizers(node: FakeNode, volume: str) -> list[str]:
    return (await node.client.get(kinds.VOLUMES, volume)).metadata.finalizers


def _has_it(node: FakeNode, *volumes: str, is_there: bool = True) -> Any:
    async def ask() -> bool:
        return all([(names.PROVISIONER_FINALIZER in await _finalizers(node, v)) is is_there for v in volumes])

    return ask


async def test_those_of_an_earlier_version_get_it_with_one_write_each_and_a_pause_between(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    volumes = [await _bound(node, make_claim, eventually, name) for name in NAMES]
    await node.kill_agent()
    for volume in volumes:
        await node.client.patch(kinds.VOLUMES, volume, {"metadata": {"finalizers": [names.PV_PROTECTION]}})
    writes, loop = list[tuple[str, float]](), asyncio.get_running_loop()
    watched, tasks = Informer(node.client, kinds.VOLUMES), Background("watch")

    def changed(old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if old is not None and new is not None:
            writes.append((new.metadata.name, loop.time()))

    watched.cache.on_change(changed)
    tasks.start(watched.run())
    await watched.wait_synced()
    await node.start_agent()
    await eventually(_has_it(node, *volumes))
    assert await _finalizers(node, volumes[0]) == [names.PV_PROTECTION, names.PROVISIONER_FINALIZER]
    await asyncio.sleep(3600)
    assert sorted(name for name, _ in writes) == sorted(volumes)
    assert writes[-1][1] - writes[0][1] > (len(volumes) - 2) * PAUSE
    await node.kill_agent()
    await node.start_agent()
    await asyncio.sleep(3600)
    assert len(writes) == len(volumes), "what is as it should be is not written"
    await tasks.close()


async def test_it_comes_and_goes_with_the_policy(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    volume = await _bound(node, make_claim, eventually, "data")
    for policy, is_there in (("Retain", False), ("Delete", True), ("Retain", False)):
        spec = {"spec": {"persistentVolumeReclaimPolicy": policy}}
        await node.client.patch(kinds.VOLUMES, volume, spec)
        await eventually(_has_it(node, volume, is_there=is_there))
    await asyncio.sleep(3600)
    assert await _finalizers(node, volume) == [names.PV_PROTECTION]


async def test_others_are_left_alone(
    make_node: MakeNode, make_volume: MakeVolume, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node()
    async with CsiClient(node.driver.endpoints[0]) as person:
        made = await person.create_volume("by-hand", GIB, [VolumeCapability()])
    elsewhere = [{"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": ["node-2"]}]}]
    by_us = {names.PROVISIONED_BY: names.DRIVER}
    ref = {"claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "x", "uid": "y"}}
    cases: dict[str, tuple[dict[str, str], str, dict[str, Any]]] = {
        "by-hand": ({}, "Bound", {}),
        "far": (by_us, "Bound", {"nodeAffinity": {"required": {"nodeSelectorTerms": elsewhere}}}),
        "foreign": (by_us, "Bound", {"csi": {"driver": "other.example.com", "volumeHandle": "h"}}),
        "kept": (by_us, "Bound", {"persistentVolumeReclaimPolicy": "Retain"}),
        "free": (by_us, "Available", {"claimRef": None}),
    }
    for name, (notes, phase, spec) in cases.items():
        usual = {"csi": {"driver": names.DRIVER, "volumeHandle": made.id}, "persistentVolumeReclaimPolicy": "Delete"}
        given = {key: value for key, value in {**usual, **ref, **spec}.items() if value is not None}
        await make_volume(name, labels={names.NODE_LABEL: "node-1"}, annotations=notes, **given)
        await node.client.patch(kinds.VOLUMES, name, {"status": {"phase": phase}}, subresource="status")
    await _bound(node, make_claim, eventually, "data")
    await asyncio.sleep(3600)
    for name in cases:
        assert names.PROVISIONER_FINALIZER not in await _finalizers(node, name), name
