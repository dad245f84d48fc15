"""What the suites of LVM in user-mode Linux share: a group on two disks of 2Gi, pools over it, and a look behind them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tonnage.host import lvm, mount
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

MI = 1024**2
EXTENT = 4 * MI
DISKS = ("/dev/ubda", "/dev/ubdb")
THIN = ",thin=pool,thinsize=512Mi"
CONF = Path("/etc/lvm/lvm.conf")  # of the guest only


def report(*fields: str, group: str = "vg0") -> dict[str, dict[str, str]]:
    """What LVM itself says: logical volume -> fields."""
    names = ",".join(("lv_name", *fields))
    text = lvm.lvm("lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", names, group)
    return {row["lv_name"]: row for row in json.loads(text)["report"][0]["lv"]}


def group_free() -> int:
    return sum(disk.free for disk in lvm.read("vg0").disks) * EXTENT


class Bench:
    """Pools over vg0 and a folder; what they leave is removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pools: list[Pool] = []

    async def pool(self, options: str = "") -> Pool:
        """A pool that is open; the one before is closed, as if the process had ended."""
        for before in self.pools:
            await before.close()
        made = make(parse(f"lvm:vg0,name=p{options}"))
        self.pools.append(made)
        await made.open()
        return made


def unmount_all(folder: Path) -> None:
    for entry in reversed(list(mount.mounts())):
        if entry.target.startswith(f"{folder}/"):
            mount.umount(entry.target, lazy=True)


@asynccontextmanager
async def bench_in(folder: Path) -> AsyncIterator[Bench]:
    """A bench over the group, which is made if it is not there."""
    before = CONF.read_text()
    if "vg0" not in lvm.lvm("vgs", "--noheadings", "-o", "vg_name").split():
        lvm.lvm("vgcreate", "vg0", *DISKS)
    made = Bench(folder)
    yield made
    for pool in made.pools:
        await pool.close()
    CONF.write_text(before)
    unmount_all(folder)
    lvm.lvm("lvremove", "--yes", "vg0")  # all that is in it


def tags(name: str) -> list[str]:
    """All tags of a logical volume."""
    return [tag for tag in report("lv_tags")[name]["lv_tags"].split(",") if tag]


def retag(name: str, wanted: Sequence[str]) -> None:
    """Give a logical volume these tags and no others, by one command as the pool does."""
    now = tags(name)
    words = [word for tag in wanted if tag not in now for word in ("--addtag", tag)]
    words += [word for tag in now if tag not in wanted for word in ("--deltag", tag)]
    if words:
        lvm.lvm("lvchange", *words, f"vg0/{name}")


def device(name: str) -> str:
    found = lvm.device("vg0", name)
    assert found is not None
    return found


def peek(path: str | Path, length: int, at: int = 0) -> bytes:
    with open(path, "rb") as file:
        file.seek(at)
        return file.read(length)


def poke(path: str | Path, data: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


def foreign(name: str) -> None:
    """Put a file system on a volume that is not ours."""
    subprocess.run(["mkfs.ext4", "-q", device(name)], check=True)


def flood(path: Path, most: int) -> None:
    """Write and sync until that fails."""
    with open(path, "r+b", buffering=0) as file:
        for _ in range(0, most, MI):
            file.write(os.urandom(MI))
            os.fdatasync(file.fileno())


def soil(pattern: bytes = b"secret!!") -> None:
    """Fill the group with what a former owner left."""
    lvm.lvm("lvcreate", "--yes", "--extents", "100%FREE", "--name", "old", "vg0")
    poke(device("old"), pattern * (64 * MI // len(pattern)))
    lvm.lvm("lvremove", "--yes", "vg0/old")


async def erased(pool: Pool) -> None:
    """Wait for what is erased in the background."""
    while await pool.erasing():
        await asyncio.sleep(0.05)


async def settled(condition: Callable[[], bool]) -> None:
    """Wait for lvm and mkfs processes that the killed driver had started."""
    while not condition():
        await asyncio.sleep(0.05)


def no_tool_runs() -> bool:
    """Whether neither a tool runs that a killed driver has started, nor a child of it that is about to become one."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_tool = (entry / "comm").read_text().strip() in ("lvm", "mkfs.ext4")
            if is_tool or b"import make, parse" in (entry / "cmdline").read_bytes():
                return False
    return True
