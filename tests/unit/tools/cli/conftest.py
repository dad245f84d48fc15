"""Drivers, in a process or a thread of their own, and the command line in this one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import logging_as_before, tonnage  # noqa: F401
from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import names
from tonnage.node.config.driver import DriverConfig
from tonnage.node.plain_driver import StandaloneDriver
from tonnage.storage.pools.config import parse


@pytest.fixture
def start_driver() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `tonnage driver` and waits for its socket."""
    started: list[subprocess.Popen[str]] = []

    def start(socket: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tonnage", "driver", "--endpoint", f"unix://{socket}", *arguments]
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
