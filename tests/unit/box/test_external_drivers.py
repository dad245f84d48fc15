"""Drivers of others: what --csi-endpoint may say, and their registration."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tonnage.aio.clock import RealClock
from tonnage.box.external_drivers import Registrar, endpoints
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.registration import RegistrationClient
from tonnage.errors import Invalid
from tonnage.pools.fake import MemoryPool

ONE, TWO = ["node-1"], ["node-1", "node-2"]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path."""
    return tmp_path_factory.mktemp("f")


def _driver(folder: Path, name: str) -> DriverEndpoint:
    return DriverEndpoint(Driver("node-1", {"p": MemoryPool("p", 1 << 30)}, folder, name=name), folder / "csi.sock")


@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [
        ("/run/a.sock", ONE, {"node-1": [Path("/run/a.sock")]}),
        ("unix:///run/a.sock", ONE, {"node-1": [Path("/run/a.sock")]}),
        ("unix:/run/a.sock", ONE, {"node-1": [Path("/run/a.sock")]}),
        ("node-2=/run/a.sock", TWO, {"node-2": [Path("/run/a.sock")]}),
        ("node-2=unix:///run/a.sock", TWO, {"node-2": [Path("/run/a.sock")]}),
        ("/run/a=b.sock", ONE, {"node-1": [Path("/run/a=b.sock")]}),
        ("a.sock", ONE, {"node-1": [Path(os.getcwd(), "a.sock")]}),
    ],
)
def test_a_socket_and_its_node(text: str, nodes: list[str], expected: dict[str, list[Path]]) -> None:
    assert endpoints([text], nodes) == expected


@pytest.mark.parametrize(
    ("texts", "nodes", "reason"),
    [
        (["/a.sock"], TWO, r"there are 2 nodes.*node-1=/a\.sock"),
        (["node-3=/a.sock"], TWO, "no node 'node-3', only node-1, node-2"),
        (["node-1=/a.sock", "node-2=/a.sock"], TWO, "already serves node-1"),
        (["/a.sock", "unix:///a.sock"], ONE, "already serves node-1"),
        (["node-1="], ONE, "want .NODE=.SOCKET"),
        ([""], ONE, "want .NODE=.SOCKET"),
        (["/" + "x" * 120], ONE, "Linux takes 107"),
    ],
)
def test_what_makes_no_sense_is_refused(texts: list[str], nodes: list[str], reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        endpoints(texts, nodes)


async def test_a_driver_is_registered_as_soon_as_it_answers(folder: Path) -> None:
    registry = folder / "registry"
    registry.mkdir()
    registrar = Registrar(folder / "csi.sock", registry, taken=(), clock=RealClock())
    running = asyncio.create_task(registrar.run())
    await asyncio.sleep(0)
    async with _driver(folder, "other.example.org"):
        await running
        client = RegistrationClient(registry / "other.example.org-reg.sock")
        told = await client.get_info()
        client.close()
        await registrar.stop()

    assert (told.name, told.endpoint) == ("other.example.org", str(folder / "csi.sock"))
    assert not list(registry.iterdir())


async def test_a_name_that_is_taken_is_not_registered(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = folder / "registry"
    registry.mkdir()
    async with _driver(folder, "csi.tonnage.dev"):
        await Registrar(folder / "csi.sock", registry, taken=["csi.tonnage.dev"], clock=RealClock()).run()

    assert not list(registry.iterdir())
    assert "another driver of this node has the name csi.tonnage.dev" in caplog.text
