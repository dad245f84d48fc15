"""Controller and Identity through a real socket: volumes, capacity, lists, and every rejection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tonnage.csi._proto import csi_grpc, csi_pb2
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, CsiTopologyRequirement, VolumeCapability
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.connection import GrpcConnection
from tonnage.kubernetes.api import names
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
MOUNT = [VolumeCapability()]
BLOCK = [VolumeCapability(block=True)]
HERE = {names.TOPOLOGY_NODE: "node-1"}
ELSEWHERE = {names.TOPOLOGY_NODE: "node-2"}


Rejected = Callable[..., Awaitable[CsiError]]


async def test_a_volume_is_made_once_and_deleted_any_number_of_times(client: CsiClient, pool: FakePool) -> None:
    first = await client.create_volume("pvc-1", GIB, MOUNT)
    assert (first.id, first.size, first.topologies) == ("default/pvc-1", GIB, (HERE,))
    assert await client.create_volume("pvc-1", GIB, MOUNT) == first
    assert await client.list_volumes() == [first]
    assert (await client.get_capacity()).available == 99 * GIB
    for _ in range(2):
        await client.delete_volume(first.id)
    assert await pool.list() == []


async def test_the_same_name_with_another_request_is_rejected(rejected: Rejected, client: CsiClient) -> None:
    await client.create_volume("pvc-1", GIB, MOUNT)
    await rejected(client.create_volume("pvc-1", 2 * GIB, MOUNT), Code.ALREADY_EXISTS, "its size is")
    await rejected(client.create_volume("pvc-1", GIB, BLOCK), Code.ALREADY_EXISTS, "file system")
    other_pool = client.create_volume("pvc-1", GIB, MOUNT, parameters={"pool": "fast"})
    await rejected(other_pool, Code.ALREADY_EXISTS, "exists in pool default")


async def test_names_that_are_no_file_names(rejected: Rejected, client: CsiClient, pool: FakePool) -> None:
    volume = await client.create_volume("a name/with ../ things", GIB, MOUNT)
    assert await client.create_volume("a name/with ../ things".replace("../", ".. /"), GIB, MOUNT) != volume
    assert (await pool.list())[0].owner["name"].startswith("a name/with")
    await rejected(client.create_volume("a/../b", GIB, MOUNT), Code.INVALID_ARGUMENT, "..")
    await rejected(client.create_volume("x" * 129, GIB, MOUNT), Code.INVALID_ARGUMENT, "128")


async def test_sizes(rejected: Rejected, client: CsiClient) -> None:
    assert (await client.create_volume("least", 0, MOUNT)).size == 4 << 20, "the pool's own least"
    assert (await client.create_volume("least-fast", 0, MOUNT, parameters={"pool": "fast"})).size == 1 << 20
    assert (await client.create_volume("limited", 0, MOUNT, limit=5 << 20)).size == 4 << 20
    assert (await client.create_volume("exact", GIB, MOUNT, limit=GIB)).size == GIB
    await rejected(client.create_volume("a", GIB, MOUNT, limit=GIB - 1), Code.OUT_OF_RANGE, "limit")
    await rejected(client.create_volume("a", 0, MOUNT, limit=1), Code.OUT_OF_RANGE, "limit")
    await rejected(client.create_volume("a", -1, MOUNT), Code.INVALID_ARGUMENT, "negative")
    await rejected(client.create_volume("a", 1, MOUNT, limit=-1), Code.INVALID_ARGUMENT, "negative")
    await rejected(client.create_volume("a", 101 * GIB, MOUNT), Code.OUT_OF_RANGE, "can never fit")
    full = await rejected(client.create_volume("a", 99 * GIB, MOUNT), Code.RESOURCE_EXHAUSTED, "does not fit")
    assert full.exhausted


async def test_a_volume_is_made_only_where_it_is_wanted(rejected: Rejected, client: CsiClient) -> None:
    async def wanted(requisite: list[dict[str, str]], preferred: list[dict[str, str]]) -> str:
        requirement = CsiTopologyRequirement(requisite, preferred)
        return (await client.create_volume("a", GIB, MOUNT, topology=requirement)).id

    assert await wanted([ELSEWHERE, HERE], [HERE, ELSEWHERE]) == "default/a"
    assert await wanted([], [HERE]) == "default/a"
    assert await wanted([], []) == "default/a"
    for requisite, preferred in (([ELSEWHERE], [ELSEWHERE]), ([], [ELSEWHERE]), ([{**HERE, "zone": "z"}], [])):
        await rejected(wanted(requisite, preferred), Code.RESOURCE_EXHAUSTED, "this is node node-1")


async def test_capacity(rejected: Rejected, client: CsiClient) -> None:
    room = await client.get_capacity({"pool": "fast"}, topology=HERE, capabilities=MOUNT)
    assert room == types.GetCapacityResult(10 * GIB, 10 * GIB, 1)
    nothing = types.GetCapacityResult(0, 0, 0)
    assert await client.get_capacity(topology=ELSEWHERE) == nothing
    assert await client.get_capacity({"pool": "slow"}, topology=ELSEWHERE) == nothing, "that is not for us to say"
    many = client.get_capacity(capabilities=[VolumeCapability(AccessMode(5))])
    await rejected(many, Code.INVALID_ARGUMENT, "MULTI_NODE_MULTI_WRITER", "ReadWriteOnce")
    quota = client.get_capacity(capabilities=[VolumeCapability(mount_flags=["usrquota"])])
    await rejected(quota, Code.INVALID_ARGUMENT, "mount option 'usrquota'")
    assert (await client.get_capacity({"fstype": "xfs"})).available == 100 * GIB, "the old key of Kubernetes"
    assert (await client.get_capacity(capabilities=BLOCK, topology={})).available == 100 * GIB


async def test_a_volume_in_use_is_not_deleted(rejected: Rejected, client: CsiClient, folder: Path) -> None:
    volume = await client.create_volume("a", GIB, MOUNT)
    await client.stage(volume.id, folder / "staging", MOUNT[0])
    await rejected(client.delete_volume(volume.id), Code.FAILED_PRECONDITION, "in use")


async def test_what_is_not_advertised_is_unimplemented(rejected: Rejected, endpoint: DriverEndpoint) -> None:
    connection = GrpcConnection(endpoint.socket)
    controller = csi_grpc.ControllerStub(connection.channel)
    calls: list[tuple[Any, Any]] = [
        (controller.ControllerPublishVolume, csi_pb2.ControllerPublishVolumeRequest()),
        (controller.ControllerUnpublishVolume, csi_pb2.ControllerUnpublishVolumeRequest()),
    ]
    for method, request in calls:
        await rejected(connection.call(method, request, 5), Code.UNIMPLEMENTED, method.name.rsplit("/", 1)[1])
    connection.close()
