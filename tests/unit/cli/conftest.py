"""Drivers, in a process or a thread of their own, and the command line in this one."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.api import names
from tonnage.cli.main import main
from tonnage.csi.client.types import VolumeCapability
from tonnage.node.config.driver import DriverConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.pools.config import parse


class Ended(NamedTuple):
    """What a verb printed, and its exit code."""

    code: int
    out: str
    error: str


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Verbs set logging up for a process of their own, over the standard error of the moment."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def tonnage(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs one verb."""

    def run(*arguments: object) -> Ended:
        code = main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return Ended(code, shown.out, shown.err)

    return run


@pytest.fixture
def start_driver() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `tonnage driver` and waits for its socket."""
    started: list[subprocess.Popen[str]] = []

    def start(socket: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tonnage.cli", "driver", "--endpoint", f"unix://{socket}", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        started.append(process)
        deadline = time.monotonic() + 60
        while not socket.exists():
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline, "no socket after 60 s"
            time.sleep(0.01)
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.communicate()


Fill = Callable[[FullCsiClient], Coroutine[Any, Any, None]]


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Starts a driver over pools in a thread, fills it, and tells its socket; all are stopped at the end."""
    started: list[tuple[StandaloneDriver, asyncio.AbstractEventLoop, threading.Thread]] = []

    def start(*pools: str, fill: Fill) -> Path:
        folder = tmp_path_factory.mktemp("s")
        config = DriverConfig(folder / "csi.sock", [parse(pool) for pool in pools], "n1", folder / "state")
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        started.append((driver := StandaloneDriver(config), loop, thread))
        _do(loop, _begin(driver, fill))
        return config.endpoint

    yield start
    for driver, loop, thread in started:
        try:
            _do(loop, driver.stop())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _do(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(work, loop).result(60)


async def _begin(driver: StandaloneDriver, fill: Fill) -> None:
    await driver.start()
    async with FullCsiClient(driver.config.endpoint) as client:
        await fill(client)


@pytest.fixture
def socket(serve: Callable[..., Path]) -> Path:
    """Of a driver over two fake pools, with a volume of a claim and one of nobody; it runs in a thread."""

    async def fill(client: FullCsiClient) -> None:
        record = {names.CSI_PVC_NAME: "data", names.CSI_PVC_NAMESPACE: "shop", names.PARAM_CLUSTER: "c1"}
        await client.create_volume("claimed", 1 << 30, [VolumeCapability()], parameters=record)
        await client.create_volume("plain", 2 << 30, [VolumeCapability()], parameters={"pool": "b"})

    return serve("fake,name=a,size=10Gi", "fake,name=b,size=5Gi", fill=fill)
