"""kill -9 at any line of a group snapshot: the next start thaws, and the group is made anew or deleted."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need
from tests.unit.storage.pools.core.test_group import xfs

from tonnage.csi.client.local import local_client
from tonnage.csi.client.types import ListedGroup
from tonnage.csi.driver.driver import Driver
from tonnage.csi.errors import CsiError
from tonnage.host import filesystem, mount
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.image import consistent_copy

__all__ = ["xfs"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
MI = 1 << 20
POINTS = int(os.environ.get("TONNAGE_KILL_POINTS", "16"))
VOLUMES = (("images", "a"), ("images", "b"), ("subvolumes", "v"), ("subvolumes", "w"))
IDS = [f"{pool}/{name}" for pool, name in VOLUMES]
Killers = Callable[..., Any]


class Node:
    """Two pools with two staged volumes each."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.folder = folder
        self._specs = {
            "images": f"image:{images / 'images'},name=images,size=9Gi,sparse=yes,overcommit=yes",
            "subvolumes": f"btrfs:{folder / 'subvolumes'},name=subvolumes,size=9Gi,sparse=yes,overcommit=yes",
        }

    def staged(self, name: str) -> Path:
        """Where a volume is."""
        return self.folder / f"staged-{name}"

    def write(self) -> None:
        """Write to each volume, in a process that is ended when it hangs."""
        for _, name in VOLUMES:
            file = str(self.staged(name) / "file")
            subprocess.run([sys.executable, "-c", f"open({file!r}, 'a').write('x')"], check=True, timeout=60)

    def run(self, work: Callable[[Driver], Any]) -> Any:
        """Run work on a driver with open pools, as a process that was just started."""

        async def main() -> Any:
            pools: dict[str, Pool] = {name: make(parse(spec), disks=Disks()) for name, spec in self._specs.items()}
            for pool in pools.values():
                await pool.open()
            try:
                return await work(Driver("n", pools, self.folder / "state"))
            finally:
                for pool in pools.values():
                    await pool.close()

        return asyncio.run(main())

    def killed(self, at: int, killers: Killers) -> int:
        """Make the group in a child that is killed at that line; how many lines it lived when it was not."""
        report = self.folder / "lines"
        report.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                killer = killers(at, ("pools", "host"))

                async def work(driver: Driver) -> None:
                    killer.start()
                    await local_client(driver).create_group_snapshot("g", IDS)
                    sys.settrace(None)

                self.run(work)
                report.write_text(str(killer.count))
            os._exit(0)
        os.waitpid(child, 0)
        return int(report.read_text()) if report.exists() else 0


@pytest.fixture
def node(real_folder: Path, xfs: Path) -> Iterator[Node]:
    """A node with four volumes, staged and written."""
    need("mkfs.btrfs")
    made = Node(real_folder, xfs)

    async def begin(driver: Driver) -> None:
        for pool, name in VOLUMES:
            made.staged(name).mkdir()
            await driver.pools[pool].create(VolumeRequest(name, 20 * MI))
            await driver.pools[pool].stage(name, made.staged(name))

    made.run(begin)
    yield made

    async def end(driver: Driver) -> None:
        for pool, name in VOLUMES:
            await driver.pools[pool].unstage(name, made.staged(name))

    made.run(end)
    assert not [entry for entry in mount.mounts() if "staged-" in entry.target]


async def _left(driver: Driver) -> list[str]:
    return [snapshot.name for pool in driver.pools.values() for snapshot in await pool.snapshots.list()]


async def _delete(driver: Driver) -> None:
    await local_client(driver).delete_group_snapshot("g")
    assert await _left(driver) == []


async def _make(driver: Driver) -> ListedGroup:
    group = await local_client(driver).create_group_snapshot("g", IDS)
    assert sorted(member.volume_id for member in group.snapshots) == IDS
    assert len(await _left(driver)) == len(IDS)
    return group


async def _settle(driver: Driver) -> None:
    """What is there after a kill is the group, or none; the rest is made anew, or deleted.

    All members are none as well, until it is recorded that they were taken in time.
    """
    client, found = local_client(driver), None
    if len(await _left(driver)) == len(IDS):
        with suppress(CsiError):
            found = await client.get_group_snapshot("g")
    else:
        with pytest.raises(CsiError, match="no group snapshot 'g'"):
            await client.get_group_snapshot("g")
    assert await _make(driver) == (found or await client.get_group_snapshot("g")), "a complete one is not made again"
    await _delete(driver)


class Suicide:
    """Kills its process when a snapshot is taken of the second image: both are frozen, and others are taken."""

    count = 0

    def __init__(self, *_: object) -> None:
        self._copy = consistent_copy.copy

    def start(self) -> None:
        consistent_copy.copy = self._or_die

    def _or_die(self, image: Path, *more: Any, **options: Any) -> tuple[int, bool]:
        if image.name == "b.img":
            os.kill(os.getpid(), signal.SIGKILL)
        return self._copy(image, *more, **options)


@pytest.mark.parametrize("work", [_delete, _settle], ids=["deleted", "made anew"])
def test_killed_while_frozen(node: Node, work: Callable[[Driver], Any]) -> None:
    assert node.killed(0, Suicide) == 0
    marks = node.folder / "disk" / "images"
    assert sorted(mark.name for mark in marks.glob(".frozen-*")) == [".frozen-a", ".frozen-b"]
    for name in ("a", "b"):
        with opened(node.staged(name)) as fd, pytest.raises(OSError, match="busy"):
            filesystem.freeze(fd)
    assert len(node.run(_left)) == 3, "its start thaws; what was made is there"
    assert not list(marks.glob(".frozen-*"))
    node.write()
    node.run(work)


def test_killed_at_any_line(node: Node, line_killer: Killers) -> None:
    lines = node.killed(0, line_killer)
    assert lines > 100
    node.run(_delete)
    for number, at in enumerate(sorted(random.Random(lines).sample(range(1, lines), min(POINTS, lines - 1)))):
        node.killed(at, line_killer)
        try:
            node.run(_settle if number % 2 else _delete)
            node.write()
            assert not list(node.folder.glob("disk/images/.frozen-*"))
            folder = node.folder / "subvolumes" / "mounted" / ".snapshots"
            assert not [entry for entry in (os.listdir(folder) if folder.exists() else ()) if "together" in entry]
        except BaseException as failure:
            failure.add_note(f"killed at line {at} of {lines}")
            raise
