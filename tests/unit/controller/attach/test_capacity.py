"""Capacity that all nodes share: one object for each class, which every node matches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.unit.controller.attach.world import AttachWorld, Served, serving
from tests.unit.controller.snapshots.world import Recording

from tonnage.base.aio.clock import RealClock
from tonnage.controller.attach.drivers import AttachEndpoint, AttachingDrivers
from tonnage.csi.client.client import CsiClient
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CSI_DRIVERS, NAMESPACES, STORAGE_CLASSES, VOLUMES
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.capacity.object import numbers, reason
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.testing.network_driver import NETWORK_DRIVER
from tonnage_box.testing.wait import eventually

GI = 1 << 30


@pytest.fixture
def world(kube: Client) -> AttachWorld:
    return AttachWorld(kube)


@pytest.fixture
def writes(api_server: ApiServer) -> Recording:
    return Recording(api_server.transport("system:admin"))


@pytest.fixture
async def served(world: AttachWorld, writes: Recording) -> AsyncIterator[Served]:
    await world.kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await world.driver(storageCapacity=True)
    await _class(world, "net")
    async with serving(Client(writes), world.storage, RealClock()) as found:
        yield found


async def _class(world: AttachWorld, name: str, **more: Any) -> None:
    body = {"metadata": {"name": name}, "provisioner": NETWORK_DRIVER, **more}
    await world.kube.create(STORAGE_CLASSES, body)


async def _published(world: AttachWorld) -> Sequence[CSIStorageCapacity]:
    return (await world.kube.list(CAPACITIES)).items


async def _until(world: AttachWorld, *free: int) -> None:
    async def shown() -> bool:
        return sorted(numbers(one)[0] for one in await _published(world)) == sorted(free)

    await eventually(shown)


async def test_each_class_has_one_object_that_every_node_matches(world: AttachWorld, served: Served) -> None:
    await _class(world, "other")
    await _until(world, 100 * GI, 100 * GI)
    for one in await _published(world):
        assert one.node_topology is not None
        assert (one.node_topology.match_labels, one.node_topology.match_expressions) == ({}, [])
        assert [owner.name for owner in one.metadata.owner_references] == [NETWORK_DRIVER]
        assert names.NODE_LABEL not in one.metadata.labels
    assert {one.storage_class_name for one in await _published(world)} == {"net", "other"}


async def test_the_numbers_follow_the_volumes(world: AttachWorld, served: Served, writes: Recording) -> None:
    await _until(world, 100 * GI)
    await world.volume("v")
    await _until(world, 99 * GI)
    del world.storage.volumes["h-v"]
    await world.kube.delete(VOLUMES, "v")
    await _until(world, 100 * GI)
    changes = [write for write in writes.writes if "csistoragecapacities" in write]
    assert len(changes) == 3, changes


async def test_a_class_that_goes_and_an_object_that_somebody_removes(world: AttachWorld, served: Served) -> None:
    await _until(world, 100 * GI)
    (one,) = await _published(world)
    await world.kube.delete(CAPACITIES, one.metadata.name, one.metadata.namespace)
    await _until(world, 100 * GI)
    await world.kube.patch(CAPACITIES, one.metadata.name, {"capacity": "1Ti"}, one.metadata.namespace)
    await _until(world, 100 * GI)
    await world.kube.delete(STORAGE_CLASSES, "net")
    await _until(world)


async def test_a_class_that_the_driver_rejects_says_why(world: AttachWorld, served: Served) -> None:
    await _until(world, 100 * GI)

    def fault(call: str) -> None:
        raise CsiError(Code.INVALID_ARGUMENT, "no such backend")

    world.storage.fault = fault
    await _class(world, "wrong", parameters={"backend": "none"})
    await _until(world, 0, 100 * GI)
    assert {reason(one) for one in await _published(world)} == {"", "no such backend"}


async def test_nothing_is_published_for_a_driver_that_kubernetes_does_not_ask(
    world: AttachWorld, served: Served
) -> None:
    await _until(world, 100 * GI)
    await world.kube.patch(CSI_DRIVERS, NETWORK_DRIVER, {"spec": {"storageCapacity": False}})
    await _until(world)


async def test_objects_of_others_stay(world: AttachWorld, served: Served) -> None:
    body = {"storageClassName": "net", "nodeTopology": {}, "capacity": "5Gi"}
    labels = {names.CAPACITY_MANAGED_BY: "external-provisioner", names.CAPACITY_DRIVER: NETWORK_DRIVER}
    await world.kube.create(CAPACITIES, {"metadata": {"name": "theirs", "labels": labels}, **body}, "default")
    await _until(world, 5 * GI, 100 * GI)
    await world.kube.delete(STORAGE_CLASSES, "net")
    await _until(world, 5 * GI)


async def test_objects_stay_while_the_driver_has_not_answered(
    world: AttachWorld, served: Served, writes: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller and the driver start together: pods must be scheduled meanwhile."""
    await _until(world, 100 * GI)
    (before,) = await _published(world)
    real, answers = AttachingDrivers._connect, asyncio.Event()

    async def late(drivers: AttachingDrivers, endpoint: AttachEndpoint, client: CsiClient) -> None:
        await answers.wait()
        await real(drivers, endpoint, client)

    monkeypatch.setattr(AttachingDrivers, "_connect", late)
    writes.writes.clear()
    async with serving(Client(writes), world.storage, RealClock()):
        await asyncio.sleep(0.3)
        assert [one.metadata.uid for one in await _published(world)] == [before.metadata.uid]
        await _class(world, "other")
        answers.set()
        await _until(world, 100 * GI, 100 * GI)
    assert [line for line in writes.writes if line.startswith("DELETE")] == []


async def test_objects_of_a_driver_that_is_not_served_any_more_go(world: AttachWorld, served: Served) -> None:
    await _until(world, 100 * GI)
    body = {"metadata": {"name": "gone"}, "provisioner": "gone.example.com"}
    await world.kube.create(STORAGE_CLASSES, body)
    (mine,) = await _published(world)
    labels = dict(mine.metadata.labels)
    old = {"metadata": {"name": "old", "labels": labels}, "storageClassName": "gone", "nodeTopology": {}}
    await world.kube.create(CAPACITIES, old, names.SYSTEM_NAMESPACE)
    await _until(world, 100 * GI)
