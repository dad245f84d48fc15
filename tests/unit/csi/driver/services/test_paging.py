"""Pages of lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tonnage.csi._proto import csi_grpc, csi_pb2
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
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


async def test_pages_stay_right_while_volumes_come_and_go(
    rejected: Rejected, endpoint: DriverEndpoint, client: CsiClient
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
        await rejected(connection.call(lists, csi_pb2.ListVolumesRequest(starting_token=token), 5), Code.ABORTED, token)
    await rejected(connection.call(lists, csi_pb2.ListVolumesRequest(max_entries=-1), 5), Code.INVALID_ARGUMENT, "-1")
    connection.close()
