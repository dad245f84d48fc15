"""`tonnage driver` over real pools, beside csi-driver-host-path (Go) in the same run with the same client, and beside
the bare system calls. Each pair takes turns, so that a noisy machine disturbs both."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from benchmarks.box.box import ROOT
from benchmarks.driver import bare, calls
from benchmarks.driver.calls import Caller, VolumeUse, timed
from benchmarks.figure import Figure
from benchmarks.peer import peer

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.errors import CsiError
from tonnage.host import mount
from tonnage_box.testing.wait import wait_until_served

GIB, MIB = 1 << 30, 1 << 20
MOUNT = VolumeCapability(AccessMode.SINGLE_NODE_WRITER)
BLOCK = VolumeCapability(AccessMode.SINGLE_NODE_WRITER, block=True)
CALLS, VOLUMES, LIVES, TURNS, CLIENTS = 1000, 200, 40, 50, 8
GROWING = "sparse=yes,overcommit=yes"
REST_SECONDS = 10.0
MEMORY = Path("/dev/shm")


async def run() -> list[Figure]:
    """All figures that can be had here; real pools need root."""
    if not ROOT:
        return []
    # mkfs and loop devices want a real disk below them, as /tmp often is not.
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        figures = await _image(folder)
        figures += await _life(folder)
        figures += await _btrfs(folder, "btrfs", at_most=None)
    if not os.access(MEMORY, os.W_OK):
        return figures
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir=MEMORY) as name:
        return figures + await _btrfs(Path(name), "btrfs in memory", at_most=1)


async def _image(folder: Path) -> list[Figure]:
    go = await _go(folder)
    pool = f"image:{folder}/image,size=100Gi,{GROWING}"
    async with _driver(folder, "image", pool) as (client, pid):
        ours = await asyncio.to_thread(_measured, folder / "image.sock", calls.MOUNT)
        figures = [
            Figure("image: Probe, which does nothing, p50", ours.probe, "ms"),
            Figure("image: GetCapacity, p50", ours.capacity, "ms", at_most=0.6),
            Figure(f"image: CreateVolume, {CLIENTS} at once", ours.rate, "/s"),
            Figure(f"image: RSS with {VOLUMES} volumes", _rss(pid), "MiB", at_most=45),
            Figure(f"image: wake-ups in {REST_SECONDS:.0f} s of rest", await _wakeups(pid), "", at_most=0),
        ]
        held = await _held(client, ours.volumes[0], folder / "staging")
        figures.append(Figure("image: a volume in use is locked by DeleteVolume, p99", held, "ms", at_most=20))
        for vid in ours.volumes:
            await client.delete_volume(vid)
    if go is not None:
        figures += [
            Figure("hostpath (Go): Probe, p50", go.probe, "ms"),
            Figure("hostpath (Go): GetCapacity, p50", go.capacity, "ms"),
            Figure("GetCapacity: of the Go driver's", ours.capacity / go.capacity, "times", at_most=4),
            Figure(f"hostpath (Go): CreateVolume of files, {CLIENTS} at once", go.rate, "/s"),
            Figure("CreateVolume: of the Go driver's rate", ours.rate / go.rate, "times", at_least=1),
        ]
    return figures


class _Measured:
    """probe, capacity: medians of Probe and GetCapacity in milliseconds. rate: of CreateVolume, a second. volumes: ids
    of what it made."""

    def __init__(self, probe: float, capacity: float, rate: float, volumes: Sequence[str]) -> None:
        self.probe = probe
        self.capacity = capacity
        self.rate = rate
        self.volumes = volumes


def _measured(socket: Path, use: VolumeUse, parameters: dict[str, str] | None = None) -> _Measured:
    with Caller(socket) as caller:
        probe = _p50(caller.probe, CALLS)
        capacity = _p50(lambda: caller.get_capacity(parameters=parameters), CALLS)
        seconds, volumes = caller.fill(VOLUMES, 64 * MIB, at_once=CLIENTS, use=use, parameters=parameters)
    return _Measured(probe, capacity, VOLUMES / seconds, volumes)


async def _held(client: CsiClient, volume: str, staging: Path) -> float:
    """How long a call that unpublishes is rejected while DeleteVolume waits for the volume's user, in milliseconds."""
    await client.stage(volume, staging, MOUNT)
    waits = []
    for _ in range(TURNS):
        deleting = asyncio.create_task(client.delete_volume(volume))
        await asyncio.sleep(0)
        began = time.perf_counter()
        while True:
            with suppress(CsiError):
                await client.unpublish(volume, staging / "nobody")
                break
        waits.append((time.perf_counter() - began) * 1000)
        with suppress(CsiError):
            await deleting
    await client.unstage(volume, staging)
    return statistics.quantiles(waits, n=100)[-1]


