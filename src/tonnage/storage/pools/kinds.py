"""The kinds of pools: the one list. A kind's module is imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage.base.errors import InvalidError
from tonnage.storage.pools.kind import PoolKind

MODULES: Mapping[str, str] = {
    "image": "tonnage.storage.pools.image.kind",
    "btrfs": "tonnage.storage.pools.btrfs.kind",
    "lvm": "tonnage.storage.pools.lvm.kind",
    "quota": "tonnage.storage.pools.quota.kind",
    "static": "tonnage.storage.pools.static.kind",
    "pmem": "tonnage.storage.pools.pmem.kind",
    "fake": "tonnage.storage.pools.fake.kind",
}
"""Name -> the module whose KIND it is."""
RENAMED: Mapping[str, str] = {"memory": "fake"}
"""Old names, which classes and descriptions may still have -> names."""


def get(name: str) -> PoolKind[Any]:
    """Return the kind of that name, or of that old name. Raises: InvalidError."""
    if (kind := find(name)) is None:
        raise InvalidError(f"unknown kind {name[:40]!r}, want one of {', '.join(MODULES)}")
    return kind


def find(name: str) -> PoolKind[Any] | None:
    """Return the kind of that name, or of that old name, None for an unknown one."""
    if (module := MODULES.get(RENAMED.get(name, name))) is None:
        return None
    kind: PoolKind[Any] = importlib.import_module(module).KIND
    return kind


def take_contexts(names: Iterable[str]) -> bool:
    """Whether every volume of pools of these kinds is a file system whose mount takes an SELinux context.

    One of another kind is enough: a driver promises it for all of its volumes (CSIDriver.spec.seLinuxMount, KEP-1710).
    """
    return all((kind := find(name)) is not None and kind.selinux for name in names)


def known() -> list[PoolKind[Any]]:
    """Return all kinds."""
    return [get(name) for name in MODULES]
