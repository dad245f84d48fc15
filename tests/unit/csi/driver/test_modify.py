"""Parameters that can be changed: at creation, later, and what is said of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi._proto import csi_grpc, csi_pb2
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.connection import GrpcConnection
from tonnage.kubernetes.api import names
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
MOUNT = [VolumeCapability()]
CLASS = {"erase": "none"}

Rejected = Callable[..., Awaitable[CsiError]]


async def _erase(pool: FakePool, name: str = "a") -> str:
    return (await pool.get(name)).effective.get("erase", "")


async def test_mutable_parameters_stand_above_those_of_the_class(client: FullCsiClient, pool: FakePool) -> None:
    made = await client.create_volume("a", GIB, MOUNT, parameters=CLASS, mutable_parameters={"erase": "zero"})
    assert await _erase(pool) == "zero"
    assert await client.create_volume("a", GIB, MOUNT, parameters=CLASS, mutable_parameters={"erase": "zero"}) == made
    await client.create_volume("a", GIB, MOUNT, parameters=CLASS, mutable_parameters={"erase": "shred"})
    assert await _erase(pool) == "shred", "a repeated call whose attributes class was changed meanwhile"
    await client.create_volume("a", GIB, MOUNT, parameters=CLASS)
    assert await _erase(pool) == "shred", "what is not named is not changed"


async def test_a_volume_is_modified_and_back_any_number_of_times(client: FullCsiClient, pool: FakePool) -> None:
    volume = await client.create_volume("a", GIB, MOUNT, parameters=CLASS)
    for wanted, now in (("zero", "zero"), ("shred", "shred"), ("", "none")):
        for _ in range(2):
            await client.modify_volume(volume.id, {"erase": wanted, f"{names.CSI_PREFIX}pvc/name": "claim"})
            assert await _erase(pool) == now


@pytest.mark.parametrize(
    ("wanted", "texts"),
    [
        ({"colour": "red"}, ["cannot change the parameter 'colour'", "what can be changed is erase"]),
        ({"erase": "zero", "pool": "fast"}, ["cannot change the parameter 'pool'"]),
        ({"iops": "100"}, ["cannot change the parameter 'iops'"]),
        ({"erase": "burn"}, ["parameter erase: 'burn'"]),
    ],
)
async def test_changes_that_are_rejected_change_nothing(
    client: FullCsiClient, rejected: Rejected, pool: FakePool, wanted: Mapping[str, str], texts: list[str]
) -> None:
    volume = await client.create_volume("a", GIB, MOUNT, parameters=CLASS)
    bad = Code.INVALID_ARGUMENT
    await rejected(client.modify_volume(volume.id, wanted), bad, *texts)
    await rejected(client.create_volume("b", GIB, MOUNT, mutable_parameters=wanted), bad, *texts)
    assert await _erase(pool) == "none"
    assert len(await pool.list()) == 1


async def test_modify_needs_a_volume_and_something_to_change(client: FullCsiClient, rejected: Rejected) -> None:
    volume = await client.create_volume("a", GIB, MOUNT)
    await rejected(client.modify_volume("", {"erase": "zero"}), Code.INVALID_ARGUMENT, "volume_id is missing")
    await rejected(client.modify_volume(volume.id, {}), Code.INVALID_ARGUMENT, "mutable_parameters is missing")
    for vid in ("default/b", "foreign"):
        await rejected(client.modify_volume(vid, {"erase": "zero"}), Code.NOT_FOUND)
    await rejected(client.modify_volume("gone/b", {"erase": "zero"}), Code.UNAVAILABLE)


async def test_mutable_parameters_are_validated(client: FullCsiClient, endpoint: DriverEndpoint) -> None:
    volume = await client.create_volume("a", GIB, MOUNT, parameters=CLASS, mutable_parameters={"erase": "zero"})
    connection = GrpcConnection(endpoint.socket)
    validate = csi_grpc.ControllerStub(connection.channel).ValidateVolumeCapabilities
    mode = csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
    use = csi_pb2.VolumeCapability(access_mode=mode, mount=csi_pb2.VolumeCapability.MountVolume())
    for mutable, text in (
        ({"erase": "zero"}, ""),
        ({}, ""),
        ({"erase": "shred"}, "parameter erase of volume a is zero, requested shred"),
        ({"iops": "5"}, "cannot change the parameter 'iops'"),
    ):
        request = csi_pb2.ValidateVolumeCapabilitiesRequest(
            volume_id=volume.id, volume_capabilities=[use], parameters=CLASS, mutable_parameters=mutable
        )
        answer = await connection.call(validate, request, 5)
        assert text in answer.message
        assert answer.HasField("confirmed") is (not text)
        if not text:
            assert dict(answer.confirmed.mutable_parameters) == mutable
            assert dict(answer.confirmed.parameters) == CLASS
    connection.close()
