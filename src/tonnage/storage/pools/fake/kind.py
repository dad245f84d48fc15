"""The kind `fake`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.kind import (
    ERASE_RATE,
    INLINE,
    SIZE,
    PoolConfig,
    PoolKind,
    PoolOption,
    read_flag,
    read_size,
    size_text,
)

if TYPE_CHECKING:
    from tonnage.base.aio.clock import Clock
    from tonnage.storage.pools.base.reservation import Disks
    from tonnage.storage.pools.core.pool import Pool


@dataclass(frozen=True)
class FakeConfig(PoolConfig):
    """Description of a fake pool.

    largest: the maximum volume size in bytes, 0 for unlimited. directories: whether volumes are directories.
    """

    largest: int = 0
    directories: bool = True


def _place(text: str) -> Mapping[str, Any]:
    if text:
        raise InvalidError("a fake pool has no path, leave it out")
    return {}


def _make(config: FakeConfig, name: str, clock: Clock | None, _disks: Disks | None) -> Pool:
    if not config.size:
        raise InvalidError(f"pool {name!r}: a fake pool needs size=")
    from tonnage.storage.pools.fake.backend import FakePool

    return FakePool(
        name,
        config.size,
        largest=config.largest,
        directories=config.directories,
        clock=clock,
        erase_rate=config.erase_rate or 0,
    )


def _look(config: FakeConfig) -> str:
    return f"fake, {size_text(config)}: no limit holds, and its volumes end with the driver"


KIND = PoolKind(
    name="fake",
    place="none",
    config=FakeConfig,
    options={
        "size": SIZE,
        "inline": INLINE,
        "largest": PoolOption("largest", read_size),
        "directories": PoolOption("directories", read_flag),
        "eraserate": ERASE_RATE,
    },
    read_place=_place,
    make=_make,
    look=_look,
    has_directory=False,
    is_real=False,
)
