"""What it costs a new volume that deleted volumes, which can be restored, make way for it.

In turns: a volume is created where there is room, where trash of its size has to be removed for it first, and a volume
with as much data is deleted for good. Image files and btrfs on the machine itself, each on a disk of its own: that of
the machine may be mounted in any way, and ext4 with `discard` and without a journal waits for it at each removal. LVM
and quotas in user-mode Linux, as the machine's own kernel may have neither, persistent memory in QEMU. As a program,
inside the guest: `python -m benchmarks.driver.undelete uml`, or `qemu`; prints the medians as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.box.box import ROOT
from benchmarks.data_services.disks import disk
from benchmarks.driver.lvm import _program as program
from benchmarks.driver.lvm import guest, qemu_guest
from benchmarks.figure import Figure

from tonnage.host import mount
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.base.record import UNDELETE
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

MOST_RUNS = 3
MIB = 1 << 20
SIZE, DATA, DISK = 1 << 30, 128 * MIB, 4 << 30
TURNS = 20
IN_UML = {
    "lvm thick": "lvm:vg0,size=1100Mi",
    "lvm thin": "lvm:vg0,thin=pool,thinsize=1200Mi",
    "quota, xfs": "quota:/run/disk/pool,size=1100Mi",
}
IN_QEMU = {
    "pmem": "pmem:region0,size=1100Mi",
    "pmem, mode=lvm": "pmem:region1,mode=lvm,size=1100Mi",
}
NVDIMM = "2G"
SLOW_DATA, UML_TURNS, QEMU_TURNS = 16 * MIB, 5, 3
"""In guests: the processes of one are traced, and the processor of the other is emulated, which is slower."""


async def run() -> list[Figure]:
    """All kinds that this machine can have; nothing without root."""
    if not ROOT:
        return []
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name:
        figures = []
        for kind, fstype in (("image", "ext4"), ("btrfs", "btrfs")):
            with ExitStack() as stack:
                place = await asyncio.to_thread(stack.enter_context, disk(Path(name), fstype, DISK))
                pool = f"{kind}:{place}/pool,name=p,size={SIZE + 100 * MIB},sparse=yes"
                took = await _measured(pool, Path(name), DATA, TURNS)
            adds = took["evicting"] - took["plain"]
            figures += [
                Figure(
                    f"{kind}: a volume that 1 GiB of trash makes way for, p50",
                    took["evicting"],
                    "ms",
                    took["plain"],
                    "free space:",
                ),
                Figure(f"{kind}: what the trash adds to it", adds, "ms", at_most=20),
            ]
    found = await guest([__name__, "uml"], "4G") or {}
    found |= await qemu_guest([__name__, "qemu"], NVDIMM, NVDIMM) or {}
    for kind in (kind for kind in (*IN_UML, *IN_QEMU) if f"{kind} plain" in found):
        adds = found[f"{kind} evicting"] - found[f"{kind} plain"]
        figures.append(Figure(f"{kind}: what the trash adds to it", adds, "ms", found[f"{kind} delete"], "delete:"))
    return figures


async def inside_uml() -> None:
    """Measure; in user-mode Linux."""
    await program("lvm", "vgcreate", "--quiet", "vg0", "/dev/ubda")
    await program("mkfs.xfs", "-q", "-f", "/dev/ubdb")
    Path("/run/disk").mkdir()
    mount.mount("/dev/ubdb", "/run/disk", "xfs", ("prjquota",))
    await _printed(IN_UML, UML_TURNS)


async def inside_qemu() -> None:
    """Measure; in QEMU."""
    for words in ("disable-region all", "init-labels --force all", "enable-region all"):
        await program("ndctl", *words.split())
    await _printed(IN_QEMU, QEMU_TURNS)


async def _printed(pools: Mapping[str, str], turns: int) -> None:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/run") as name:
        for kind, pool in pools.items():
            took = await _measured(f"{pool},name=p", Path(name), SLOW_DATA, turns)
            found |= {f"{kind} {what}": median for what, median in took.items()}
    print(json.dumps(found))


async def _measured(text: str, folder: Path, data: int, turns: int) -> dict[str, float]:
    """Medians in milliseconds: creating a volume in free space and where trash is in its place, and a deletion."""
    pool = make(parse(text))
    await pool.open()
    took: dict[str, list[float]] = {"plain": [], "evicting": [], "delete": []}
    try:
        for _ in range(turns):
            for what, times in took.items():
                if what != "plain":
                    await _fill(pool, folder / "staging", data)
                if what == "evicting":
                    await pool.trash.discard("old")
                    assert [one.name for one in await pool.trash.list()] == ["old"]
                began = time.perf_counter()
                await (pool.delete("old") if what == "delete" else pool.create(VolumeRequest("new", SIZE)))
                times.append((time.perf_counter() - began) * 1000)
                assert not await pool.trash.list()
                await pool.delete("new")
    finally:
        await pool.close()
    return {what: statistics.median(times) for what, times in took.items()}


async def _fill(pool: Pool, staging: Path, data: int) -> None:
    """A volume with data, which can be restored after its deletion."""
    await pool.create(VolumeRequest("old", SIZE, owner={UNDELETE: "86400"}))
    await pool.stage("old", staging)
    await asyncio.to_thread(_write, staging / "data", data)
    await pool.unstage("old", staging)


def _write(file: Path, data: int) -> None:
    with file.open("wb") as out:
        for _ in range(data // MIB):
            out.write(os.urandom(MIB))
        os.fsync(out.fileno())


if __name__ == "__main__":
    asyncio.run({"uml": inside_uml, "qemu": inside_qemu}[sys.argv[1]]())
