"""Differences between a node's running configuration and its file. Pure.

A reload can add pools, remove empty pools, change pool limits, metrics and the log level. All else was passed to other
processes at the start (names, sockets, topology), or would replace a pool that volume ids name. Such a change needs a
restart or is rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from tonnage.base.option import options_of
from tonnage.node.config.driver import DriverConfig
from tonnage.node.config.node import NodeConfig
from tonnage.storage.pools.kind import PoolConfig

RESTART = "restart the agent (delete its pod) to have it; pods and their volumes are not touched by that"
_LIVE = ("driver", "agent", "log_level", "pools", "metrics")
_COPIED = ("node_name", "startup_taint")
"""Fields of the agent that its driver has too."""
_FOLLOWING = ("state", "roots", "endpoint", "registry")
"""Fields that follow from the kubelet's directory."""


@dataclass(frozen=True)
class Differences:
    """Changes that a reload makes.

    added, removed: pools. bounds: pools with changed limits. metrics, level: whether these change. rejected: changes
    that a reload cannot make, each as a sentence with what to do.
    """

    added: Sequence[PoolConfig] = ()
    removed: Sequence[PoolConfig] = ()
    bounds: Sequence[PoolConfig] = ()
    metrics: bool = False
    level: bool = False
    rejected: Sequence[str] = ()


def compare(now: NodeConfig, wanted: NodeConfig) -> Differences:
    """Return the changes from one configuration to the other."""
    have = {pool.name: pool for pool in now.driver.pools}
    want = {pool.name: pool for pool in wanted.driver.pools}
    rejected = [*_others(now, wanted), *_default(now.driver, wanted.driver)]
    changed = [pool for name, pool in want.items() if name in have and pool != have[name]]
    rejected += [_moved(have[pool.name], pool) for pool in changed if not _is_same(have[pool.name], pool)]
    return Differences(
        added=[pool for name, pool in want.items() if name not in have],
        removed=[pool for name, pool in have.items() if name not in want and pool is not now.driver.pools[0]],
        bounds=[pool for pool in changed if _is_same(have[pool.name], pool)],
        metrics=now.driver.metrics != wanted.driver.metrics,
        level=now.log_level != wanted.log_level,
        rejected=rejected,
    )


def _is_same(one: PoolConfig, other: PoolConfig) -> bool:
    """Return whether both describe one pool; their limits may differ."""
    if one.kind is not other.kind:
        return False
    return replace(one, **{name: getattr(other, name) for name in one.LIMITS}) == other


def _moved(now: PoolConfig, wanted: PoolConfig) -> str:
    return (
        f"pool {now.name} is {now} and cannot become {wanted}: volumes are known by their pool's name; put it back, and"
        " give the other one a name of its own"
    )


def _default(now: DriverConfig, wanted: DriverConfig) -> list[str]:
    """Return an error if the first pool changes, the default of classes that name none."""
    first, other = now.pools[0].name, wanted.pools[0].name
    if first == other:
        return []
    text = f"pool {other} is the first now, which is the one for classes that name none; that stays {first}: {RESTART}"
    if first not in {pool.name for pool in wanted.pools}:
        return [f"{text}, but look first whether {first} has volumes (tonnage volumes), which would be out of reach"]
    return [text]


def _others(now: NodeConfig, wanted: NodeConfig) -> list[str]:
    """Return fields that changed and need a restart, by their names in the file."""
    found: dict[str, str] = {}
    for one, other in ((now, wanted), (now.agent, wanted.agent), (now.driver, wanted.driver)):
        keys = {field: option.key for field, option in options_of(type(one)).values()}
        for field in fields(one):
            old, new = getattr(one, field.name), getattr(other, field.name)
            is_copy = one is now.agent and field.name in _COPIED
            if field.name not in _LIVE and not is_copy and old != new:
                key = "kubelet" if field.name in _FOLLOWING else keys.get(field.name, field.name)
                found.setdefault(key, f"{_shown(old)} to {_shown(new)}")
    return [
        f"{name} changes from {change}, which is read at the start only: {RESTART}" for name, change in found.items()
    ]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"
