"""The kind `static`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.kind import ERASE_RATE, PoolConfig, PoolKind, directory_place

if TYPE_CHECKING:
    from tonnage.base.aio.clock import Clock
    from tonnage.storage.pools.base.reservation import Disks
    from tonnage.storage.pools.core.pool import Pool


@dataclass(frozen=True)
class StaticConfig(PoolConfig):
    """where: the discovery directory, whose entries are disks."""

    @property
    def marker(self) -> Path | None:
        return _marker(self.where) if self.where else None


def _marker(where: Path) -> Path:
    from tonnage.storage.pools.directory.directory import MARKER, OWN

    return where / OWN / MARKER


def _make(config: StaticConfig, name: str, clock: Clock | None, _disks: Disks | None) -> Pool:
    from tonnage.storage.pools.core.pool import Pool
    from tonnage.storage.pools.static.backend import StaticBackend

    if config.where is None:
        raise InvalidError(f"pool {name!r}: static needs a directory, as static:/mnt/disks")
    return Pool(name, StaticBackend(config.where, clock=clock), erase_rate=config.erase_rate, clock=clock)


def _look(config: StaticConfig) -> str:
    from tonnage.storage.pools.static import discovery

    assert config.where is not None  # make() has checked it
    discovery.check_directory(config.where)
    found = discovery.look(config.where)
    rejected = "".join(f"; {entry} is left out: {why}" for entry, why in found.rejected.items())
    return f"static in {config.where}, {len(found.disks)} disks{rejected}"


def _give_up(directory: Path) -> None:
    from tonnage.storage.pools.static.backend import StaticBackend

    if not _marker(directory).exists():
        return
    backend = StaticBackend(directory)
    try:
        backend.open()
        backend.give_up()
    finally:
        backend.close()


KIND = PoolKind(
    name="static",
    place="directory of disks",
    config=StaticConfig,
    options={"eraserate": ERASE_RATE},
    read_place=directory_place,
    make=_make,
    look=_look,
    is_prepared=True,
    give_up=_give_up,
)
