"""The kind `shelf`: volumes are counted, as those of a fake pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tonnage.storage.pools.fake.kind import KIND as FAKE
from tonnage.storage.pools.kind import SIZE, DeviceSetup, Needs, PoolConfig, PoolKind, PoolOption, Tool, read_flag
from tonnage.storage.pools.setup_plan import PoolSetupPlan, Step

if TYPE_CHECKING:
    from tonnage.base.aio.clock import Clock
    from tonnage.storage.pools.base.reservation import Disks
    from tonnage.storage.pools.core.pool import Pool


@dataclass(frozen=True)
class ShelfConfig(PoolConfig):
    """labelled: whether volumes get labels, which takes a printer."""

    labelled: bool = False


def _make(config: ShelfConfig, name: str, clock: Clock | None, _disks: Disks | None) -> Pool:
    from tonnage.storage.pools.fake.backend import FEATURES, FakePool

    return FakePool(name, config.size, clock=clock, features=replace(FEATURES, kind="shelf"))


def _init(config: ShelfConfig, devices: Sequence[Path], _fstype: str, _data: str) -> PoolSetupPlan:
    return PoolSetupPlan((Step(("true", *map(str, devices)), f"make {config}"),))


def _extend(_config: ShelfConfig, _devices: Sequence[Path]) -> PoolSetupPlan:
    return PoolSetupPlan(())


KIND = PoolKind(
    name="shelf",
    place="none",
    config=ShelfConfig,
    options={"size": SIZE, "labelled": PoolOption("labelled", read_flag)},
    read_place=FAKE.read_place,
    make=_make,
    look=lambda config: f"shelf, {config.size} bytes",
    needs=lambda config: Needs(tools=(Tool("label-printer", "labels"),) if config.labelled else ()),
    setup=DeviceSetup(_init, _extend),
    has_directory=False,
    is_real=False,
)
