"""The kinds of pools: the one list. A kind's module is imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from tonnage.errors import InvalidError
from tonnage.pools.kind import PoolKind

MODULES: Mapping[str, str] = {
    "image": "tonnage.pools.image.kind",
    "btrfs": "tonnage.pools.btrfs.kind",
    "lvm": "tonnage.pools.lvm.kind",
    "quota": "tonnage.pools.quota.kind",
    "static": "tonnage.pools.static.kind",
    "pmem": "tonnage.pools.pmem.kind",
    "fake": "tonnage.pools.fake.kind",
}
"""Name -> the module whose KIND it is."""
RENAMED: Mapping[str, str] = {"memory": "fake"}
"""Old names, which classes and descriptions may still have -> names."""


def get(name: str) -> PoolKind[Any]:
    """Return the kind of that name, or of that old name. Raises InvalidError."""
    if (kind := find(name)) is None:
        raise InvalidError(f"unknown kind {name[:40]!r}, want one of {', '.join(MODULES)}")
    return kind


def find(name: str) -> PoolKind[Any] | None:
    """Return the kind of that name, or of that old name, None for an unknown one."""
    if (module := MODULES.get(RENAMED.get(name, name))) is None:
        return None
    kind: PoolKind[Any] = importlib.import_module(module).KIND
    return kind


def known() -> list[PoolKind[Any]]:
    """Return all kinds."""
    return [get(name) for name in MODULES]
