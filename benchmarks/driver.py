"""`tonnage driver` over real pools, beside csi-driver-host-path (Go) in the same run with the same client, and beside
the bare system calls."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import bare, calls, peer
from benchmarks.box import ROOT
from benchmarks.figure import Figure
from tonnage.csi.client import CsiClient
from tonnage.csi.connection import wait_until_served
from tonnage.csi.words import AccessMode, VolumeCapability
from tonnage.host import mount

GIB, MIB = 1 << 30, 1 << 20
MOUNT = VolumeCapability(AccessMode.SINGLE_NODE_WRITER)
BLOCK = VolumeCapability(AccessMode.SINGLE_NODE_WRITER, block=True)
CALLS, VOLUMES, LIVES, CLIENTS = 500, 200, 10, 8
GROWING = "sparse=yes,overcommit=yes"
REST_SECONDS = 3.0


async def run() -> list[Figure]:
    """All figures that can be had here; real pools need root."""
    if not ROOT:
        return []
    # mkfs and loop devices want a real disk below them, as /tmp often is not.
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        figures = await _image(folder)
        figures += await _life(folder)
        return figures + await _btrfs(folder)


async def _image(folder: Path) -> list[Figure]:
    go = await _go(folder)
    pool = f"image:{folder}/image,size=100Gi,{GROWING}"
    async with _driver(folder, "image", pool) as (client, pid):
        capacity = await asyncio.to_thread(calls.get_capacity, folder / "image.sock")
        ours = await _p50(lambda: client.get_capacity(), CALLS)
        rate, ids = await _fill(client, MOUNT)
        figures = [
            Figure("image: GetCapacity, p50", capacity, "ms", at_most=0.6),
            Figure("image: GetCapacity by our client in Python, p50", ours, "ms"),
            Figure(f"image: CreateVolume, {CLIENTS} at once", rate, "/s"),
            Figure(f"image: RSS with {VOLUMES} volumes", _rss(pid), "MiB", at_most=45),
            Figure(f"image: wake-ups in {REST_SECONDS:.0f} s of rest", await _wakeups(pid), "", at_most=0),
        ]
        await _empty(client, ids)
    if go is not None:
        theirs, their_rate = go
        figures += [
            Figure("hostpath (Go): GetCapacity, p50", theirs, "ms"),
            Figure("GetCapacity: of the Go driver's", capacity / theirs, "times", at_most=4),
            Figure(f"hostpath (Go): CreateVolume of files, {CLIENTS} at once", their_rate, "/s"),
            Figure("CreateVolume: of the Go driver's rate", rate / their_rate, "times", at_least=1),
        ]
    return figures


async def _go(folder: Path) -> tuple[float, float] | None:
    """GetCapacity's median and the rate of CreateVolume of the Go driver."""
    program = await asyncio.to_thread(peer.program)
    if program is None:
        return None
    socket, state = folder / "go.sock", folder / "go"
    state.mkdir()
    command = [str(program), "-endpoint", f"unix://{socket}", "-statedir", str(state), "-nodeid", "n1"]
    async with _process([*command, "-capacity", f"fast={100 * GIB}"], socket) as (client, _):
        capacity = await asyncio.to_thread(calls.get_capacity, socket, {"kind": "fast"})
        rate, ids = await _fill(client, BLOCK, {"kind": "fast"})
        await _empty(client, ids)  # each holds a loop device
        return capacity, rate


async def _life(folder: Path) -> list[Figure]:
    """A volume's whole life, beside what the kernel and mkfs take for the same."""
    async with _driver(folder, "life", f"image:{folder}/life,size=100Gi,{GROWING}") as (client, _):
        ours, again, probes, alone = [], [], [], []
        for number in range(LIVES):  # in turns, so that a noisy machine disturbs all
            size = GIB + number * MIB  # a file system of a size that was made before is copied instead
            ours.append(await _timed(_one_life(client, folder, f"v{number}", size)))
            again.append(await _timed(_one_life(client, folder, f"w{number}", size)))
            probes.append(await _timed(_probes(client)))
            alone.append(await asyncio.to_thread(bare.life, folder, size))
    best = statistics.median(alone) + statistics.median(probes)
    mine = statistics.median(ours)
    return [
        Figure("image, ext4: a volume's life, p50", mine, "ms"),
        Figure("image, ext4: a life in a size made before, p50", statistics.median(again), "ms"),
        Figure("bare system calls, mkfs and six Probes, p50", best, "ms"),
        Figure("image, ext4: of bare", mine / best, "times", at_most=1.3),
    ]


