"""Snapshots, clones, growth and health through a real socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi._proto import csi_grpc, csi_pb2
from tonnage.csi.client.types import ContentSource, Health, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.connection import GrpcConnection
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.fake.backend import FEATURES, FakePool

GIB = 1 << 30
MOUNT = [VolumeCapability()]
Rejected = Callable[..., Awaitable[CsiError]]


PLAIN = replace(FEATURES, snapshots=False, clones=False, expansion=False)
"""Of a pool that has none of it."""


async def test_a_snapshot_is_made_once_and_deleted_any_number_of_times(client: FullCsiClient, pool: FakePool) -> None:
    volume = await client.create_volume("a", GIB, MOUNT)
    snapshot = await client.create_snapshot("s", volume.id, parameters={"csi.storage.k8s.io/volumesnapshot/name": "x"})
    assert (snapshot.id, snapshot.volume_id, snapshot.size, snapshot.ready) == ("default/s", "default/a", GIB, True)
    assert snapshot.created == pytest.approx((await pool.snapshots.get("s")).created)
    assert await client.create_snapshot("s", volume.id) == snapshot
    assert await client.get_snapshot(snapshot.id) == await client.find_snapshot(snapshot.id) == snapshot
    assert await client.find_snapshot("default/other") is None
    assert (await client.get_capacity()).available == 98 * GIB
    await client.delete_volume(volume.id)
    assert await client.list_snapshots() == [snapshot], "it outlives its volume"
    for _ in range(2):
        await client.delete_snapshot(snapshot.id)
    assert await pool.snapshots.list() == []


async def test_a_snapshot_tells_its_volumes_cluster(client: FullCsiClient, pool: FakePool) -> None:
    volume = await client.create_volume("a", GIB, MOUNT, parameters={"tonnage.dev/cluster": "theirs"})
    await client.create_snapshot("s", volume.id)
    assert (await pool.snapshots.get("s")).owner["tonnage.dev/cluster"] == "theirs"


async def test_snapshots_that_are_rejected(rejected: Rejected, client: FullCsiClient) -> None:
    await client.create_volume("a", GIB, MOUNT)
    await client.create_volume("b", GIB, MOUNT)
    await client.create_volume("f", GIB, MOUNT, parameters={"pool": "fast"})
    await client.create_snapshot("s", "default/a")
    await rejected(client.create_snapshot("s", "default/b"), Code.ALREADY_EXISTS, "is of volume a")
    await rejected(client.create_snapshot("s", "fast/f"), Code.ALREADY_EXISTS, "exists in pool default")
    await rejected(client.create_snapshot("t", "default/nobody"), Code.NOT_FOUND)
    await rejected(client.create_snapshot("t", "no form of ours"), Code.NOT_FOUND)
    await rejected(client.create_snapshot("t", "retired/a"), Code.UNAVAILABLE, "not served")
    await rejected(client.create_snapshot("", "default/a"), Code.INVALID_ARGUMENT, "name is missing")
    await rejected(client.create_snapshot("t", ""), Code.INVALID_ARGUMENT, "source_volume_id is missing")
    named = client.create_snapshot("t", "default/a", parameters={"color": "red"})
    await rejected(named, Code.INVALID_ARGUMENT, "unknown parameter 'color'")
    await rejected(client.delete_snapshot(""), Code.INVALID_ARGUMENT, "snapshot_id is missing")
    await rejected(client.get_snapshot("default/nobody"), Code.NOT_FOUND)
    await client.delete_snapshot("no form of ours")


async def test_lists_are_filtered_and_paged(
    rejected: Rejected, endpoint: DriverEndpoint, client: FullCsiClient, driver: Driver
) -> None:
    for name in ("a", "b"):
        await client.create_volume(name, GIB, MOUNT)
        for number in range(3):
            await client.create_snapshot(f"{name}{number}", f"default/{name}")
    everything = await client.list_snapshots(page=2)
    assert [snapshot.id for snapshot in everything] == [f"default/{n}{i}" for n in "ab" for i in range(3)]
    assert await client.list_snapshots(volume_id="default/b", page=2) == everything[3:]
    assert await client.list_snapshots(snapshot_id="default/a1") == [everything[1]]
    assert await client.list_snapshots(volume_id="default/nobody") == []
    assert await client.list_snapshots(snapshot_id="foreign") == []
    connection = GrpcConnection(endpoint.socket)
    lists = csi_grpc.ControllerStub(connection.channel).ListSnapshots
    for token in ("no-token", "other/x"):
        bad = connection.call(lists, csi_pb2.ListSnapshotsRequest(starting_token=token), 5)
        await rejected(bad, Code.ABORTED, token)
    negative = connection.call(lists, csi_pb2.ListSnapshotsRequest(max_entries=-1), 5)
    await rejected(negative, Code.INVALID_ARGUMENT, "-1")
    connection.close()
    other = Driver(driver.node_id, driver.pools, driver.state, name="other.example", in_flight=driver.in_flight)
    socket = endpoint.socket.with_name("other.sock")
    async with DriverEndpoint(other, socket), FullCsiClient(socket) as theirs:
        assert await theirs.list_snapshots() == [], "snapshots belong to the driver that made them"


@pytest.mark.parametrize("kind", ["snapshot", "volume"])
async def test_volumes_are_filled_from_what_there_is(rejected: Rejected, client: FullCsiClient, kind: str) -> None:
    await client.create_volume("a", GIB, MOUNT, parameters={"pool": "fast", "fstype": "xfs"})
    await client.create_snapshot("s", "fast/a")
    source = ContentSource(snapshot_id="fast/s") if kind == "snapshot" else ContentSource(volume_id="fast/a")
    made = await client.create_volume("b", 2 * GIB, MOUNT, source=source)
    assert (made.id, made.size, made.content) == ("fast/b", 2 * GIB, source), "content stays in its pool"
    assert (await client.create_volume("c", 0, MOUNT, source=source)).size == GIB
    await client.delete_snapshot("fast/s")
    await client.delete_volume("fast/a")
    assert await client.create_volume("b", 2 * GIB, MOUNT, source=source) == made, "repeated after its source is gone"
    await rejected(client.create_volume("d", GIB, MOUNT, source=source), Code.NOT_FOUND, f"no {kind}")
    assert await client.list_volumes() == [made, (await client.get_volume("fast/c"))[0]]


async def test_sources_that_are_rejected(rejected: Rejected, client: FullCsiClient) -> None:
    await client.create_volume("a", 2 * GIB, MOUNT)
    source = ContentSource(volume_id="default/a")
    await rejected(client.create_volume("b", GIB, MOUNT, source=source), Code.OUT_OF_RANGE, "less than that of its")
    block = [VolumeCapability(block=True)]
    await rejected(client.create_volume("b", 2 * GIB, block, source=source), Code.INVALID_ARGUMENT, "a file system")
    other = client.create_volume("b", 2 * GIB, MOUNT, source=source, parameters={"pool": "fast"})
    await rejected(other, Code.INVALID_ARGUMENT, "is in pool default", "choose fast")
    xfs = client.create_volume("b", 2 * GIB, [VolumeCapability(fstype="xfs")], source=source)
    await rejected(xfs, Code.INVALID_ARGUMENT, "ext4", "xfs")
    await rejected(client.create_volume("a", 2 * GIB, MOUNT, source=source), Code.ALREADY_EXISTS, "made from nothing")
    foreign = client.create_volume("b", 2 * GIB, MOUNT, source=ContentSource(snapshot_id="foreign"))
    await rejected(foreign, Code.NOT_FOUND, "no snapshot 'foreign'")
    empty = client.create_volume("b", 2 * GIB, MOUNT, source=ContentSource())
    await rejected(empty, Code.INVALID_ARGUMENT, "neither a snapshot nor a volume")


async def test_volumes_grow_and_never_shrink(rejected: Rejected, client: FullCsiClient, folder: Path) -> None:
    volume, staging = await client.create_volume("a", GIB, MOUNT), folder / "staging"
    await client.stage(volume.id, staging, MOUNT[0])
    early = client.expand_on_node(volume.id, staging, size=2 * GIB)
    await rejected(early, Code.OUT_OF_RANGE, "ControllerExpandVolume first")
    for _ in range(2):
        expanded = await client.expand_volume(volume.id, 2 * GIB, capability=MOUNT[0])
        assert (expanded.size, expanded.on_node) == (2 * GIB, False)
    for _ in range(2):
        assert await client.expand_on_node(volume.id, staging, size=2 * GIB, capability=MOUNT[0]) == 2 * GIB
    assert not (await client.expand_volume(volume.id, GIB)).on_node, "large enough, and grown"
    await rejected(client.expand_volume(volume.id, GIB, limit=GIB), Code.OUT_OF_RANGE, "never made smaller")
    await rejected(client.expand_volume(volume.id, 101 * GIB), Code.OUT_OF_RANGE, "100Gi")
    await client.create_volume("b", 97 * GIB, MOUNT)
    await rejected(client.expand_volume(volume.id, 4 * GIB), Code.RESOURCE_EXHAUSTED, "cannot grow by 2Gi")
    await rejected(client.expand_volume("default/nobody", GIB), Code.NOT_FOUND)
    await rejected(client.expand_on_node("default/nobody", staging), Code.NOT_FOUND)
    await rejected(client.expand_on_node(volume.id, folder / "nowhere"), Code.NOT_FOUND, "nothing is at")
    await rejected(client.expand_on_node(volume.id, ""), Code.INVALID_ARGUMENT, "volume_path is missing")
    block = client.expand_volume(volume.id, 3 * GIB, capability=VolumeCapability(block=True))
    await rejected(block, Code.INVALID_ARGUMENT, "a file system")


async def test_health_is_told(rejected: Rejected, client: FullCsiClient, folder: Path) -> None:
    volume = await client.create_volume("a", GIB, MOUNT)
    assert await client.get_volume(volume.id) == (volume, Health(message="the volume is well"))
    await client.stage(volume.id, folder / "staging", MOUNT[0])
    usage = await client.volume_stats(volume.id, folder / "staging")
    assert (usage.abnormal, usage.message) == (False, "the volume is well")
    await rejected(client.get_volume("default/nobody"), Code.NOT_FOUND)


async def test_a_driver_advertises_what_one_of_its_pools_has(rejected: Rejected, folder: Path) -> None:
    plain = FakePool("plain", 10 * GIB, features=PLAIN)
    alone = Driver("node-1", {"plain": plain}, folder / "state")
    async with DriverEndpoint(alone, folder / "csi.sock"), FullCsiClient(folder / "csi.sock") as client:
        absent = {"CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS", "CLONE_VOLUME", "EXPAND_VOLUME"}
        assert not absent & await client.controller_capabilities()
        assert "EXPAND_VOLUME" not in await client.node_capabilities()
        assert "EXPANSION_ONLINE" not in await client.plugin_capabilities()
    await plain.create(VolumeRequest("a", GIB))
    both = Driver("node-1", {"plain": plain, "rich": FakePool("rich", GIB)}, folder / "state")
    async with DriverEndpoint(both, folder / "csi.sock"), FullCsiClient(folder / "csi.sock") as client:
        assert absent <= await client.controller_capabilities()
        clone = client.create_volume("b", GIB, MOUNT, source=ContentSource(volume_id="plain/a"))
        await rejected(clone, Code.INVALID_ARGUMENT, "pool 'plain'", "does not offer")
        await rejected(client.expand_volume("plain/a", 2 * GIB), Code.INVALID_ARGUMENT, "does not offer larger volumes")
        await rejected(client.create_snapshot("s", "plain/a"), Code.INVALID_ARGUMENT, "does not offer snapshots")
