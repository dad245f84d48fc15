"""Class parameters that several kinds of pools share: parsed once, rejected by name.

A kind lists its parameters in `Features.parameters` and parses those that only it has (`thin`, `nsmode` ...) itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tonnage.api.quantity import to_bytes
from tonnage.errors import InvalidError
from tonnage.pools.base.contract import FeaturedPool, PoolVolume

ERASE, RESERVE, SOURCE, MKFS_OPTIONS = "erase", "reserve", "source", "mkfsOptions"
IOPS, BANDWIDTH = "iops", "bandwidth"
LIMITS = frozenset({IOPS, BANDWIDTH})
ERASURES = ("none", "discard", "zero", "shred")
_SOURCE_SCHEME = "dir://"
_MOST = 2**62


@dataclass(frozen=True)
class IoLimits:
    """I/O limits of a volume, for reads and writes each: operations and bytes per second, 0 for unlimited."""

    iops: int = 0
    bandwidth: int = 0

    def __bool__(self) -> bool:
        return bool(self.iops or self.bandwidth)


def erase_of(parameters: Mapping[str, str], offered: Iterable[str] = ERASURES) -> str:
    """How content is erased when the volume is deleted: `none`, `discard`, `zero` or `shred`. Raises InvalidError."""
    method = parameters.get(ERASE, "none")
    if method not in (known := tuple(offered)):
        raise InvalidError(f"parameter erase: {method[:40]!r} is not offered here, want {' or '.join(known)}")
    return method


def io_limits_of(parameters: Mapping[str, str]) -> IoLimits:
    """The limits of `iops` (a number) and `bandwidth` (a quantity of bytes in a second, as 50Mi).

    Raises InvalidError.
    """
    return IoLimits(_amount(parameters, IOPS), _amount(parameters, BANDWIDTH))


def reserve_of(parameters: Mapping[str, str]) -> int:
    """Bytes of the pool that volumes of the class leave free. Raises InvalidError."""
    return _amount(parameters, RESERVE)


def source_of(parameters: Mapping[str, str]) -> Path | None:
    """The directory on the node that a new volume is populated from (`dir:///data/models`), None for none.

    Raises InvalidError. The driver's allow-list decides whether that directory may be used.
    """
    text = parameters.get(SOURCE, "")
    if not text:
        return None
    path = text.removeprefix(_SOURCE_SCHEME)
    if path == text or not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise InvalidError(f"parameter source: {text[:80]!r}: want a folder of the node, as dir:///data/models")
    return Path(os.path.normpath(path))


def check_refused(pool: FeaturedPool, parameters: Iterable[str]) -> None:
    """Reject parameters that a kind does not support, with the reason. Raises InvalidError."""
    refused = pool.features.refused
    if names := sorted(refused.keys() & set(parameters)):
        where = f"pool {pool.name!r} ({pool.features.kind})"
        raise InvalidError(f"parameter {names[0]}: {where} cannot have it: {refused[names[0]]}")


def check_shared(parameters: Mapping[str, str]) -> None:
    """Check the values of the shared parameters. Raises InvalidError."""
    if not parameters:
        return  # as most classes
    erase_of(parameters)
    io_limits_of(parameters)
    reserve_of(parameters)
    source_of(parameters)


def changed(pool: FeaturedPool, volume: PoolVolume, parameters: Mapping[str, str]) -> dict[str, str]:
    """The volume's `mutable` parameters after Pool.modify(); an empty value restores the class's.

    Raises InvalidError for a parameter that `pool` cannot change, and for a bad value.
    """
    check_modifiable(pool, parameters)
    kept = {**volume.mutable, **parameters}
    return {key: value for key, value in kept.items() if value}


def check_modifiable(pool: FeaturedPool, parameters: Mapping[str, str]) -> None:
    """Check parameters to change, or to set over those of the class. Raises InvalidError."""
    check_refused(pool, parameters)
    if unknown := sorted(set(parameters) - pool.features.modifiable):
        there_is = (
            f"what can be changed is {', '.join(sorted(pool.features.modifiable))}"
            if pool.features.modifiable
            else "none can be"
        )
        raise InvalidError(
            f"pool {pool.name!r} ({pool.features.kind}) cannot change the parameter {unknown[0][:60]!r}: {there_is}"
        )
    check_shared({key: value for key, value in parameters.items() if value})


def _amount(parameters: Mapping[str, str], key: str) -> int:
    text = parameters.get(key, "")
    if not text:
        return 0
    try:
        amount = to_bytes(text)
    except InvalidError as reason:
        raise InvalidError(f"parameter {key}: {reason}") from None
    if not 1 <= amount <= _MOST:
        raise InvalidError(f"parameter {key}: {text[:40]!r}: want 1 or more")
    return amount
