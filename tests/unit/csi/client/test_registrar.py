"""Other drivers of a node become known to its kubelet, whenever they start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.csi.client.registrar import Registrar
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.kubelet.registration import RegistrationClient

NAME = "other.example.com"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path, and the kubelet's registry in it."""
    made = tmp_path_factory.mktemp("r")
    (made / "reg").mkdir()
    return made


@asynccontextmanager
async def driver(folder: Path, *, registry: Path | None = None) -> AsyncIterator[Path]:
    """Another driver, which serves; its socket."""
    made = Driver("n", {"a": FakePool("a", 1 << 30)}, folder / "state", name=NAME)
    async with DriverEndpoint(made, folder / "other.sock", registry=registry) as endpoint:
        yield endpoint.socket


async def test_a_driver_that_starts_late_is_registered(folder: Path) -> None:
    registrar = Registrar([folder / "other.sock"], folder / "reg", clock=RealClock())
    working = asyncio.ensure_future(registrar.run())
    await asyncio.sleep(0)
    async with driver(folder) as socket:
        async with asyncio.timeout(60):
            await working
        kubelet = RegistrationClient(folder / "reg" / f"{NAME}-reg.sock")
        told = await kubelet.get_info()
        assert (told.name, told.endpoint, told.type) == (NAME, str(socket), "CSIPlugin")
        kubelet.close()
        await registrar.stop()
        await registrar.stop()
    assert not list((folder / "reg").iterdir())


@pytest.mark.virtual_time
async def test_a_socket_without_a_driver_is_reported_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    working = asyncio.ensure_future(Registrar([folder / "other.sock"], folder / "reg", clock=RealClock()).run())
    await asyncio.sleep(1)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    await asyncio.sleep(100)
    working.cancel()
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith(f"driver not registered yet: start it at this socket socket={folder}/other.sock error=")


async def test_a_driver_with_a_registrar_keeps_it(folder: Path) -> None:
    async with driver(folder, registry=folder / "reg"):
        registrar = Registrar([folder / "other.sock"], folder / "reg", clock=RealClock())
        async with asyncio.timeout(60):
            await registrar.run()
        await registrar.stop()
        assert [path.name for path in (folder / "reg").iterdir()] == [f"{NAME}-reg.sock"]


async def test_a_name_that_is_taken_is_not_registered(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with driver(folder):
        async with asyncio.timeout(60):
            await Registrar([folder / "other.sock"], folder / "reg", taken=[NAME], clock=RealClock()).run()
    assert not list((folder / "reg").iterdir())
    assert f"another driver of this node has the name {NAME}" in caplog.text
