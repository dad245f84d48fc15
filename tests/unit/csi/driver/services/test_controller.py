"""Controller and Identity through a real socket: volumes, capacity, lists, and every refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tonnage import __version__
from tonnage.api import names
from tonnage.csi._proto import csi_grpc, csi_pb2
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, CsiTopologyRequirement, VolumeCapability
from tonnage.csi.driver.driver import CONTEXT_CREATED, Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.connection import GrpcConnection
from tonnage.pools.fake import FakePool

GIB = 1 << 30
MOUNT = [VolumeCapability()]
BLOCK = [VolumeCapability(block=True)]
HERE = {names.TOPOLOGY_NODE: "node-1"}
ELSEWHERE = {names.TOPOLOGY_NODE: "node-2"}


Refused = Callable[..., Awaitable[CsiError]]


async def test_identity(client: CsiClient) -> None:
    assert await client.probe()
    manifest = {names.MANIFEST_DEFAULT_POOL: "default", names.MANIFEST_POOLS: "default=fake,fast=fake"}
    assert await client.plugin_info() == types.PluginInfo("csi.tonnage.dev", __version__, manifest)
    assert client.driver == "csi.tonnage.dev"
    assert await client.plugin_capabilities() == {
        "CONTROLLER_SERVICE",
        "VOLUME_ACCESSIBILITY_CONSTRAINTS",
        "EXPANSION_ONLINE",
    }
    assert await client.controller_capabilities() == {
        "CREATE_DELETE_VOLUME",
        "GET_CAPACITY",
        "LIST_VOLUMES",
        "SINGLE_NODE_MULTI_WRITER",
        "GET_VOLUME",
        "VOLUME_CONDITION",
        "CREATE_DELETE_SNAPSHOT",
        "LIST_SNAPSHOTS",
        "GET_SNAPSHOT",
        "CLONE_VOLUME",
        "EXPAND_VOLUME",
        "MODIFY_VOLUME",
    }


async def test_a_volume_is_made_once_and_deleted_any_number_of_times(client: CsiClient, pool: FakePool) -> None:
    first = await client.create_volume("pvc-1", GIB, MOUNT)
    assert (first.id, first.size, first.topologies) == ("default/pvc-1", GIB, (HERE,))
    assert await client.create_volume("pvc-1", GIB, MOUNT) == first
    assert await client.list_volumes() == [first]
    assert (await client.get_capacity()).available == 99 * GIB
    for _ in range(2):
        await client.delete_volume(first.id)
    assert await pool.list() == []


async def test_the_same_name_with_another_request_is_refused(refused: Refused, client: CsiClient) -> None:
    await client.create_volume("pvc-1", GIB, MOUNT)
    await refused(client.create_volume("pvc-1", 2 * GIB, MOUNT), Code.ALREADY_EXISTS, "its size is")
    await refused(client.create_volume("pvc-1", GIB, BLOCK), Code.ALREADY_EXISTS, "file system")
    other_pool = client.create_volume("pvc-1", GIB, MOUNT, parameters={"pool": "fast"})
    await refused(other_pool, Code.ALREADY_EXISTS, "exists in pool default")


async def test_names_that_are_no_file_names(refused: Refused, client: CsiClient, pool: FakePool) -> None:
    volume = await client.create_volume("a name/with ../ things", GIB, MOUNT)
    assert await client.create_volume("a name/with ../ things".replace("../", ".. /"), GIB, MOUNT) != volume
    assert (await pool.list())[0].owner["name"].startswith("a name/with")
    await refused(client.create_volume("a/../b", GIB, MOUNT), Code.INVALID_ARGUMENT, "..")
    await refused(client.create_volume("x" * 129, GIB, MOUNT), Code.INVALID_ARGUMENT, "128")


async def test_sizes(refused: Refused, client: CsiClient) -> None:
    assert (await client.create_volume("least", 0, MOUNT)).size == 4 << 20, "the pool's own least"
    assert (await client.create_volume("least-fast", 0, MOUNT, parameters={"pool": "fast"})).size == 1 << 20
    assert (await client.create_volume("limited", 0, MOUNT, limit=5 << 20)).size == 4 << 20
    assert (await client.create_volume("exact", GIB, MOUNT, limit=GIB)).size == GIB
    await refused(client.create_volume("a", GIB, MOUNT, limit=GIB - 1), Code.OUT_OF_RANGE, "limit")
    await refused(client.create_volume("a", 0, MOUNT, limit=1), Code.OUT_OF_RANGE, "limit")
    await refused(client.create_volume("a", -1, MOUNT), Code.INVALID_ARGUMENT, "negative")
    await refused(client.create_volume("a", 1, MOUNT, limit=-1), Code.INVALID_ARGUMENT, "negative")
    await refused(client.create_volume("a", 101 * GIB, MOUNT), Code.OUT_OF_RANGE, "can never fit")
    full = await refused(client.create_volume("a", 99 * GIB, MOUNT), Code.RESOURCE_EXHAUSTED, "does not fit")
    assert full.exhausted


@pytest.mark.parametrize(
    ("parameters", "texts"),
    [
        ({"pool": "slow"}, ["no pool 'slow'", "default, fast"]),
        ({"kind": "lvm"}, ["kind 'lvm'", "fake"]),
        ({"pool": "fast", "kind": "lvm"}, ["pool 'fast' is of kind fake"]),
        ({"colour": "red"}, ["unknown parameter 'colour'", "pool"]),
        ({"tonnage.dev/rollback": "true"}, ["unknown parameter 'tonnage.dev/rollback'"]),
        ({"eraseafter": "true"}, ["unknown parameter 'eraseafter'"]),
        ({"fstype": "ntfs"}, ["file system 'ntfs'", "ext4, xfs, btrfs"]),
        ({"fsType": "xfs", names.CSI_FSTYPE: "ext4"}, ["one file system", "ext4 and xfs"]),
        ({names.CSI_FSTYPE: "ntfs"}, ["file system 'ntfs'", "ext4, xfs, btrfs"]),
    ],
)
async def test_parameters_that_are_refused(
    refused: Refused, client: CsiClient, parameters: Mapping[str, str], texts: list[str]
) -> None:
    await refused(client.create_volume("a", GIB, MOUNT, parameters=parameters), Code.INVALID_ARGUMENT, *texts)
    await refused(client.get_capacity(parameters), Code.INVALID_ARGUMENT, *texts)


async def test_the_old_name_of_a_kind_is_taken(client: CsiClient, fast: FakePool) -> None:
    await client.create_volume("old", GIB, MOUNT, parameters={"pool": "fast", "kind": "memory"})
    assert (await client.get_capacity({"kind": "memory"})) == (await client.get_capacity({"kind": "fake"}))
    assert [volume.name for volume in await fast.list()] == ["old"]


async def test_parameters_that_are_taken(client: CsiClient, pool: FakePool, fast: FakePool) -> None:
    parameters = {
        "pool": "fast",
        "kind": "fake",
        "erase": "zero",
        names.CSI_FSTYPE: "xfs",
        names.CSI_PVC_NAME: "claim",
        names.CSI_PVC_NAMESPACE: "ns",
        names.CSI_PV_NAME: "pvc-1",
        names.PARAM_CLUSTER: "uid",
        names.PARAM_EPHEMERAL: "true",
        "csi.storage.k8s.io/something-new": "x",
    }
    made = await client.create_volume("pvc-1", GIB, MOUNT, parameters=parameters)
    record = await fast.get("pvc-1")
    assert (made.id, record.fstype, dict(record.parameters)) == ("fast/pvc-1", "xfs", {"erase": "zero"})
    told = dict(made.context)
    assert told.pop(CONTEXT_CREATED)
    assert told == {key: parameters[key] for key in parameters if "/pv" in key or key.startswith("tonnage.dev/")}
    assert record.owner == {**told, "driver": "csi.tonnage.dev"}
    assert (await client.list_volumes())[0].context == made.context
    assert await pool.list() == []


@pytest.mark.parametrize(
    ("capabilities", "texts"),
    [
        ([], ["volume_capabilities is missing"]),
        ([VolumeCapability(AccessMode.MULTI_NODE_MULTI_WRITER)], ["MULTI_NODE_MULTI_WRITER", "live on one node"]),
        ([VolumeCapability(AccessMode.MULTI_NODE_READER_ONLY)], ["MULTI_NODE_READER_ONLY", "live on one node"]),
        ([VolumeCapability(AccessMode.MULTI_NODE_SINGLE_WRITER)], ["MULTI_NODE_SINGLE_WRITER"]),
        ([VolumeCapability(fstype="zfs")], ["'zfs'", "ext4"]),
        ([VolumeCapability(fstype="ext4"), VolumeCapability(fstype="xfs")], ["one file system", "ext4, xfs"]),
        ([VolumeCapability(), VolumeCapability(block=True)], ["either raw block or a file system"]),
        ([VolumeCapability(mount_flags=["noatime", "bind"])], ["mount option 'bind'", "noatime"]),
        ([VolumeCapability(mount_flags=["ro,remount"])], ["'remount'"]),
        ([VolumeCapability(mount_group="1000")], ["volume_mount_group"]),
    ],
)
async def test_capabilities_that_are_refused(
    refused: Refused, client: CsiClient, capabilities: list[VolumeCapability], texts: list[str]
) -> None:
    await refused(client.create_volume("a", GIB, capabilities), Code.INVALID_ARGUMENT, *texts)


async def test_capabilities_that_are_taken(refused: Refused, client: CsiClient) -> None:
    flags = ["noatime", "nodiratime,discard", 'context="system_u:object_r:container_file_t:s0:c1,c2"']
    modes = (
        AccessMode.SINGLE_NODE_WRITER,
        AccessMode.SINGLE_NODE_READER_ONLY,
        AccessMode.SINGLE_NODE_SINGLE_WRITER,
        AccessMode.SINGLE_NODE_MULTI_WRITER,
    )
    both = [VolumeCapability(mode, mount_flags=flags) for mode in modes]
    volume = await client.create_volume("a", GIB, both)
    assert await client.validate(volume.id, both) is None
    assert "MULTI_NODE" in (await client.validate(volume.id, [VolumeCapability(AccessMode(5))]) or "")
    assert await client.validate(volume.id, BLOCK) == "volume a is a file system, requested block"
    await refused(client.validate("default/other", MOUNT), Code.NOT_FOUND)
    await refused(client.validate("foreign", MOUNT), Code.NOT_FOUND, "no volume 'foreign'")
    await refused(client.validate("", MOUNT), Code.INVALID_ARGUMENT)
    await refused(client.validate(volume.id, []), Code.INVALID_ARGUMENT)


async def test_an_access_mode_or_type_left_out(refused: Refused, endpoint: DriverEndpoint) -> None:
    connection = GrpcConnection(endpoint.socket)
    create = csi_grpc.ControllerStub(connection.channel).CreateVolume
    mount = csi_pb2.VolumeCapability.MountVolume()
    mode = csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
    for capability, text in (
        (csi_pb2.VolumeCapability(mount=mount), "access_mode is missing"),
        (csi_pb2.VolumeCapability(access_mode=mode), "access_type is missing"),
    ):
        request = csi_pb2.CreateVolumeRequest(name="a", volume_capabilities=[capability])
        await refused(connection.call(create, request, 5), Code.INVALID_ARGUMENT, text)
    await refused(connection.call(create, csi_pb2.CreateVolumeRequest(), 5), Code.INVALID_ARGUMENT, "name is missing")
    connection.close()


async def test_a_volume_is_made_only_where_it_is_wanted(refused: Refused, client: CsiClient) -> None:
    async def wanted(requisite: list[dict[str, str]], preferred: list[dict[str, str]]) -> str:
        requirement = CsiTopologyRequirement(requisite, preferred)
        return (await client.create_volume("a", GIB, MOUNT, topology=requirement)).id

    assert await wanted([ELSEWHERE, HERE], [HERE, ELSEWHERE]) == "default/a"
    assert await wanted([], [HERE]) == "default/a"
    assert await wanted([], []) == "default/a"
    for requisite, preferred in (([ELSEWHERE], [ELSEWHERE]), ([], [ELSEWHERE]), ([{**HERE, "zone": "z"}], [])):
        await refused(wanted(requisite, preferred), Code.RESOURCE_EXHAUSTED, "this is node node-1")


async def test_capacity(refused: Refused, client: CsiClient) -> None:
    room = await client.get_capacity({"pool": "fast"}, topology=HERE, capabilities=MOUNT)
    assert room == types.GetCapacityResult(10 * GIB, 10 * GIB, 1)
    nothing = types.GetCapacityResult(0, 0, 0)
    assert await client.get_capacity(topology=ELSEWHERE) == nothing
    assert await client.get_capacity({"pool": "slow"}, topology=ELSEWHERE) == nothing, "that is not for us to say"
    many = client.get_capacity(capabilities=[VolumeCapability(AccessMode(5))])
    await refused(many, Code.INVALID_ARGUMENT, "MULTI_NODE_MULTI_WRITER", "ReadWriteOnce")
    quota = client.get_capacity(capabilities=[VolumeCapability(mount_flags=["usrquota"])])
    await refused(quota, Code.INVALID_ARGUMENT, "mount option 'usrquota'")
    assert (await client.get_capacity({"fstype": "xfs"})).available == 100 * GIB, "the old key of Kubernetes"
    assert (await client.get_capacity(capabilities=BLOCK, topology={})).available == 100 * GIB


async def test_pages_stay_right_while_volumes_come_and_go(
    refused: Refused, endpoint: DriverEndpoint, client: CsiClient
) -> None:
    for number in range(5):
        await client.create_volume(f"v{number}", GIB, MOUNT)
    assert [volume.id for volume in await client.list_volumes(page=2)] == [f"default/v{n}" for n in range(5)]
    connection = GrpcConnection(endpoint.socket)
    lists = csi_grpc.ControllerStub(connection.channel).ListVolumes
    first = await connection.call(lists, csi_pb2.ListVolumesRequest(max_entries=2), 5)
    await client.delete_volume("default/v1")
    await client.create_volume("v0a", GIB, MOUNT)
    rest = await connection.call(lists, csi_pb2.ListVolumesRequest(starting_token=first.next_token), 5)
    assert [entry.volume.volume_id for entry in rest.entries] == ["default/v2", "default/v3", "default/v4"]
    assert rest.next_token == ""
    for token in ("no-token", "other/x", "/"):
        await refused(connection.call(lists, csi_pb2.ListVolumesRequest(starting_token=token), 5), Code.ABORTED, token)
    await refused(connection.call(lists, csi_pb2.ListVolumesRequest(max_entries=-1), 5), Code.INVALID_ARGUMENT, "-1")
    connection.close()


async def test_a_volume_of_a_pool_that_is_not_served_is_never_gone(refused: Refused, client: CsiClient) -> None:
    kept = await refused(client.delete_volume("retired/pvc-1"), Code.UNAVAILABLE, "pool 'retired' is not served")
    assert not kept.final
    await client.delete_volume("no form of ours")
    await refused(client.delete_volume(""), Code.INVALID_ARGUMENT, "volume_id is missing")


async def test_a_volume_in_use_is_not_deleted(refused: Refused, client: CsiClient, folder: Path) -> None:
    volume = await client.create_volume("a", GIB, MOUNT)
    await client.stage(volume.id, folder / "staging", MOUNT[0])
    await refused(client.delete_volume(volume.id), Code.FAILED_PRECONDITION, "in use")


async def test_what_is_not_advertised_is_unimplemented(refused: Refused, endpoint: DriverEndpoint) -> None:
    connection = GrpcConnection(endpoint.socket)
    controller = csi_grpc.ControllerStub(connection.channel)
    group = csi_grpc.GroupControllerStub(connection.channel)
    calls: list[tuple[Any, Any]] = [
        (controller.ControllerPublishVolume, csi_pb2.ControllerPublishVolumeRequest()),
        (controller.ControllerUnpublishVolume, csi_pb2.ControllerUnpublishVolumeRequest()),
        (group.GroupControllerGetCapabilities, csi_pb2.GroupControllerGetCapabilitiesRequest()),
    ]
    for method, request in calls:
        await refused(connection.call(method, request, 5), Code.UNIMPLEMENTED, method.name.rsplit("/", 1)[1])
    connection.close()


async def test_several_names_over_the_same_pools(
    refused: Refused, driver: Driver, endpoint: DriverEndpoint, client: CsiClient
) -> None:
    pmem = Driver(driver.node_id, driver.pools, driver.state, name="pmem-csi.intel.com", in_flight=driver.in_flight)
    socket = endpoint.socket.with_name("pmem.sock")
    async with DriverEndpoint(pmem, socket), CsiClient(socket) as other:
        assert (await other.plugin_info()).name == "pmem-csi.intel.com"
        words_of_pmem = {"eraseafter": "false", "kataContainers": "true", "nsmode": "fsdax", "usage": "AppDirect"}
        made = await other.create_volume("theirs", GIB, MOUNT, parameters=words_of_pmem)
        assert dict((await driver.pools["default"].get("theirs")).parameters) == {"erase": "none"}
        bad = other.create_volume("b", GIB, MOUNT, parameters={"eraseafter": "perhaps"})
        await refused(bad, Code.INVALID_ARGUMENT, "eraseafter='perhaps'", "true")
        await client.create_volume("ours", GIB, MOUNT)
        assert [volume.id for volume in await other.list_volumes()] == [made.id]
        assert [volume.id for volume in await client.list_volumes()] == ["default/ours"]
        assert (await other.get_capacity()).available == 98 * GIB
