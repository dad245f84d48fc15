"""The kind `lvm`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.base.contract import PoolLimits
from tonnage.storage.pools.kind import (
    ERASE_RATE,
    INLINE,
    OVERCOMMIT,
    SIZE,
    DeviceSetup,
    Needs,
    PoolConfig,
    PoolKind,
    PoolOption,
    Tool,
    check_bounded,
    read_size,
)

if TYPE_CHECKING:
    from tonnage.base.aio.clock import Clock
    from tonnage.storage.pools.base.reservation import Disks
    from tonnage.storage.pools.core.pool import Pool
    from tonnage.storage.pools.setup_plan import PoolSetupPlan


@dataclass(frozen=True)
class LvmConfig(PoolConfig):
    """Description of an lvm pool.

    group: the volume group. thin: its thin pool, "" for none. thin_size: bytes of the thin pool if it must be made.
    overcommit: factor for the thin pool's size.
    """

    group: str = ""
    thin: str = ""
    thin_size: int = 0
    overcommit: float = 1.0

    LIMITS: ClassVar[tuple[str, ...]] = (*PoolConfig.LIMITS, "overcommit")

    @property
    def place(self) -> str:
        return self.group

    @property
    def limits(self) -> PoolLimits:
        return PoolLimits(self.size, self.overcommit)

    @property
    def only_one_node(self) -> str:
        return f"volume group {self.group}"

    def check(self, given: Collection[str]) -> None:
        super().check(given)
        for word in ("overcommit", "thinsize"):
            if word in given and not self.thin:
                raise InvalidError(f"pool {self.name}: {word} is of a thin pool, name it with thin=")

    def existing(self) -> LvmConfig:
        return replace(self, thin_size=0)


def _place(text: str) -> Mapping[str, Any]:
    from tonnage.host.lvm import check_group

    check_group(text)
    return {"group": text}


def _read_thin(_: str, text: str) -> str:
    from tonnage.host.lvm import check_thin

    return check_thin(text)


def _make(config: LvmConfig, name: str, clock: Clock | None, _disks: Disks | None) -> Pool:
    from tonnage.storage.pools.core.pool import Pool
    from tonnage.storage.pools.lvm.backend import LvmBackend
    from tonnage.storage.pools.lvm.thin_pool import LvmLimits

    check_bounded(config)
    limits = LvmLimits(config.size, config.thin, config.thin_size, config.overcommit)
    backend = LvmBackend(name, config.group, limits, clock=clock)
    return Pool(name, backend, erase_rate=config.erase_rate, clock=clock)


def _look(config: LvmConfig) -> str:
    """One command."""
    from tonnage.host import lvm

    found = lvm.read(config.group)
    if not found.writable:
        raise UnavailableError(f"pool {config.name}: volume group {config.group} is read-only or exported")
    if config.thin and config.thin not in found.volumes and not config.thin_size:
        raise UnavailableError(
            f"pool {config.name}: volume group {config.group} has no thin pool {config.thin}: make it, or say thinsize="
        )
    free, total = from_bytes(found.free * found.extent), from_bytes(found.extents * found.extent)
    return f"lvm group {config.group}, {free} of {total} free, {len(found.disks)} disks, {found.missing} missing"


def _init(config: LvmConfig, devices: Sequence[Path], _fstype: str, _data: str) -> PoolSetupPlan:
    from tonnage.storage.pools.lvm import device_setup

    return device_setup.init(config, devices)


def _extend(config: LvmConfig, devices: Sequence[Path]) -> PoolSetupPlan:
    from tonnage.storage.pools.lvm import device_setup

    return device_setup.extend(config, devices)


KIND = PoolKind(
    name="lvm",
    place="volume group",
    config=LvmConfig,
    options={
        "size": SIZE,
        "inline": INLINE,
        "thin": PoolOption("thin", _read_thin),
        "thinsize": PoolOption("thin_size", read_size),
        "overcommit": OVERCOMMIT,
        "eraserate": ERASE_RATE,
    },
    read_place=_place,
    make=_make,
    look=_look,
    has_directory=False,
    needs=lambda _config: Needs(tools=(Tool("lvm", "lvm2"),)),
    formats=("ext4",),
    setup=DeviceSetup(_init, _extend, reads_as_root=True),
    selinux=True,
)
