"""Limits of a pod's cgroup: its I/O on a device (`io.max` of v2, `blkio.throttle.*_device` of v1).

See Linux's admin-guide/cgroup-v2 and cgroup-v1/blkio-controller. In v1 a limit applies to one cgroup and not to its
children, so it is set for each of them, and again for a container's new cgroup. v1 also limits only direct reads and
writes of a process: writeback is not limited. Blocking, but only a few system calls each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.errors import HostError, PreconditionError, UnsupportedError
from tonnage.host.descriptor import opened

ROOT = Path("/sys/fs/cgroup")
OWN = "tonnage"
"""The parent cgroup for pods of our own kubelet: a real kubelet kills unknown pods in its own."""
_KUBELETS = (
    "kubepods.slice",
    "kubepods.slice/kubepods-burstable.slice",
    "kubepods.slice/kubepods-besteffort.slice",
    "kubepods",
    "kubepods/burstable",
    "kubepods/besteffort",
    OWN,
)
"""Default parents of pods' cgroups, as systemd and cgroupfs name them."""
UID = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,62}")
_OF_POD = re.compile(r"(.*-)?pod[0-9a-f]{8}[-_][-_0-9a-f]{8,}(\.slice)?")
_DEEPEST, _MOST = 7, 20_000
_V1 = (("iops", "read_iops"), ("iops", "write_iops"), ("bandwidth", "read_bps"), ("bandwidth", "write_bps"))

Device = tuple[int, int]
"""Major and minor number."""


@dataclass(frozen=True)
class Cgroup:
    """A cgroup in the hierarchy that limits IO."""

    path: Path
    v2: bool

    def limit(self, device: Device, *, iops: int = 0, bandwidth: int = 0) -> None:
        """Set limits for reads and writes each: operations and bytes per second, 0 for unlimited. Idempotent.

        A cgroup that is gone has nothing to limit. Raises: HostError.
        """
        if self.v2:
            most = f"riops={iops or 'max'} wiops={iops or 'max'} rbps={bandwidth or 'max'} wbps={bandwidth or 'max'}"
            self._write(self.path, "io.max", device, most)
            return
        for group in (self.path, *self.below()):
            for which, key in _V1:
                value = str(iops if which == "iops" else bandwidth)
                self._write(group, f"blkio.throttle.{key}_device", device, value)

    def _write(self, group: Path, file: str, device: Device, value: str) -> None:
        try:
            with opened(group / file, os.O_WRONLY | os.O_NOFOLLOW) as fd:
                os.write(fd, f"{device[0]}:{device[1]} {value}".encode())
        except OSError as failure:
            if not group.exists():
                return
            hint = ": the io controller is not on for that group" if isinstance(failure, FileNotFoundError) else ""
            raise HostError(f"cannot limit IO in {group / file}: {failure.strerror}{hint}") from failure

    def below(self) -> Iterator[Path]:
        """The cgroups below it: containers and their own."""
        return (path for path, _ in _walk(self.path, _DEEPEST))


class Cgroups:
    """The cgroups of this machine. root: where they are mounted."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._parents: dict[Path, None] = {}

    def top(self) -> Cgroup:
        """The root of the hierarchy that limits IO. Raises: UnsupportedError where there is none."""
        for folder in (self.root, self.root / "unified"):
            with suppress(OSError):
                if "io" in (folder / "cgroup.controllers").read_text().split():
                    return Cgroup(folder, v2=True)
        if (self.root / "blkio" / "cgroup.procs").exists():
            return Cgroup(self.root / "blkio", v2=False)
        raise UnsupportedError(
            f"IO cannot be limited on this node: there is no cgroup hierarchy with the controller io (v2) or blkio (v1)"
            f" at {self.root}"
        )

    def named(self, name: str) -> Cgroup:
        """The cgroup of that name below the root, as `nomad.slice`. Raises: UnsupportedError, PreconditionError."""
        top = self.top()
        path = top.path / name.strip("/")
        if ".." in name.split("/") or not path.is_dir():
            raise PreconditionError(f"there is no cgroup {path}")
        return Cgroup(path, top.v2)

    def pod(self, uid: str) -> Cgroup:
        """The cgroup of a pod. Raises: UnsupportedError, PreconditionError where it has none."""
        if not UID.fullmatch(uid):
            raise PreconditionError(f"pod uid {uid[:64]!r} is none")
        top = self.top()
        known = [top.path / name for name in _KUBELETS]
        for parent in (*known, *self._parents):
            for path in _names(parent, uid):
                if path.is_dir():
                    return Cgroup(path, top.v2)
        found = self._search(top, uid)
        if found is None:
            raise PreconditionError(
                f"pod {uid} has no cgroup below {top.path}: its kubelet makes one before it asks for mounts"
            )
        self._parents[found.parent] = None
        return Cgroup(found, top.v2)

    def _search(self, top: Cgroup, uid: str) -> Path | None:
        """Search for a pod's cgroup, for kubelets with a cgroup root of their own.

        The shallowest match is returned, so a pod cannot forge one.
        """
        for count, (path, depth) in enumerate(_walk(top.path, _DEEPEST, leave=_OF_POD)):
            if count > _MOST or depth > _DEEPEST:
                return None
            if path in _names(path.parent, uid):
                return path
        return None


def origin(device: Device) -> str:
    """The content behind a device: of a loop device its file, so two of them with one file are equal."""
    with suppress(OSError):
        return Path(f"/sys/dev/block/{device[0]}:{device[1]}/loop/backing_file").read_text().strip()
    return f"{device[0]}:{device[1]}"


def _names(parent: Path, uid: str) -> tuple[Path, Path]:
    """Names of a pod's cgroup in parent, as cgroupfs and systemd name it."""
    slice_ = f"{parent.name.removesuffix('.slice')}-pod{uid.replace('-', '_')}.slice"
    return parent / f"pod{uid}", parent / slice_


def _walk(top: Path, deepest: int, *, leave: re.Pattern[str] | None = None) -> Iterator[tuple[Path, int]]:
    """All cgroups below top, shallow ones first; does not enter those whose name matches leave."""
    level = [top]
    for depth in range(1, deepest + 1):
        following = []
        for folder in level:
            for path in _folders(folder):
                yield path, depth
                if leave is None or not leave.fullmatch(path.name):
                    following.append(path)
        level = following


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
