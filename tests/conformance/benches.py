"""What the contract of pools is held against: a bench for each kind that needs no guest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.programs import need

from tonnage.base.errors import TonnageError
from tonnage.host import mount
from tonnage.storage.pools import kinds
from tonnage.storage.pools.base.reservation import Disks
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

MI = 1024**2
SIZE = 30716 * MI
ELSEWHERE = os.environ.get("TONNAGE_TEST_POOL", "")
"""A pool as `lvm:vg0` that the contract is held against instead: tests/vm does so in user-mode Linux."""


@dataclass(frozen=True)
class BenchKind:
    """How a pool of a kind is made for a test.

    description: of (folder). prepare: what must be in the folder first. tool: a program that it needs.
    """

    description: Callable[[Path], str]
    tool: str = ""
    prepare: Callable[[Path], None] = lambda _folder: None

    @property
    def mounts(self) -> bool:
        """Whether volumes are mounted, and outlive the process."""
        return bool(self.tool)


def _in_folder(kind: str) -> Callable[[Path], str]:
    return lambda folder: f"{kind}:{folder / 'pool'},name=p,size=30716Mi,sparse=yes,overcommit=yes"


def _prepare_disks(folder: Path) -> None:
    """What a static pool finds: file systems of the sizes that the tests ask for."""
    (folder / "pool").mkdir(mode=0o755)
    for size in (5, 20):
        for number in range(10):
            disk = folder / "pool" / f"d{size}-{number}"
            disk.mkdir()
            mount.mount("disk", disk, "tmpfs", [f"size={size}m"])


BENCHES: dict[str, BenchKind] = {
    "fake": BenchKind(lambda _folder: "fake,name=p,size=30716Mi"),
    "image": BenchKind(_in_folder("image"), "mkfs.ext4"),
    "btrfs": BenchKind(_in_folder("btrfs"), "mkfs.btrfs"),
    "static": BenchKind(lambda folder: f"static:{folder / 'pool'},name=p", "mkfs.ext4", _prepare_disks),
}
GUESTS = {"lvm", "quota", "pmem"}
"""Kinds that tests/vm holds against the contract."""


@dataclass
class Bench:
    """A pool under test, a folder beside it, and how to start it anew."""

    pool: Pool
    folder: Path
    of: BenchKind

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return self.pool.kind

    @property
    def mounts(self) -> bool:
        """Whether volumes are mounted, and outlive the process."""
        return self.of.mounts

    @property
    def fixed(self) -> bool:
        """Whether volumes are disks of sizes that somebody else chose."""
        return kinds.get(self.kind).is_prepared

    async def settled(self) -> None:
        """Wait until deleted volumes have given their room back."""
        async with asyncio.timeout(60):
            while await self.pool.erasing():
                await asyncio.sleep(0.01)

    async def again(self) -> Pool:
        """What a new process would see."""
        if self.mounts:
            await self.pool.close()
            self.pool = _make(self.of, self.folder)
        await self.pool.open()
        return self.pool

    async def empty(self) -> None:
        """Remove what a test left; of a pool in a folder the folder's end takes care."""
        for entry in reversed(list(mount.mounts())):
            if entry.target.startswith(f"{self.folder}/"):
                mount.umount(entry.target, lazy=True)
        pool = await self.again()
        for volume in await pool.list():
            await pool.delete(volume.name)
        for snapshot in await pool.snapshots.list():
            await pool.snapshots.delete(snapshot.name)


def chosen() -> dict[str, BenchKind]:
    """Return what the contract is held against here."""
    if ELSEWHERE:
        return {ELSEWHERE.partition(":")[0]: BenchKind(lambda _folder: f"{ELSEWHERE},name=p,size=30716Mi", "mkfs.ext4")}
    return BENCHES


@asynccontextmanager
async def opened(of: BenchKind, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Open a pool for one test. folder: for pools without mounts; others get one of a disk with loop devices."""
    if of.mounts:
        folder = request.getfixturevalue("real_folder")
        need(of.tool)
    of.prepare(folder)
    made = Bench(_make(of, folder), folder, of)
    await made.pool.open()
    yield made
    if ELSEWHERE:
        await made.empty()
    with suppress(TonnageError):
        await made.pool.close()


def _make(of: BenchKind, folder: Path) -> Pool:
    return make(parse(of.description(folder)), disks=Disks())
