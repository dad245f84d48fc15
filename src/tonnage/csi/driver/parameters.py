"""Class parameters and inline attributes: the pool that they choose, its parameters, and the owner record.

Under the name of another driver, objects that were written for that driver work unchanged. Each of its keys is listed
with its values; one without a meaning here is checked and then ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tonnage.api import names
from tonnage.csi.driver.driver import KEPT, OWNER_DRIVER, Driver
from tonnage.errors import InvalidError
from tonnage.pools.base.parameters import check_modifiable, check_refused, check_shared, io_limits_of, source_of
from tonnage.pools.core.pool import Pool

POOL = "pool"
KIND = "kind"
RECORDED = KEPT | {names.PARAM_UNUSED, names.PARAM_INLINE}
"""Keys that are not passed to a pool."""
_TRUE = frozenset({"true", "True", "TRUE", "t", "T", "1"})
_BOOLS = _TRUE | {"false", "False", "FALSE", "f", "F", "0"}
_FOREIGN: Mapping[str, Mapping[str, frozenset[str]]] = {
    names.PMEM_CSI: {
        "eraseafter": _BOOLS,
        "kataContainers": _BOOLS,
        "usage": frozenset({"AppDirect", "FileIO"}),
        "nsmode": frozenset({"fsdax", "sector"}),
        "persistencyModel": frozenset({"normal", "none", "cache", ""}),
    }
}
"""The parameters of other drivers, by driver name. All of PMEM-CSI's but eraseafter choose between ways to access
memory, of which there is one here."""
_SWITCHES = {"eraseafter": "erase"}
"""Foreign switches -> the parameter of a pool that means the same, with "zero" for true and "none" for false."""


@dataclass(frozen=True)
class Selection:
    """Parsed parameters. fstype: "" when not given."""

    pool: Pool
    fstype: str
    parameters: Mapping[str, str]
    owner: Mapping[str, str]


def select(driver: Driver, parameters: Mapping[str, str]) -> Selection:
    """Parse parameters. Raises InvalidError for an unknown key or pool, naming it and the known ones."""
    pool = _pool(driver, parameters.get(POOL, ""), parameters.get(KIND, ""))
    for_the_record = {k for k in parameters if k.startswith(names.CSI_PREFIX) or k in RECORDED or is_fstype(k)}
    ours = {k: v for k, v in parameters.items() if k not in for_the_record}
    ours.pop(POOL, None)
    ours.pop(KIND, None)
    foreign = _FOREIGN.get(driver.name, {})
    ours = _translate(ours, foreign, pool.features.parameters)
    check_refused(pool, ours)
    if unknown := sorted(set(ours) - pool.features.parameters):
        accepted = sorted({POOL, KIND, names.CSI_FSTYPE, *pool.features.parameters, *foreign})
        raise InvalidError(f"unknown parameter {unknown[0][:60]!r}: pool {pool.name} takes {', '.join(accepted)}")
    check_shared(ours)
    _check_source(driver, ours)
    _check_limits(driver, ours)
    owner = {key: value for key, value in parameters.items() if key in KEPT}
    owner[OWNER_DRIVER] = driver.name
    return Selection(pool, _fstype(parameters), ours, owner)


def _translate(
    parameters: Mapping[str, str], foreign: Mapping[str, frozenset[str]], known: frozenset[str]
) -> dict[str, str]:
    """Parameters without the foreign keys, or with the equivalent ones where the pool knows them.

    Keys that the pool knows stay unchanged. Raises InvalidError for a value that is not listed.
    """
    result = {}
    for key, value in parameters.items():
        if key in known or key not in foreign:
            result[key] = value
            continue
        if value not in foreign[key]:
            raise InvalidError(f"{key}={value[:40]!r}: want one of {', '.join(sorted(foreign[key]))}")
        if (ours := _SWITCHES.get(key)) is not None and ours in known:
            result.setdefault(ours, "zero" if value in _TRUE else "none")
    return result


def _check_limits(driver: Driver, parameters: Mapping[str, str]) -> None:
    if io_limits_of(parameters):
        driver.throttle.check()


def _check_source(driver: Driver, parameters: Mapping[str, str]) -> None:
    path = source_of(parameters)
    if path is None or any(path.is_relative_to(allowed) for allowed in driver.sources):
        return
    there_is = ", ".join(map(str, driver.sources)) or "there is none, see --source"
    raise InvalidError(
        f"parameter source: {path} is not in a folder whose content volumes may get on this node ({there_is})"
    )


def changes(driver: Driver, pool: Pool, mutable: Mapping[str, str]) -> dict[str, str]:
    """Mutable parameters (of a VolumeAttributesClass) without the orchestrator's own.

    Raises InvalidError, UnsupportedError.
    """
    ours = {key: value for key, value in mutable.items() if not key.startswith(names.CSI_PREFIX)}
    check_modifiable(pool, ours)
    _check_limits(driver, ours)
    return ours


def is_fstype(key: str) -> bool:
    """Whether a parameter is the file system; "fstype", in any case, is the old key for it."""
    return key == names.CSI_FSTYPE or key.lower() == "fstype"


def _fstype(parameters: Mapping[str, str]) -> str:
    named = sorted({value for key, value in parameters.items() if is_fstype(key) and value})
    if len(named) > 1:
        raise InvalidError(f"one volume has one file system, the parameters name {' and '.join(named)}")
    return named[0] if named else ""


def _pool(driver: Driver, name: str, kind: str) -> Pool:
    pool = driver.pool(name)
    kind = names.RENAMED_KINDS.get(kind, kind)  # classes outlive the names of kinds
    if not kind or pool.kind == kind:
        return pool
    if name:
        raise InvalidError(f"pool {name!r} is of kind {pool.kind}, requested {kind[:40]!r}")
    for other in driver.pools.values():
        if other.kind == kind:
            return other
    kinds = ", ".join(sorted({other.kind for other in driver.pools.values()}))
    raise InvalidError(f"there is no pool of kind {kind[:40]!r} (there is {kinds})")
