"""A box as a process of its own, or in this process, on a throw-away data folder."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.kubeconfig import load
from tonnage_box.cleanup import remove
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

ROOT = os.geteuid() == 0


@asynccontextmanager
async def in_process(*, nodes: int, pool: str, runtime: str = "none") -> AsyncIterator[Box]:
    """A started box in this process; everything is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as folder:
        data = DataFolder(Path(folder) / "data")
        made = plan(data, Settings(nodes=nodes, pools=[pool], runtime=runtime))
        box = Box(data, replace(made, max_pods=1000))
        try:
            await box.start()
            yield box
        finally:
            await box.stop()
            await asyncio.to_thread(remove, data)


@dataclass
class Served:
    """A `tonnage up` that runs. ready: seconds from its start until the API server answered."""

    process: asyncio.subprocess.Process
    client: Client
    ready: float


@asynccontextmanager
async def as_process(*arguments: str) -> AsyncIterator[Served]:
    """`tonnage up` with these arguments, from before its start until after its end."""
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as folder:
        data = DataFolder(Path(folder) / "data")
        command = [sys.executable, "-m", "tonnage", "up", "--port", "0", "--data", str(data.path), *arguments]
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        try:
            client = await _answering(data, process)
            yield Served(process, client, time.monotonic() - began)
            await client.close()
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()
            await asyncio.to_thread(remove, data)


async def _answering(data: DataFolder, process: asyncio.subprocess.Process) -> Client:
    while process.returncode is None:
        try:
            client = Client(HttpTransport(load(data.kubeconfig)))
            await client.read("/readyz")
            return client
        except (InvalidError, UnavailableError):
            await asyncio.sleep(0.01)
    raise UnavailableError(f"tonnage up ended with code {process.returncode}")
