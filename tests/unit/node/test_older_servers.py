"""Who deletes by absence, by name, against an API server that is older, empty, or another cluster's: nothing goes.

Each row has a volume, snapshot or attachment of which that API server knows nothing, or that it knows as it was before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.restored import Backup, Front
from tests.unit.controller.attach.world import AttachWorld, serving
from tests.unit.node.groupworld import GroupNodeWorld

from tonnage.base.errors import ApiNotFoundError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.node.history import EVERY
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.node import FakeNode, fake_node
from tonnage_box.testing.objects import Objects
from tonnage_box.testing.wait import eventually

pytestmark = pytest.mark.virtual_time
GIB = 1 << 30
HOUR, DAY = 3600.0, 86400.0
CLUSTER, ANOTHER = "cluster-1", "cluster-2"
CLASSES: Mapping[str, Mapping[str, Any]] = {
    "late": {},
    "retained": {"reclaimPolicy": "Retain"},
    "finished": {"parameters": {names.RECLAIM_FINISHED: "true"}},
    "undelete": {"parameters": {names.UNDELETE: str(30 * 24) + "h"}},
}


@dataclass
class _World:
    """A node before an API server, and what a person and pods do."""

    front: Front
    client: Client
    node: FakeNode
    contents: GroupNodeWorld
    backups: dict[str, Backup] = field(default_factory=dict)

    async def claim(self, name: str, storage: str = "late") -> str:
        """A claim of which a pod had the volume; returns that."""
        await Objects(self.client).claim(name, storageClassName=storage)
        return await self.use(name)

    async def use(self, claim: str) -> str:
        """Select the node for a claim, and have a pod use its volume; returns that."""
        await self.node.select(claim)
        await eventually(lambda: self.node.is_bound(claim))
        volume = (await self.node.claim(claim)).spec.volume_name
        await self.node.use(volume)
        return volume

    async def held(self) -> set[str]:
        """Volumes, with trash, and snapshots of the pool."""
        records = self.node.pool.fake.records.volumes
        return {*records, *(one.name for one in await self.node.pool.snapshots.list())}


# Rows: what the older state may have, and what was made since, which must stay


async def _nothing(_world: _World) -> None:
    pass


async def _a_claim(world: _World) -> None:
    await world.claim("data")


async def _a_retained_claim(world: _World) -> None:
    await world.claim("data", "retained")


async def _a_pod(world: _World) -> None:
    """With an ephemeral volume."""
    await Objects(world.client).scratch_pod("app", "1Gi")
    await world.use("app-v0")


async def _a_pod_that_will_finish(world: _World) -> None:
    """It has not finished yet: its class would have its data deleted then."""
    await Objects(world.client).scratch_pod("job", "1Gi", storage_class="finished")
    await world.use("job-v0")
    await world.client.patch(kinds.PODS, "job", {"status": {"phase": "Running"}}, "default", subresource="status")


async def _a_released_volume(world: _World) -> None:
    """Released with policy Delete, while there was no agent."""
    await world.claim("data")
    await world.node.kill_agent()
    await world.node.release("data")


async def _given_to_another_claim(world: _World) -> None:
    (volume,) = (await world.client.list(kinds.VOLUMES)).items
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "other", "uid": "uid-of-other"}
    spec = {"persistentVolumeReclaimPolicy": "Retain", "claimRef": ref}
    await world.client.patch(kinds.VOLUMES, volume.metadata.name, {"spec": spec})
    await world.client.patch(kinds.VOLUMES, volume.metadata.name, {"status": {"phase": "Bound"}}, subresource="status")
    await world.node.start_agent(sweep_every=DAY)
    await world.node.use(volume.metadata.name)


async def _a_snapshot(world: _World) -> None:
    await world.claim("data")
    snapshot = await world.contents.snapshot("daily")
    await world.contents.ready(await world.contents.content(snapshot, volume=await _handle(world, "data")))


async def _a_snapshot_group(world: _World) -> None:
    handles = await world.contents.pair(world.node)
    group = await world.contents.group()
    content = await world.contents.group_ready(await world.contents.group_content(group, handles))
    for index in range(len(handles)):
        await world.contents.member(content, index)


async def _handle(world: _World, claim: str) -> str:
    return f"{world.node.pool.name}/{(await world.node.claim(claim)).spec.volume_name}"


async def _a_flexvolume(world: _World) -> None:
    """A PersistentVolume that a person wrote; the volume is made when a pod mounts it."""
    flex = {"driver": "tonnage.dev/local"}
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "flexVolume": flex}
    meta = {
        "name": "by-hand",
        "labels": {names.NODE_LABEL: names.label_value(world.node.name)},
        "annotations": {names.PROVISIONED_BY: names.DRIVER},
    }
    spec |= {"persistentVolumeReclaimPolicy": "Delete"}
    made = await world.client.create(kinds.VOLUMES, {"metadata": meta, "spec": spec})
    name = names.flex_volume(made.metadata.uid)
    async with CsiClient(world.node.driver.endpoints[0]) as driver:
        await driver.create_volume(name, GIB, [VolumeCapability()], parameters={names.PARAM_CLUSTER: CLUSTER})
    await world.node.use(name)


async def _trash(world: _World) -> None:
    """A user deletes a claim, and has 30 days to want it back."""
    volume = await world.claim("data", "undelete")
    await world.node.release("data")

    async def is_trash() -> bool:
        return await world.node.volumes() == [] and volume in await world.held()

    await eventually(is_trash)


Act = Callable[[_World], Awaitable[None]]
ROWS: Mapping[str, tuple[Act, Act]] = {
    "sweep: a claim": (_nothing, _a_claim),
    "sweep: a retained claim": (_nothing, _a_retained_claim),
    "sweep: an ephemeral claim": (_nothing, _a_pod),
    "reclaim": (_a_released_volume, _given_to_another_claim),
    "finished pods": (_nothing, _a_pod_that_will_finish),
    "snapshots": (_nothing, _a_snapshot),
    "snapshot groups": (_nothing, _a_snapshot_group),
    "FlexVolume": (_nothing, _a_flexvolume),
    "trash": (_nothing, _trash),
}


# API servers


async def _prepare(client: Client) -> None:
    await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    for name, more in CLASSES.items():
        await Objects(client).storage_class(name, **more)


async def _older(world: _World, how: str) -> None:
    await world.front.restore(world.backups[how])


async def _empty(world: _World, _how: str) -> None:
    await world.front.restore(None)
    await _prepare(world.client)
    await world.client.create(kinds.NODES, {"metadata": {"name": world.node.name}})


SERVERS: Mapping[str, tuple[Callable[[_World, str], Awaitable[None]], str]] = {
    "a day older": (_older, CLUSTER),
    "an hour older": (_older, CLUSTER),
    "a claim older": (_older, CLUSTER),
    "empty": (_empty, CLUSTER),
    "another cluster's": (_empty, ANOTHER),
}


@pytest.fixture
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[_World]:
    front = Front(LoopClock(), Random(1))
    await front.restore(None)
    client = Client(front.line())
    await _prepare(client)
    folder: Path = tmp_path_factory.mktemp("n")
    async with fake_node(Client(front.line()), folder, "20Gi", sweep_every=DAY) as node:
        contents = GroupNodeWorld(client, Objects(client).claim)
        yield _World(front, client, node, contents)
    await front.stop()


@pytest.mark.parametrize(
    "server", [pytest.param(name, marks=pytest.mark.slow if "older" in name else ()) for name in SERVERS]
)
@pytest.mark.parametrize("row", ROWS)
async def test_nothing_is_deleted_for_want_of_its_objects(world: _World, row: str, server: str) -> None:
    before, since = ROWS[row]
    serve, cluster = SERVERS[server]
    await asyncio.sleep(60)  # the agent has marked the Node
    await before(world)
    world.backups["a day older"] = world.front.back_up()
    await asyncio.sleep(DAY - HOUR)
    world.backups["an hour older"] = world.front.back_up()
    await asyncio.sleep(HOUR)
    world.backups["a claim older"] = world.front.back_up()
    await since(world)
    held = await world.held()
    assert held
    await asyncio.sleep(2 * EVERY)
    await serve(world, server)
    await asyncio.sleep(60)
    assert world.node.tasks[-1].done(), "it starts anew"
    await world.node.start_agent(cluster_uid=cluster, sweep_every=DAY)
    await asyncio.sleep(DAY)
    assert await world.held() == held


@pytest.mark.parametrize("server", ["older", "empty"])
async def test_nothing_is_detached_for_want_of_its_objects(server: str) -> None:
    """The storage says that the volume is attached; the API server knows neither attachment nor volume."""
    front = Front(LoopClock(), Random(1))
    await front.restore(None)
    world = AttachWorld(Client(front.line()))
    await world.node("n1")
    backup = front.back_up()
    async with serving(Client(front.line()), world.storage, LoopClock(), every=HOUR):
        await world.volume("v")
        await world.attached(await world.attach("n1"))
        await front.restore(backup if server == "older" else None)
        await asyncio.sleep(2 * DAY)
        with pytest.raises(ApiNotFoundError):
            await world.kube.get(kinds.VOLUMES, "v")
    async with serving(Client(front.line()), world.storage, LoopClock(), every=HOUR):
        await asyncio.sleep(2 * DAY)
    assert world.storage.calls == ["publish h-v id-n1"]
    await front.stop()
