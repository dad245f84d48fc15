"""All that calls leave on the machine: mounts, loop devices, files, groups, logical volumes, limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tonnage.host import btrfs, loop, mount, ndctl, quota
from tonnage.host.run import run

MI = 1024**2
_PAUSE, _PATIENCE = (
    0.005,
    30.0,
)  # seconds: the kernel frees devices and groups a moment later, on a busy machine much later
_NEXT_QUOTA = 0x800009  # Q_GETNEXTQUOTA of quotactl(2)


@dataclass
class Machine:
    """A folder of the test's own, in it the pool's home. more: what else a kind can leave. patience: seconds that what
    is left may take to go."""

    folder: Path
    home: Path
    more: list[Callable[[Path], object]] = field(default_factory=list)
    ignored: tuple[str, ...] = ("csi.sock",)
    patience: float = _PATIENCE

    def look(self) -> object:
        """All there is now."""
        inside = f"{self.folder}/"
        mounts = [
            (m.target, m.fstype, "ro" in m.options.split(",")) for m in mount.mounts() if m.target.startswith(inside)
        ]
        loops = [path for _, path in loop.attached() if path.startswith(inside)]
        entries = {}
        homes = (self.home, self.home / "mounted")
        for folder in (self.folder, *homes, *(home / ".snapshots" for home in homes), self.folder / "state" / "inline"):
            with suppress(FileNotFoundError):
                entries[str(folder)] = sorted(set(os.listdir(folder)) - set(self.ignored))
        return sorted(mounts), sorted(loops), entries, [look(self.home) for look in self.more]

    def check(self, expected: object) -> None:
        """Raises AssertionError unless all is as expected, or is so soon."""
        deadline = time.monotonic() + self.patience
        while (found := self.look()) != expected and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        assert found == expected, f"something is left, or missing: {found}, not {expected}"

    def sweep(self) -> None:
        """Take everything away, whatever it is."""
        for entry in reversed(list(mount.mounts())):
            if entry.target.startswith(f"{self.folder}/"):
                mount.umount(entry.target, lazy=True)
        for index, path in loop.attached():
            if path.startswith(f"{self.folder}/"):
                loop.detach(index)


def qgroups(home: Path) -> object:
    """How many groups of subvolumes there are."""
    where = home / "mounted" if (home / "mounted").exists() else home
    try:
        at = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return 0
    try:
        fs = btrfs.fsid(at)
        return len(btrfs.qgroups(fs)) if fs is not None and btrfs.has_quota(fs) else 0
    finally:
        os.close(at)


def projects(home: Path) -> object:
    """How many projects have a limit."""
    found, number = 0, 1
    at = os.open(home.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while True:
            answer = quota._call(at, _NEXT_QUOTA, number, b"")
            limit, number = int.from_bytes(answer[:8], "little"), int.from_bytes(answer[68:72], "little") + 1
            found += bool(limit)
    except OSError:
        return found
    finally:
        os.close(at)


def lvm_volumes(_home: Path) -> object:
    """Logical volumes and mapper devices."""
    said = run(["lvm", "lvs", "--noheadings", "-o", "lv_name", "vg0"]).split()
    mapped = []
    for entry in Path("/sys/block").glob("dm-*/dm/name"):
        with suppress(OSError):
            mapped.append(entry.read_text().strip())
    return sorted(said), sorted(mapped)


def namespaces(_home: Path) -> object:
    """Namespaces of persistent memory and what is mounted of them, and in the region's own place the records."""
    made = [(found.label, found.mode, found.size, bool(found.device)) for found in ndctl.namespaces("region0")]
    homes = [entry.target for entry in mount.mounts() if entry.target.startswith("/run/tonnage/pmem/")]
    return sorted(made), len(homes), ndctl.region("region0").free
