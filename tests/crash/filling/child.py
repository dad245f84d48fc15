"""A driver over one real pool that makes one volume with content, and kills itself at a step.

Steps are counted: before and after each of the calls that change the volume, its mounts or its record, and before each
chunk that is written.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from tonnage.csi.client.local import local_client
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver import filling
from tonnage.csi.driver.driver import Driver
from tonnage.csi.errors import Code, CsiError
from tonnage.host import libc, mount, tree
from tonnage.kubernetes.api import names
from tonnage.storage.content import fill as content_fill
from tonnage.storage.content.hosts import AllowedHost, FetchPolicy
from tonnage.storage.content.spec import UrlSpec, encode
from tonnage.storage.images.tar_reader import TarReader
from tonnage.storage.pools import config
from tonnage.storage.pools.core.pool import Pool

SIZE = 32 << 20


class Steps:
    """Counts steps, and kills the process at one; 0: at none."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)
        if asyncio.iscoroutinefunction(function):

            @wraps(function)
            async def waits(*args: Any, **more: Any) -> Any:
                self.step()
                answer = await function(*args, **more)
                self.step()
                return answer

            setattr(owner, name, waits)
            return

        @wraps(function)
        def works(*args: Any, **more: Any) -> Any:
            self.step()
            answer = function(*args, **more)
            self.step()
            return answer

        setattr(owner, name, works)


def driver_of(described: str, folder: Path, port: int) -> tuple[Pool, Driver]:
    """A driver that may fetch from localhost."""
    pool = config.make(config.parse(described.format(home=folder / "pool")))
    hosts = FetchPolicy((AllowedHost("localhost", port),))
    return pool, Driver("node", {"p": pool}, folder / "state", fetch=hosts)


async def make(driver: Driver, port: int, digest: str) -> None:
    """Ask for the volume until it is answered."""
    content = UrlSpec(f"http://localhost:{port}/x.tar", digest, "tar")
    client = local_client(driver)
    while True:
        try:
            await client.create_volume(
                "v", SIZE, [VolumeCapability()], parameters={names.PARAM_CONTENT: encode(content)}
            )
        except CsiError as failure:
            if failure.code not in (Code.ABORTED, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
                raise
        else:
            return


async def fill(described: str, folder: Path, port: int, digest: str, at: int) -> int:
    """Make the volume, in a process of its own; the number of steps when it was not killed."""
    steps = Steps(at)
    for owner, name in (
        (Pool, "create"), (Pool, "stage"), (Pool, "unstage"), (Pool, "annotate"), (libc, "syncfs"), (tree, "empty"),
        (filling, "_fill"), (content_fill, "_fill"), (TarReader, "data"), (mount, "umount"),
    ):  # fmt: skip
        steps.around(owner, name)
    pool, driver = driver_of(described, folder, port)
    await pool.open()
    await make(driver, port, digest)
    await driver.fillings.close()
    await pool.close()
    return steps.count