async def _go(folder: Path) -> _Measured | None:
    program = await asyncio.to_thread(peer.program)
    if program is None:
        return None
    socket, state = folder / "go.sock", folder / "go"
    state.mkdir()
    command = [str(program), "-endpoint", f"unix://{socket}", "-statedir", str(state), "-nodeid", "n1"]
    async with _process([*command, "-capacity", f"fast={100 * GIB}"], socket) as (client, _):
        found = await asyncio.to_thread(_measured, socket, calls.BLOCK, {"kind": "fast"})
        for vid in found.volumes:  # each holds a loop device
            await client.delete_volume(vid)
        return found


async def _life(folder: Path) -> list[Figure]:
    """A volume's whole life, beside what the kernel and mkfs take for the same."""
    async with _driver(folder, "life", f"image:{folder}/life,size=100Gi,{GROWING}"):
        return await asyncio.to_thread(_lives, folder, folder / "life.sock")


def _lives(folder: Path, socket: Path) -> list[Figure]:
    ours, again, probes, alone = [], [], [], []
    with Caller(socket) as caller:
        for number in range(2):  # a size that has come twice is copied from then on, without mkfs
            caller.life(folder, f"before{number}", GIB)
        for number in range(LIVES):
            size = GIB + (number + 1) * MIB
            ours.append(timed(lambda n=number, s=size: caller.life(folder, f"v{n}", s)))  # type: ignore[misc]
            again.append(timed(lambda n=number: caller.life(folder, f"w{n}", GIB)))  # type: ignore[misc]
            probes.append(timed(lambda: [caller.probe() for _ in range(6)]))
            alone.append(bare.life(folder, size))
    best = statistics.median(alone) + statistics.median(probes)
    first, later = statistics.median(ours), statistics.median(again)
    return [
        Figure("image, ext4: a volume's life in a new size, p50", first, "ms"),
        Figure("image, ext4: a life in a size made twice before, p50", later, "ms"),
        Figure("bare system calls, mkfs and six Probes, p50", best, "ms"),
        Figure("image, ext4: new size, of bare", first / best, "times", at_most=1.3),
        Figure("image, ext4: size made before, of bare", later / best, "times", at_most=1.3),
    ]


async def _btrfs(folder: Path, title: str, *, at_most: float | None) -> list[Figure]:
    """On a disk, and in memory: what a commit takes on a disk that others use too is many times what we do, and varies
    by more than that."""
    async with _driver(folder, "btrfs", f"btrfs:{folder}/btrfs,size=20Gi,{GROWING}"):
        return await asyncio.to_thread(_subvolumes, folder, title, at_most)


def _subvolumes(folder: Path, title: str, at_most: float | None) -> list[Figure]:
    where, names = folder / "btrfs" / "mounted", [f"v{number}" for number in range(TURNS)]
    with Caller(folder / "btrfs.sock") as caller:
        made = [(bare.created(where, f"bare-{n}"), timed(lambda n=n: caller.create(n, GIB // 8))) for n in names]  # type: ignore[misc]
        gone = [(bare.deleted(where, f"bare-{n}"), timed(lambda n=n: caller.delete(f"btrfs/{n}"))) for n in names]  # type: ignore[misc]
        seconds, ids = caller.fill(32, GIB // 8, at_once=32)
        caller.empty(ids, at_once=32)
    figures = []
    for what, pairs in (("CreateVolume", made), ("DeleteVolume", gone)):
        commit, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
        more = statistics.median(mine - alone for alone, mine in pairs)
        figures += [
            Figure(f"{title}: {what}, p50", ours, "ms"),
            Figure(f"{title}: the bare commit of the same, p50", commit, "ms"),
            Figure(f"{title}: {what} beyond the commit, p50", more, "ms", at_most=at_most),
        ]
    return [*figures, Figure(f"{title}: 32 CreateVolume at once", seconds * 1000, "ms")]


@asynccontextmanager
async def _driver(folder: Path, name: str, pool: str) -> AsyncIterator[tuple[CsiClient, int]]:
    socket = folder / f"{name}.sock"
    command = [sys.executable, "-m", "tonnage", "driver", "--endpoint", f"unix://{socket}", "--node-name", "n1"]
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


def _p50(call: Callable[[], object], count: int) -> float:
    for _ in range(count // 10):
        call()
    return statistics.median(timed(call) for _ in range(count))


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
