"""The kind `pmem`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.storage.pools.kind import ERASE_RATE, INLINE, SIZE, Needs, PoolConfig, PoolKind, PoolOption, Tool

if TYPE_CHECKING:
    from tonnage.base.aio.clock import Clock
    from tonnage.storage.pools.base.reservation import Disks
    from tonnage.storage.pools.core.pool import Pool


@dataclass(frozen=True)
class PmemConfig(PoolConfig):
    """Description of a pmem pool.

    region: the region's name or cookie, "" for all. mode: of its namespaces, or lvm; "" for fsdax.
    """

    region: str = ""
    mode: str = ""

    @property
    def place(self) -> str:
        return self.region


def _place(text: str) -> Mapping[str, Any]:
    if text and not re.fullmatch(r"all|region\d{1,6}|0x[0-9a-f]{1,16}", text):
        raise InvalidError(f"region {text[:40]}: want a region as region0, its iset_id as 0xba90120012b4dc, or all")
    return {"region": "" if text == "all" else text}


def _read_mode(_: str, text: str) -> str:
    from tonnage.host.ndctl import MODES

    if text not in (known := (*MODES, "lvm")):
        raise InvalidError(f"mode={text[:40]}: want one of {', '.join(known)}")
    return text


def _make(config: PmemConfig, name: str, clock: Clock | None, _disks: Disks | None) -> Pool:
    from tonnage.storage.pools.core.pool import Pool
    from tonnage.storage.pools.pmem import volume_group
    from tonnage.storage.pools.pmem.backend import PmemBackend

    if config.mode == "lvm":
        backend = volume_group.make_backend(name, config.region, size=config.size, clock=clock)
        return Pool(name, backend, erase_rate=config.erase_rate, clock=clock)
    namespaces = PmemBackend(name, config.region, mode=config.mode or "fsdax", most=config.size, clock=clock)
    return Pool(name, namespaces, erase_rate=config.erase_rate, clock=clock)


def _look(config: PmemConfig) -> str:
    from tonnage.storage.pools.pmem import region

    found = region.select(config.region, f"pool {config.name}")
    regions = ", ".join(f"{one.name} ({from_bytes(one.free)} of {from_bytes(one.size)} free)" for one in found)
    return f"pmem in {regions}, mode {config.mode or 'fsdax'}"


KIND = PoolKind(
    name="pmem",
    place="region, or all",
    config=PmemConfig,
    options={"size": SIZE, "inline": INLINE, "mode": PoolOption("mode", _read_mode), "eraserate": ERASE_RATE},
    read_place=_place,
    make=_make,
    look=_look,
    has_directory=False,
    needs=lambda _config: Needs(tools=(Tool("ndctl", "ndctl"),)),
    formats=("ext4",),
    selinux=True,
)
