"""Deleted volumes through the driver: what stays, what is listed, what returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
USE = VolumeCapability(AccessMode.SINGLE_NODE_WRITER)
Rejected = Callable[..., Awaitable[CsiError]]


async def test_a_deleted_volume_is_not_listed_and_returns_once(
    client: FullCsiClient, pool: FakePool, rejected: Rejected
) -> None:
    vid = (await client.create_volume("v", GIB, [USE], parameters={names.UNDELETE: "3600"})).id
    await client.delete_volume(vid)
    await client.delete_volume(vid)
    assert (await client.list_volumes(), [v.name for v in await pool.trash.list()]) == ([], ["v"])
    await client.restore_volume(vid)
    await client.restore_volume(vid)
    assert [v.id for v in await client.list_volumes()] == [vid]
    await client.delete_volume(vid)
    await pool.trash.evict("v")
    await rejected(client.restore_volume(vid), Code.NOT_FOUND)


async def test_a_class_that_cannot_have_it(client: FullCsiClient, rejected: Rejected) -> None:
    parameters = {names.UNDELETE: "3600", "erase": "zero"}
    for call in (client.create_volume("v", GIB, [USE], parameters=parameters), client.get_capacity(parameters)):
        await rejected(call, Code.INVALID_ARGUMENT, "erase=zero erases it: choose one")
    vid = (await client.create_volume("w", GIB, [USE], parameters={names.UNDELETE: "3600"})).id
    await rejected(client.modify_volume(vid, {"erase": "zero"}), Code.INVALID_ARGUMENT, "choose one")