async def _one_life(client: CsiClient, folder: Path, name: str, size: int) -> None:
    staging, target = folder / f"staging-{name}", folder / f"target-{name}"
    volume = (await client.create_volume(name, size, [MOUNT])).id
    await client.stage(volume, staging, MOUNT)
    await client.publish(volume, target, MOUNT, staging=staging)
    await client.unpublish(volume, target)
    await client.unstage(volume, staging)
    await client.delete_volume(volume)


async def _probes(client: CsiClient) -> None:
    for _ in range(6):
        await client.probe()


async def _btrfs(folder: Path) -> list[Figure]:
    where = folder / "btrfs"
    async with _driver(folder, "btrfs", f"btrfs:{where},size=20Gi,{GROWING}") as (client, _):
        names = [f"v{n}" for n in range(50)]
        commits = [await asyncio.to_thread(bare.commits, where / "mounted") for _ in names]
        created = [await _timed(client.create_volume(name, GIB // 8, [MOUNT])) for name in names]
        deleted = [await _timed(client.delete_volume(f"btrfs/{name}")) for name in names]
        began = time.perf_counter()
        await asyncio.gather(*(client.create_volume(name, GIB // 8, [MOUNT]) for name in names[:32]))
        together = (time.perf_counter() - began) * 1000
        await asyncio.gather(*(client.delete_volume(f"btrfs/{name}") for name in names[:32]))
    making, deleting = (statistics.median(times) for times in zip(*commits, strict=True))
    return [
        Figure("btrfs: the commit of a new subvolume, p50", making, "ms"),
        Figure("btrfs: the commit of a deleted one, p50", deleting, "ms"),
        Figure("btrfs: CreateVolume without the commit, p50", statistics.median(created) - making, "ms", at_most=1),
        Figure("btrfs: DeleteVolume without the commit, p50", statistics.median(deleted) - deleting, "ms", at_most=1),
        Figure("btrfs: 32 CreateVolume at once", together, "ms"),
    ]


@asynccontextmanager
async def _driver(folder: Path, name: str, pool: str) -> AsyncIterator[tuple[CsiClient, int]]:
    socket = folder / f"{name}.sock"
    command = [sys.executable, "-m", "tonnage.cli", "driver", "--endpoint", f"unix://{socket}", "--node-name", "n1"]
    command += ["--pool", pool, "--state", str(folder / "state"), "--log-level", "warning"]
    async with _process(command, socket) as started:
        yield started
        assert not any(str(folder) in found.target for found in mount.mounts() if not found.target.endswith("mounted"))


@asynccontextmanager
async def _process(command: Sequence[str], socket: Path) -> AsyncIterator[tuple[CsiClient, int]]:
    process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
    try:
        await wait_until_served(socket, timeout=60)
        async with CsiClient(socket, timeout=60) as client:
            await client.probe()
            yield client, process.pid
    finally:
        process.terminate()
        await process.wait()


async def _p50(call: Callable[[], Awaitable[object]], count: int) -> float:
    for _ in range(count // 10):
        await call()
    return statistics.median([await _timed(call()) for _ in range(count)])


async def _timed(call: Awaitable[object]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    await call
    return (time.perf_counter() - began) * 1000


async def _fill(
    client: CsiClient, use: VolumeCapability, parameters: dict[str, str] | None = None
) -> tuple[float, list[str]]:
    """Volumes made a second, and their ids."""
    numbers, ids = iter(range(VOLUMES)), list[str]()

    async def worker() -> None:
        for number in numbers:
            ids.append((await client.create_volume(f"v{number}", 64 * MIB, [use], parameters=parameters)).id)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(CLIENTS)))
    return VOLUMES / (time.perf_counter() - began), ids


async def _empty(client: CsiClient, ids: Sequence[str]) -> None:
    for vid in ids:
        await client.delete_volume(vid)


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


async def _wakeups(pid: int) -> float:
    """Context switches of all threads while nobody asks anything."""
    await asyncio.sleep(1.0)
    before = _switches(pid)
    await asyncio.sleep(REST_SECONDS)
    return _switches(pid) - before


def _switches(pid: int) -> int:
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        for line in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total
