"""What the kinds have in common whose volumes are in a directory: its options, and how it is looked at."""

from __future__ import annotations

import importlib
import os
import re
import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.storage.pools.base.contract import NO_KEEP, Keep, PoolLimits
from tonnage.storage.pools.kind import (
    INLINE,
    OVERCOMMIT,
    SIZE,
    DeviceSetup,
    PoolConfig,
    PoolOption,
    check_bounded,
    read_flag,
    size_text,
)

if TYPE_CHECKING:
    from tonnage.base.aio.clock import Clock
    from tonnage.storage.pools.base.reservation import Disks
    from tonnage.storage.pools.core.pool import Pool
    from tonnage.storage.pools.setup_plan import PoolSetupPlan


@dataclass(frozen=True)
class DirectoryConfig(PoolConfig):
    """Description of a pool in a directory.

    sparse: content is allocated as it is written. overcommit: factor for the disk's free bytes. rootfs: whether it may
    be on the node's own disk, None: not specified. keep: the disk's min free, None: not specified.
    """

    sparse: bool = False
    overcommit: float = 1.0
    rootfs: bool | None = None
    keep: Keep | None = None

    LIMITS: ClassVar[tuple[str, ...]] = (*PoolConfig.LIMITS, "sparse", "overcommit", "rootfs", "keep")

    @property
    def marker(self) -> Path | None:
        from tonnage.storage.pools.directory.directory import MARKER

        return self.where / MARKER if self.where else None

    @property
    def limits(self) -> PoolLimits:
        return PoolLimits(self.size, self.overcommit, self.sparse, self.keep or NO_KEEP)


def _read_keep(_: str, text: str) -> Keep:
    """Min free: bytes or a share, 10Gi or 15%. Raises: InvalidError."""
    if text.endswith("%"):
        if not re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,3})?", text[:-1]):
            raise InvalidError(f"keep={text[:40]}: want a share of the disk below 100%, or bytes")
        return Keep(percent=float(text[:-1]))
    if (size := to_bytes(text)) < 0:
        raise InvalidError(f"keep={text[:40]}: want bytes, as 10Gi, or a share of the disk, as 15%")
    return Keep(size)


SPARSE = PoolOption("sparse", read_flag)
SHARED_DISK = {
    "size": SIZE,
    "inline": INLINE,
    "overcommit": OVERCOMMIT,
    "rootfs": PoolOption("rootfs", read_flag),
    "keep": PoolOption("keep", _read_keep),
}
"""Options of all these kinds."""


def making(module: str) -> Callable[[DirectoryConfig, str, Clock | None, Disks | None], Pool]:
    """Return what makes a pool in a directory. module: of its `make_backend`, imported when a pool is made."""

    def make(config: DirectoryConfig, name: str, clock: Clock | None, disks: Disks | None) -> Pool:
        from tonnage.storage.pools.core.pool import Pool

        check_bounded(config)
        if config.where is None:
            raise InvalidError(f"pool {name!r}: {config.kind} needs a directory, as {config.kind}:/var/lib/tonnage")
        make_backend = importlib.import_module(module).make_backend
        backend = make_backend(config.where, config.limits, disks=disks, clock=clock)
        return Pool(name, backend, erase_rate=config.erase_rate, clock=clock)

    return make


def made_of_devices(fstypes: Sequence[str], *, quotas: bool = False) -> DeviceSetup[DirectoryConfig]:
    """Return the set-up of a directory on a file system of its own.

    fstypes: the first is the default. quotas: whether it is made and mounted with project quotas.
    """

    def init(config: DirectoryConfig, devices: Sequence[Path], fstype: str, data: str) -> PoolSetupPlan:
        from tonnage.storage.pools.directory import device_setup

        chosen = device_setup.choose(config, fstypes, fstype, data, len(devices))
        return device_setup.init(config, devices, chosen, data, quotas=quotas)

    def extend(config: DirectoryConfig, devices: Sequence[Path]) -> PoolSetupPlan:
        from tonnage.storage.pools.directory import device_setup

        return device_setup.extend(config, devices)

    return DeviceSetup(init, extend)


def looking(*marks: str) -> Callable[[DirectoryConfig], str]:
    """Return what looks at a pool's directory. marks: kinds in the markers of directories that such a pool takes."""

    def look(config: DirectoryConfig) -> str:
        assert config.where is not None  # make() has checked it
        return f"{config.kind} in {config.where}, {size_text(config)}, {_state(config, config.where, marks)}"

    return look


def _state(pool: PoolConfig, where: Path, marks: Collection[str]) -> str:
    """Describe a pool's directory. Raises: UnavailableError."""
    from tonnage.host import fstab
    from tonnage.storage.pools.directory.directory import MARKER, NOTE

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
        if foreign := sorted(entries - {"lost+found"}):
            raise UnavailableError(
                f"pool {pool.name}: {where} holds files that are not tonnage's ({foreign[0]!r}): name an empty one"
            )
        return "new: the directory is empty"
    if _marker(pool, where, marks) == "btrfs-image":
        return "a btrfs image made before"  # its volumes can only be seen where it is mounted
    volumes = sum(entry.endswith(".json") and not entry.startswith(".") for entry in entries)
    return f"{volumes} volume{'s' * (volumes != 1)}"


def _marker(pool: PoolConfig, where: Path, marks: Collection[str]) -> str:
    """Return the kind in the pool's marker, "" without one. Raises: UnavailableError."""
    from tonnage.storage.pools.directory.directory import MARKER, marker_of

    try:
        marker = marker_of(where)
    except (OSError, ValueError) as failure:
        raise UnavailableError(f"pool {pool.name}: {where / MARKER} cannot be read: {failure}") from failure
    kind = marker.kind if marker is not None else ""
    if kind and kind not in marks:
        raise UnavailableError(f"pool {pool.name}: {where} belongs to a pool of kind {kind}, not {pool.kind}")
    return kind
