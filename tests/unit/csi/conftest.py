"""A driver over a fake pool behind a real unix socket, and a client for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests import checks
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.aio.clock import RealClock
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import CsiError
from tonnage.storage.pools.fake.backend import FakePool

GIB = 1 << 30


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path: unix sockets take 107 bytes."""
    return tmp_path_factory.mktemp("c")


@pytest.fixture
def pool() -> FakePool:
    """100 GiB."""
    return FakePool("default", 100 * GIB, smallest=4 << 20, clock=RealClock())


@pytest.fixture
def fast() -> FakePool:
    """A second pool, 10 GiB."""
    return FakePool("fast", 10 * GIB)


@pytest.fixture
def driver(folder: Path, pool: FakePool, fast: FakePool) -> Driver:
    """A driver over both pools."""
    return Driver("node-1", {"default": pool, "fast": fast}, folder / "state")


@pytest.fixture
async def endpoint(driver: Driver, folder: Path) -> AsyncIterator[DriverEndpoint]:
    """The driver, served."""
    async with DriverEndpoint(driver, folder / "csi.sock") as served:
        yield served


@pytest.fixture
async def client(endpoint: DriverEndpoint) -> AsyncIterator[FullCsiClient]:
    """A client of it."""
    async with FullCsiClient(endpoint.socket) as connected:
        yield connected


@pytest.fixture
def rejected() -> Callable[..., Awaitable[CsiError]]:
    """See checks.rejected()."""
    return checks.rejected


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """until(holds): wait for what another process, or the kernel, brings about; 30 s at most."""

    async def wait(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.01)

    return wait
