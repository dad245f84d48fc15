"""Volume capabilities: what a local volume has, and every rejection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tonnage.csi._proto import csi_grpc, csi_pb2
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.connection import GrpcConnection
from tonnage.kubernetes.api import names

GIB = 1 << 30
MOUNT = [VolumeCapability()]
BLOCK = [VolumeCapability(block=True)]
HERE = {names.TOPOLOGY_NODE: "node-1"}
ELSEWHERE = {names.TOPOLOGY_NODE: "node-2"}
Rejected = Callable[..., Awaitable[CsiError]]


@pytest.mark.parametrize(
    ("capabilities", "texts"),
    [
        ([], ["volume_capabilities is missing"]),
        ([VolumeCapability(AccessMode.MULTI_NODE_MULTI_WRITER)], ["MULTI_NODE_MULTI_WRITER", "one node at a time"]),
        ([VolumeCapability(AccessMode.MULTI_NODE_READER_ONLY)], ["MULTI_NODE_READER_ONLY", "one node at a time"]),
        ([VolumeCapability(AccessMode.MULTI_NODE_SINGLE_WRITER)], ["MULTI_NODE_SINGLE_WRITER"]),
        ([VolumeCapability(fstype="zfs")], ["'zfs'", "ext4"]),
        ([VolumeCapability(fstype="ext4"), VolumeCapability(fstype="xfs")], ["one file system", "ext4, xfs"]),
        ([VolumeCapability(), VolumeCapability(block=True)], ["either raw block or a file system"]),
        ([VolumeCapability(mount_flags=["noatime", "bind"])], ["mount option 'bind'", "noatime"]),
        ([VolumeCapability(mount_flags=["ro,remount"])], ["'remount'"]),
        ([VolumeCapability(mount_group="1000")], ["volume_mount_group"]),
    ],
)
async def test_capabilities_that_are_rejected(
    rejected: Rejected, client: CsiClient, capabilities: list[VolumeCapability], texts: list[str]
) -> None:
    await rejected(client.create_volume("a", GIB, capabilities), Code.INVALID_ARGUMENT, *texts)


async def test_capabilities_that_are_taken(rejected: Rejected, client: CsiClient) -> None:
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
    await rejected(client.validate("default/other", MOUNT), Code.NOT_FOUND)
    await rejected(client.validate("foreign", MOUNT), Code.NOT_FOUND, "no volume 'foreign'")
    await rejected(client.validate("", MOUNT), Code.INVALID_ARGUMENT)
    await rejected(client.validate(volume.id, []), Code.INVALID_ARGUMENT)


async def test_an_access_mode_or_type_left_out(rejected: Rejected, endpoint: DriverEndpoint) -> None:
    connection = GrpcConnection(endpoint.socket)
    create = csi_grpc.ControllerStub(connection.channel).CreateVolume
    mount = csi_pb2.VolumeCapability.MountVolume()
    mode = csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
    for capability, text in (
        (csi_pb2.VolumeCapability(mount=mount), "access_mode is missing"),
        (csi_pb2.VolumeCapability(access_mode=mode), "access_type is missing"),
    ):
        request = csi_pb2.CreateVolumeRequest(name="a", volume_capabilities=[capability])
        await rejected(connection.call(create, request, 5), Code.INVALID_ARGUMENT, text)
    await rejected(connection.call(create, csi_pb2.CreateVolumeRequest(), 5), Code.INVALID_ARGUMENT, "name is missing")
    connection.close()
