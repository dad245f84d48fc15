"""How long a program waits that writes to a mounted volume while a snapshot of that is made, where blocks are shared.

The program writes 4 KiB and calls fdatasync, again and again, in a process of its own. Its longest write of each
snapshot is from before the call of the driver until after the answer. Its ordinary writes are those between snapshots.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import sys
import tempfile
from asyncio.subprocess import PIPE
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic

from benchmarks.box.box import ROOT
from benchmarks.data_services import snapshot, writer
from benchmarks.data_services.disks import disk
from benchmarks.driver.life import GROWING, MIB
from benchmarks.figure import Figure

from tonnage.csi.client.client import CsiClient

MOST_RUNS = 1
SNAPSHOTS, PAUSE = 100, 0.05
DATA = 256 * MIB
P99_MS = 50.0
Span = tuple[float, float]
"""Begin and end, in seconds of the monotonic clock, which is one for all processes."""


async def run() -> list[Figure]:
    """On image files that share blocks, on xfs and on btrfs; nothing without root."""
    if not ROOT:
        return []
    figures = []
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        for fstype in ("xfs", "btrfs"):
            with ExitStack() as stack:
                place = await asyncio.to_thread(stack.enter_context, disk(folder, fstype, snapshot.DISK))
                figures += await _waits(folder, place, fstype)
    return figures


async def _waits(folder: Path, place: Path, fstype: str) -> list[Figure]:
    pool = f"image:{place}/pool,size={snapshot.DISK},{GROWING}"
    async with snapshot.volume(folder, pool, data=DATA, staged=True) as (client, vid):
        async with _writer(folder / "target" / "log") as writes:
            taken = await _snapshots(client, vid)
        longest = longest_in(writes, taken)
    ordinary = [(end - begin) * 1000 for begin, end in between(writes, taken)]
    title = f"image, ext4 on {fstype}"
    return [
        Figure(f"{title}: a write during its snapshot, p50", statistics.median(longest), "ms"),
        Figure(f"{title}: a write during its snapshot, p99", _p99(longest), "ms", at_most=P99_MS),
        Figure(f"{title}: other writes, p50", statistics.median(ordinary), "ms"),
        Figure(f"{title}: other writes, p99", _p99(ordinary), "ms"),
    ]


async def _snapshots(client: CsiClient, vid: str) -> list[Span]:
    """Make and delete snapshots; when each was made."""
    spans = []
    for number in range(SNAPSHOTS):
        await asyncio.sleep(PAUSE)
        began = monotonic()
        made = await client.create_snapshot(f"s{number}", vid)
        spans.append((began, monotonic()))
        await asyncio.sleep(PAUSE)
        await client.delete_snapshot(made.id)
    return spans


@asynccontextmanager
async def _writer(file: Path) -> AsyncIterator[list[Span]]:
    """A program that writes meanwhile; its writes are in the list afterwards."""
    command = [sys.executable, "-m", writer.__name__, str(file)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    found: list[Span] = []
    try:
        await process.stdout.readexactly(1)
        yield found
    finally:
        out, _ = await process.communicate(b"")  # closes its input, which ends it
        found += struct.iter_unpack(writer.SPAN, out)


def longest_in(writes: Sequence[Span], spans: Sequence[Span]) -> list[float]:
    """Milliseconds of the longest write that overlaps each span; 0 where none does. Both are sorted."""
    begins, ends = [begin for begin, _ in writes], [end for _, end in writes]
    found = []
    for begin, end in spans:
        during = writes[bisect_left(ends, begin) : bisect_right(begins, end)]
        found.append(max((stop - start for start, stop in during), default=0.0) * 1000)
    return found


def between(writes: Sequence[Span], spans: Sequence[Span]) -> list[Span]:
    """Writes that overlap no span. Both are sorted."""
    found: list[Span] = []
    first = 0
    for begin, end in (*spans, (float("inf"), float("inf"))):
        found += [write for write in writes[first:] if write[1] < begin]
        first = next((n for n in range(first, len(writes)) if writes[n][0] > end), len(writes))
    return found


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
