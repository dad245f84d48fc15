"""What it costs a new volume that deleted volumes, which can be restored, make way for it: on image files and btrfs.

In turns: a volume is created where there is room, and where trash of 1 GiB has to be removed for it first. Each kind
has a disk of its own: that of the machine may be mounted in any way, and ext4 with `discard` and without a journal
waits for it at each removal.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.box.box import ROOT
from benchmarks.data_services.disks import disk
from benchmarks.figure import Figure

from tonnage.pools.base.contract import VolumeRequest
from tonnage.pools.base.record import UNDELETE
from tonnage.pools.config import make, parse
from tonnage.pools.core.pool import Pool

MOST_RUNS = 3
MIB = 1 << 20
SIZE, DATA, DISK = 1 << 30, 128 * MIB, 4 << 30
TURNS = 20


async def run() -> list[Figure]:
    """Both kinds; nothing without root."""
    if not ROOT:
        return []
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name:
        figures = []
        for kind, fstype in (("image", "ext4"), ("btrfs", "btrfs")):
            with ExitStack() as stack:
                place = await asyncio.to_thread(stack.enter_context, disk(Path(name), fstype, DISK))
                figures += await _measured(kind, place / "pool", Path(name))
        return figures


async def _measured(kind: str, place: Path, folder: Path) -> list[Figure]:
    pool = make(parse(f"{kind}:{place},name=p,size={SIZE + 100 * MIB},sparse=yes"))
    await pool.open()
    took: dict[bool, list[float]] = {True: [], False: []}
    try:
        for _ in range(TURNS):
            for has_trash, times in took.items():
                if has_trash:
                    await _trash(pool, folder / "staging")
                began = time.perf_counter()
                await pool.create(VolumeRequest("new", SIZE))
                times.append((time.perf_counter() - began) * 1000)
                assert not await pool.trash()
                await pool.delete("new")
    finally:
        await pool.close()
    evicting, plain = (statistics.median(took[has_trash]) for has_trash in (True, False))
    return [
        Figure(f"{kind}: a volume that 1 GiB of trash makes way for, p50", evicting, "ms", plain, "free space:"),
        Figure(f"{kind}: what the trash adds to it", evicting - plain, "ms", at_most=20),
    ]


async def _trash(pool: Pool, staging: Path) -> None:
    """Delete a volume with data so that it can be restored."""
    await pool.create(VolumeRequest("old", SIZE, owner={UNDELETE: "86400"}))
    await pool.stage("old", staging)
    await asyncio.to_thread(_write, staging / "data")
    await pool.unstage("old", staging)
    await pool.discard("old")
    assert [one.name for one in await pool.trash()] == ["old"]


def _write(file: Path) -> None:
    with file.open("wb") as data:
        for _ in range(DATA // MIB):
            data.write(os.urandom(MIB))
        os.fsync(data.fileno())
