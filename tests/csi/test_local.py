"""A driver without a socket answers as it does on one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tonnage.csi.client import CsiClient
from tonnage.csi.driver import Driver
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.local import local_client
from tonnage.csi.words import VolumeCapability
from tonnage.pools.base import Volume, VolumeRequest
from tonnage.pools.memory import MemoryPool

WRITER = VolumeCapability()


class _Slow(MemoryPool):
    """Makes a volume when it is let."""

    let = asyncio.Event()

    async def create(self, request: VolumeRequest) -> Volume:
        """See Pool."""
        await self.let.wait()
        return await super().create(request)


def client(tmp_path: Path, pool: MemoryPool) -> CsiClient:
    return local_client(Driver("node-1", {"scratch": pool}, tmp_path, default_pool="scratch"))


async def test_a_volume_comes_and_goes(tmp_path: Path) -> None:
    pool = MemoryPool("scratch", 100, directories=False)
    local = client(tmp_path, pool)
    assert (await local.plugin_info()).name == local.driver == "csi.tonnage.dev"
    made = await local.create_volume("one", 60, [WRITER])
    assert (await local.get_capacity()).available == 40
    with pytest.raises(CsiError, match="40") as refused:
        await local.create_volume("two", 60, [WRITER])
    assert refused.value.code is Code.RESOURCE_EXHAUSTED
    await local.delete_volume(made.id)
    await local.delete_volume(made.id)
    assert (await local.get_capacity()).available == 100
    local.close()


async def test_a_volume_has_one_call_at_a_time(tmp_path: Path) -> None:
    pool = _Slow("scratch", 100, directories=False)
    local = client(tmp_path, pool)
    first = asyncio.ensure_future(local.create_volume("one", 60, [WRITER]))
    await asyncio.sleep(0)
    with pytest.raises(CsiError, match="operation pending") as refused:
        await local.create_volume("one", 60, [WRITER])
    assert refused.value.code is Code.ABORTED
    pool.let.set()
    assert (await first).size == 60


async def test_what_is_refused_at_the_edge(tmp_path: Path) -> None:
    local = client(tmp_path, MemoryPool("scratch", 100, directories=False))
    with pytest.raises(CsiError) as refused:
        await local.create_volume("", 60, [WRITER])
    assert refused.value.code is Code.INVALID_ARGUMENT
