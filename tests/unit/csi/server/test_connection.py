"""The connection of clients: made when needed, and again after a disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import (
    VolumeCapability,
)
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code, CsiError
from tonnage_box.testing.wait import wait_until_served

MOUNT = [VolumeCapability()]
Rejected = Callable[..., Awaitable[CsiError]]


async def test_a_driver_that_is_not_there_and_then_is(driver: Driver, folder: Path, rejected: Rejected) -> None:
    socket = folder / "csi.sock"
    async with CsiClient(socket) as client:
        away = await rejected(client.probe(), Code.UNAVAILABLE, str(socket), "No such file")
        assert not away.final
        for _ in range(3):  # each time a new process, so to speak
            async with DriverEndpoint(driver, socket):
                assert await client.probe()
            await rejected(client.probe(), Code.UNAVAILABLE)


async def test_waiting_for_a_driver(driver: Driver, folder: Path, rejected: Rejected) -> None:
    socket = folder / "csi.sock"
    await rejected(wait_until_served(socket, timeout=0.01), Code.UNAVAILABLE, "no server answers")
    waiting = asyncio.ensure_future(wait_until_served(socket, timeout=30))
    await asyncio.sleep(0)
    async with DriverEndpoint(driver, socket):
        await waiting


async def test_many_calls_share_one_connection(client: CsiClient) -> None:
    made = await asyncio.gather(*(client.create_volume(f"v{n}", 1 << 20, MOUNT) for n in range(200)))
    assert len({volume.id for volume in made}) == 200
    assert len(await client.list_volumes(page=7)) == 200
