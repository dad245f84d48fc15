"""Preflight check of one pool's configuration; read-only."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tonnage.api.quantity import from_bytes
from tonnage.errors import HostError, UnavailableError
from tonnage.host import btrfs, fstab, loop
from tonnage.host.run import PATH
from tonnage.pools import config as pool_config
from tonnage.pools.config import PoolConfig
from tonnage.pools.directory.directory import MARKER, NOTE, marker_of

_TOOLS = {
    "image": ("mkfs.ext4", "e2fsprogs"),
    "btrfs": ("mkfs.btrfs", "btrfs-progs"),
    "lvm": ("lvm", "lvm2"),
    "pmem": ("ndctl", "ndctl"),
}
_MARKS = {"image": ("image",), "btrfs": ("btrfs", "btrfs-image"), "quota": ("quota",)}
_UNMARKED = frozenset({MARKER, "lost+found"})


def look(pool: PoolConfig) -> str:
    """Describe what is at a pool's path. Blocking; read-only.

    It makes nothing, locks nothing and opens nothing for writing.

    Raises: Invalid; Unavailable (there is no such pool); HostError (the machine lacks a requirement).
    """
    pool_config.make(pool)
    size = from_bytes(pool.size) if pool.size else "what its disk has"
    if pool.kind == "fake":
        return f"fake, {size}: no limit holds, and its volumes end with the driver"
    if pool.kind == "lvm":
        _machine(pool)
        return _group(pool)
    if pool.kind == "pmem":
        _machine(pool)
        return _memory(pool)
    if pool.where is None:
        _machine(pool)
        return f"{pool.kind}, {size}"
    if pool.kind == "static":
        _machine(pool)
        return _disks(pool.where)
    state = _directory(pool, pool.where)
    _machine(pool)
    if pool.kind == "quota":
        _projects(pool.where)
    return f"{pool.kind} in {pool.where}, {size}, {state}"


def _machine(pool: PoolConfig) -> None:
    """Raise HostError if the machine lacks what the pool needs."""
    if os.geteuid() != 0:
        raise HostError(f"pool {pool.name}: {pool.kind} pools mount file systems, which takes root: run it as root")
    if pool.kind == "btrfs" and pool.where is not None and is_btrfs(pool.where):
        return
    if pool.kind in ("image", "btrfs") and not Path(loop.CONTROL).exists():
        raise HostError(f"pool {pool.name}: {pool.kind} pools need loop devices, and {loop.CONTROL} is not there")
    tool, package = _TOOLS.get(pool.kind, ("", ""))
    if tool and shutil.which(tool, path=PATH) is None:
        raise HostError(f"pool {pool.name}: {tool} is not there (Debian: apt-get install {package})")


def _group(pool: PoolConfig) -> str:
    """Describe a volume group, read by one command. Raises UnavailableError, HostError."""
    from tonnage.host import lvm

    found = lvm.read(pool.group)
    if not found.writable:
        raise UnavailableError(f"pool {pool.name}: volume group {pool.group} is read-only or exported")
    if pool.thin and pool.thin not in found.volumes and not pool.thin_size:
        raise UnavailableError(
            f"pool {pool.name}: volume group {pool.group} has no thin pool {pool.thin}: make it, or say thinsize="
        )
    free, total = from_bytes(found.free * found.extent), from_bytes(found.extents * found.extent)
    return f"lvm group {pool.group}, {free} of {total} free, {len(found.disks)} disks, {found.missing} missing"


def _memory(pool: PoolConfig) -> str:
    """Describe regions of persistent memory, from sysfs. Raises UnavailableError."""
    from tonnage.pools.pmem import region

    found = region.select(pool.region, f"pool {pool.name}")
    regions = ", ".join(f"{one.name} ({from_bytes(one.free)} of {from_bytes(one.size)} free)" for one in found)
    return f"pmem in {regions}, mode {pool.mode or 'fsdax'}"


def _disks(where: Path) -> str:
    """Describe a discovery directory. Raises UnavailableError."""
    from tonnage.pools.static import discovery

    discovery.check_directory(where)
    found = discovery.look(where)
    refused = "".join(f"; {entry} is left out: {why}" for entry, why in found.refused.items())
    return f"static in {where}, {len(found.disks)} disks{refused}"


def _projects(where: Path) -> None:
    """Raise UnavailableError if the file system has no project quotas."""
    from tonnage.pools import quota

    quota.make_backend(where).contents.prepare()


def _directory(pool: PoolConfig, where: Path) -> str:
    """Describe a pool's directory. Raises UnavailableError."""
    if point := fstab.missing(where):
        raise UnavailableError(f"pool {pool.name}: the disk of {where} is not mounted: mount {point}")
    try:
        mode = os.lstat(where).st_mode
        if stat.S_ISLNK(mode):
            raise UnavailableError(f"pool {pool.name}: {where} is a symlink: name the directory itself")
        if not stat.S_ISDIR(mode):
            raise UnavailableError(f"pool {pool.name}: {where} is not a directory")
        entries = set(os.listdir(where))
    except FileNotFoundError:
        return "new: the directory will be made"
    except OSError as failure:
        raise UnavailableError(f"pool {pool.name}: {where}: {failure.strerror}") from failure
    if NOTE in entries:
        raise UnavailableError(
            f"pool {pool.name}: the disk of {where} is not mounted: mount it, or remove {where / NOTE}"
        )
    if MARKER not in entries:
        if foreign := sorted(entries - _UNMARKED):
            raise UnavailableError(
                f"pool {pool.name}: {where} holds files that are not tonnage's ({foreign[0]!r}): name an empty one"
            )
        return "new: the directory is empty"
    if _marker(pool, where) == "btrfs-image":
        return "a btrfs image made before"  # its volumes can only be seen where it is mounted
    volumes = sum(entry.endswith(".json") and not entry.startswith(".") for entry in entries)
    return f"{volumes} volume{'s' * (volumes != 1)}"


def _marker(pool: PoolConfig, where: Path) -> str:
    """Return the kind in the pool's marker, "" without a marker. Raises UnavailableError."""
    try:
        marker = marker_of(where)
    except (OSError, ValueError) as failure:
        raise UnavailableError(f"pool {pool.name}: {where / MARKER} cannot be read: {failure}") from failure
    kind = marker.kind if marker is not None else ""
    if kind and kind not in _MARKS[pool.kind]:
        raise UnavailableError(f"pool {pool.name}: {where} belongs to a pool of kind {kind}, not {pool.kind}")
    return kind


def is_btrfs(where: Path) -> bool:
    """Return whether a pool's directory is, or would be, on a btrfs."""
    existing = next(path for path in (where, *where.parents) if path.is_dir())
    at = os.open(existing, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return btrfs.fsid(at) is not None
    finally:
        os.close(at)
