"""What the machine's own kernel may lack, in user-mode Linux: LVM, and quotas of xfs.

Growth and snapshots of LVM volumes by the driver, beside bare `lvextend` and `lvcreate -s`: the two take turns, on raw
block volumes, so that no file system tool is in the figures. Growth of a mounted volume of a quota pool, until statfs
shows it. As a program, inside the guest: `python -m benchmarks.data_services.guest`; prints the medians as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

from benchmarks.driver.life import BLOCK, GIB, MIB, MOUNT
from benchmarks.driver.life import _driver as driver
from benchmarks.driver.lvm import SETTINGS, guest
from benchmarks.driver.lvm import _program as program
from benchmarks.figure import Figure

from tonnage.csi.client.client import CsiClient
from tonnage.host import mount

MOST_RUNS = 1
TURNS, WARM, SIZE, MORE = 5, 1, 64 * MIB, 16 * MIB
AT_MOST = 1.5
POOLS = {"thick": "lvm:vg0", "thin": "lvm:vg0,thin=pool,thinsize=2Gi,overcommit=8"}
_TITLES = {"extend": "ControllerExpandVolume / bare lvextend", "snapshot": "CreateSnapshot / bare lvcreate -s"}


async def run() -> list[Figure]:
    """The ratios, and what they are of; nothing where there is no user-mode Linux or no lvm."""
    found = await guest([__name__], "4G")
    if found is None:
        return []
    figures = []
    for kind in POOLS:
        for call, title in _TITLES.items():
            bare, ours = found[f"{kind} bare {call}"], found[f"{kind} {call}"]
            figures.append(Figure(f"lvm {kind}: {title}, p50", ours, "ms", bare, "bare:", at_most=AT_MOST))
    quota = Figure(
        "quota, xfs: 1Gi to 2Gi by the driver, until statfs shows it, p50", found["quota"], "ms", at_most=300
    )
    return [*figures, quota]


async def inside() -> None:
    """Measure; in the guest."""
    await program("lvm", "vgcreate", "--quiet", "vg0", "/dev/ubda")
    times: dict[str, list[float]] = {}
    for kind, pool in POOLS.items():
        with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/run") as name:
            async with driver(Path(name), kind, pool) as (client, _):
                for number in range(WARM + TURNS):
                    for what, took in (await _turn(client, kind, number)).items():
                        times.setdefault(f"{kind} {what}", []).append(took)
    times["quota"] = await _quota()
    print(json.dumps({key: statistics.median(found[WARM:]) for key, found in times.items()}))


async def _turn(client: CsiClient, kind: str, number: int) -> dict[str, float]:
    """Each of the four, in milliseconds, on volumes of this turn's own."""
    volume = await client.create_volume(f"v{number}", SIZE, [BLOCK])
    size = ["--virtualsize", f"{SIZE}b", "--thinpool", "pool"] if kind == "thin" else ["--size", f"{SIZE}b"]
    await _lvm("lvcreate", "--yes", "--wipesignatures", "n", *size, "--name", f"bare{number}", "vg0")
    name = f"vg0/bare{number}"
    space = [] if kind == "thin" else ["--size", f"{SIZE + MORE}b"]
    found = {
        "bare extend": await _took(_lvm("lvextend", "--size", f"{SIZE + MORE}b", name)),
        "extend": await _took(client.expand_volume(volume.id, SIZE + MORE, capability=BLOCK)),
        "bare snapshot": await _took(_lvm("lvcreate", "--yes", "--snapshot", *space, "--name", f"s{number}", name)),
    }
    began = time.perf_counter()
    made = await client.create_snapshot(f"snapshot-{number}", volume.id)
    found["snapshot"] = (time.perf_counter() - began) * 1000
    await _lvm("lvremove", "--yes", f"vg0/s{number}", name)
    await client.delete_snapshot(made.id)
    await client.delete_volume(volume.id)
    return found


async def _quota() -> list[float]:
    """Milliseconds of growths of mounted volumes."""
    took = []
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/run") as name:
        place, home = Path(name, "disk"), Path(name, "driver")
        for folder in (place, home, target := Path(name, "target"), staging := Path(name, "staging")):
            folder.mkdir()
        await program("mkfs.xfs", "-q", "-f", "/dev/ubdb")
        mount.mount("/dev/ubdb", place, "xfs", ("prjquota",))
        async with driver(home, "quota", f"quota:{place}/pool,size=100Gi,overcommit=yes") as (client, _):
            for number in range(WARM + TURNS):
                volume = (await client.create_volume(f"q{number}", GIB, [MOUNT])).id
                await client.stage(volume, staging, MOUNT)
                await client.publish(volume, target / "data", MOUNT, staging=staging)
                took.append(await _took(client.expand_volume(volume, 2 * GIB, capability=MOUNT)))
                found = os.statvfs(target / "data")
                if found.f_blocks * found.f_frsize < 2 * GIB:
                    raise RuntimeError("statfs does not show the growth")
                await client.unpublish(volume, target / "data")
                await client.unstage(volume, staging)
                await client.delete_volume(volume)
        mount.umount(place)
    return took


async def _lvm(command: str, *words: str) -> None:
    """As anybody would by hand."""
    await program("lvm", command, "--config", SETTINGS, "--quiet", *words)


async def _took(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    asyncio.run(inside())
