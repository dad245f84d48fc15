"""A volume that is still in use when it is to be deleted: the driver waits for its user without holding it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tonnage.base.errors import InUseError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30
MOUNT = VolumeCapability()
Rejected = Callable[..., Awaitable[CsiError]]


class Held(FakePool):
    """A pool that finds a volume in use as long as it is staged. looked: how often delete() found it so."""

    def __init__(self) -> None:
        super().__init__("held", 10 * GIB)
        self.staged: set[str] = set()
        self.looked: asyncio.Queue[None] = asyncio.Queue()

    async def stage(self, name: str, path: Path, *, options: Sequence[str] = (), fills: bool = False) -> None:
        await super().stage(name, path, options=options, fills=fills)
        self.staged.add(name)

    async def unstage(self, name: str, path: Path) -> None:
        await super().unstage(name, path)
        self.staged.discard(name)

    async def delete(self, name: str, *, wait: bool = True) -> None:
        assert not wait, "the driver's key would be held meanwhile"
        if name in self.staged:
            self.looked.put_nowait(None)
            raise InUseError(f"volume {name} is in use")
        await super().delete(name, wait=wait)


async def test_a_delete_that_waits_for_its_user_does_not_keep_the_user_from_unstaging(folder: Path) -> None:
    pool, client = Held(), CsiClient(folder / "csi.sock")
    driver = Driver("n", {"held": pool}, folder / "state", default_pool="held")
    async with DriverEndpoint(driver, client.socket), client:
        volume = (await client.create_volume("v", GIB, [MOUNT])).id
        await client.stage(volume, folder / "s", MOUNT)
        deleting = asyncio.create_task(client.delete_volume(volume))
        await pool.looked.get()
        await client.unstage(volume, folder / "s")
        await deleting
        assert await client.list_volumes() == []


async def test_a_delete_gives_up_when_the_user_stays(folder: Path, rejected: Rejected) -> None:
    pool, client = Held(), CsiClient(folder / "csi.sock")
    driver = Driver("n", {"held": pool}, folder / "state", default_pool="held")
    async with DriverEndpoint(driver, client.socket), client:
        volume = (await client.create_volume("v", GIB, [MOUNT])).id
        await client.stage(volume, folder / "s", MOUNT)
        await rejected(client.delete_volume(volume), Code.FAILED_PRECONDITION, "volume v is in use")
        assert pool.looked.qsize() == 4
