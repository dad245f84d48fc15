"""`tonnage driver` over a thick LVM pool, beside bare lvcreate and lvremove, in user-mode Linux: the machine's own
kernel may have no device-mapper. The two take turns, so that both see the same machine.

As a program, inside the guest: `python -m benchmarks.driver.lvm`; prints the figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path

from benchmarks.driver.life import BLOCK, MIB, MOUNT
from benchmarks.driver.life import _driver as driver
from benchmarks.figure import Figure

from tonnage.csi.client.client import CsiClient
from tonnage.host.run import PATH

UML, QEMU = (Path(__file__).parents[2] / "tests" / "vm" / name for name in ("uml.py", "qemu.py"))
TURNS, WARM, SIZE = 15, 2, 64 * MIB
EXTENTS = 19
"""What a volume of 64Mi with ext4 takes: the same for both."""
DIED = 125
SETTINGS = (
    "activation{udev_sync=0 udev_rules=0 verify_udev_operations=1 monitoring=0}"
    " devices{obtain_device_list_from_udev=0} backup{archive=0} global{use_lvmpolld=0 event_activation=0}"
)
"""For the bare commands: there is no udev in the guest, and no archive, as the driver has none."""


async def run() -> list[Figure]:
    """The ratio, and what it is of; nothing where there is no user-mode Linux or no lvm."""
    found = await guest([__name__])
    if found is None:
        return []
    bare, ours, block = (found[key] for key in ("bare", "ours", "block"))
    return [
        Figure("lvm thick: bare lvcreate and lvremove, p50", bare, "ms"),
        Figure("lvm thick: CreateVolume and DeleteVolume, p50", ours, "ms"),
        Figure("lvm thick: these / bare", ours / bare, "", at_most=1.2),
        Figure("lvm thick: the same of raw block / bare", block / bare, "", at_most=1.2),
    ]


async def guest(module: Sequence[str], *more: str) -> dict[str, float] | None:
    """What a module prints in user-mode Linux with disks of 4G and of more sizes; None where there is none, or no lvm.

    module: its name and its arguments.
    """
    if shutil.which("lvm", path=PATH) is None:
        return None
    return await _printed(UML, "--disk", ("4G", *more), module)


async def qemu_guest(module: Sequence[str], *nvdimms: str) -> dict[str, float] | None:
    """What a module prints in QEMU with NVDIMMs of these sizes; None where there is no QEMU or no ndctl."""
    if shutil.which("ndctl", path=PATH) is None:
        return None
    return await _printed(QEMU, "--nvdimm", nvdimms, module)


async def _printed(runner: Path, option: str, sizes: Sequence[str], module: Sequence[str]) -> dict[str, float] | None:
    scratch = [word for size in sizes for word in (option, size)]
    words = [sys.executable, str(runner), *scratch, "--", sys.executable, "-m", *module]
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    if process.returncode == DIED and b"needs" in err:
        return None
    if process.returncode:
        raise RuntimeError(f"the guest ended with {process.returncode}: {err.decode(errors='replace')[-2000:]}")
    return dict(json.loads(out.splitlines()[-1]))


async def _program(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE, stdin=asyncio.subprocess.DEVNULL)
    _, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(err.decode(errors="replace"))


async def _bare(number: int) -> float:
    """Milliseconds of making and removing a logical volume, as anybody would by hand."""
    began = time.perf_counter()
    name = f"bare{number}"
    create = ["lvm", "lvcreate", "--config", SETTINGS, "--yes", "--quiet", "--wipesignatures", "y", "--zero", "y"]
    await _program(*create, "--extents", str(EXTENTS), "--name", name, "vg0")
    await _program("lvm", "lvremove", "--config", SETTINGS, "--yes", "--quiet", f"vg0/{name}")
    return (time.perf_counter() - began) * 1000


async def _ours(client: CsiClient, number: int, *, block: bool) -> float:
    began = time.perf_counter()
    size = EXTENTS * 4 * MIB if block else SIZE
    volume = await client.create_volume(f"v{number}", size, [BLOCK if block else MOUNT])
    await client.delete_volume(volume.id)
    return (time.perf_counter() - began) * 1000


async def inside() -> None:
    """Measure; in the guest."""
    await _program("lvm", "vgcreate", "--quiet", "vg0", "/dev/ubda")
    times: dict[str, list[float]] = {"bare": [], "ours": [], "block": []}
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/run") as name:
        async with driver(Path(name), "lvm", "lvm:vg0") as (client, _):
            for number in range(WARM + TURNS):
                times["bare"].append(await _bare(number))
                times["ours"].append(await _ours(client, number, block=False))
                times["block"].append(await _ours(client, number, block=True))
    print(json.dumps({key: statistics.median(found[WARM:]) for key, found in times.items()}))


if __name__ == "__main__":
    asyncio.run(inside())
