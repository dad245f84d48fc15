"""A driver without a socket answers as it does on one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.local import client_of, local_client
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import services
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.dispatch import Calls
from tonnage.storage.pools.base.contract import PoolVolume, VolumeRequest
from tonnage.storage.pools.fake.backend import FakePool

WRITER = VolumeCapability()


class _Slow(FakePool):
    """Makes a volume when it is let."""

    def __init__(self) -> None:
        super().__init__("scratch", 100, directories=False)
        self.let, self.asked = asyncio.Event(), list[str]()

    async def create(self, request: VolumeRequest) -> PoolVolume:
        """See Pool."""
        self.asked.append(request.name)
        await self.let.wait()
        return await super().create(request)


def client(tmp_path: Path, pool: FakePool) -> CsiClient:
    return local_client(Driver("node-1", {"scratch": pool}, tmp_path, default_pool="scratch"))


async def test_a_volume_comes_and_goes(tmp_path: Path) -> None:
    pool = FakePool("scratch", 100, directories=False)
    local = client(tmp_path, pool)
    assert (await local.plugin_info()).name == local.driver == "csi.tonnage.dev"
    made = await local.create_volume("one", 60, [WRITER])
    assert (await local.get_capacity()).available == 40
    with pytest.raises(CsiError, match="40") as rejected:
        await local.create_volume("two", 60, [WRITER])
    assert rejected.value.code is Code.RESOURCE_EXHAUSTED
    await local.delete_volume(made.id)
    await local.delete_volume(made.id)
    assert (await local.get_capacity()).available == 100
    local.close()


async def test_a_volume_has_one_call_at_a_time(tmp_path: Path) -> None:
    pool = _Slow()
    local = client(tmp_path, pool)
    first = asyncio.ensure_future(local.create_volume("one", 60, [WRITER]))
    await asyncio.sleep(0)
    with pytest.raises(CsiError, match="operation pending") as rejected:
        await local.create_volume("one", 60, [WRITER])
    assert rejected.value.code is Code.ABORTED
    pool.let.set()
    assert (await first).size == 60


async def test_what_has_begun_goes_on_when_its_caller_goes_away(tmp_path: Path) -> None:
    pool = _Slow()
    local = client(tmp_path, pool)
    first = asyncio.ensure_future(local.create_volume("one", 60, [WRITER]))
    while not pool.asked:
        await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(CsiError, match="operation pending"):
        await local.create_volume("one", 60, [WRITER])
    pool.let.set()
    while not await pool.list():
        await asyncio.sleep(0)
    assert (await local.create_volume("one", 60, [WRITER])).size == 60


async def test_time_is_up_and_the_end_of_a_driver(tmp_path: Path) -> None:
    pool = _Slow()
    driver = Driver("node-1", {"scratch": pool}, tmp_path, default_pool="scratch")
    calls = Calls("test", services(driver), driver.in_flight, driver.clock)
    local = client_of(calls, tmp_path / "csi.sock")
    with pytest.raises(CsiError) as rejected:
        await local.create_volume("one", 60, [WRITER], timeout=0.01)
    assert rejected.value.code is Code.DEADLINE_EXCEEDED
    second = asyncio.ensure_future(local.create_volume("two", 30, [WRITER]))
    while "two" not in pool.asked:
        await asyncio.sleep(0)
    await calls.close()
    with pytest.raises(CsiError, match="the driver has stopped"):
        await second


async def test_what_is_rejected_at_the_edge(tmp_path: Path) -> None:
    local = client(tmp_path, FakePool("scratch", 100, directories=False))
    with pytest.raises(CsiError) as rejected:
        await local.create_volume("", 60, [WRITER])
    assert rejected.value.code is Code.INVALID_ARGUMENT
