"""What differs between the configuration that a node serves and the one that its file asks for now; decides, does
nothing.

Pools may come, go when they are empty, and get other bounds; metrics and the level of the log may change. What else
changes is what other processes were told at the start (names, sockets, topology), or would be another pool under a name
that volumes have in their ids: that needs a restart, or is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from tonnage.node.config.driver import DriverConfig
from tonnage.node.config.node import NodeConfig
from tonnage.pools.config import PoolConfig

RESTART = "restart the agent (delete its pod) to have it; pods and their volumes are not touched by that"
_BOUNDS = ("size", "sparse", "overcommit", "rootfs", "keep", "erase_rate", "inline")
_LIVE = ("pools", "metrics")
_WORDS = {
    "state": "kubelet",
    "roots": "kubelet",
    "endpoint": "kubelet",
    "registry": "kubelet",
    "driver_name": "driverName",
    "node_name": "nodeName",
    "topology_key": "topologyKey",
    "max_volumes": "maxVolumes",
    "io_cgroup": "ioCgroup",
    "binding": "bind",
    "endpoints": "csiEndpoints",
}
"""Fields that have another name in a node's file, or follow from one there."""


@dataclass(frozen=True)
class Differences:
    """added, removed: pools. bounds: pools that are to promise more or less. metrics, level: whether these change.
    refused: what cannot be, each a sentence with what to do."""

    added: Sequence[PoolConfig] = ()
    removed: Sequence[PoolConfig] = ()
    bounds: Sequence[PoolConfig] = ()
    metrics: bool = False
    level: bool = False
    refused: Sequence[str] = ()


def compare(now: NodeConfig, wanted: NodeConfig) -> Differences:
    """What is to be done to get from one to the other."""
    have = {pool.name: pool for pool in now.driver.pools}
    want = {pool.name: pool for pool in wanted.driver.pools}
    refused = [*_others(now, wanted), *_default(now.driver, wanted.driver)]
    changed = [pool for name, pool in want.items() if name in have and pool != have[name]]
    refused += [_moved(have[pool.name], pool) for pool in changed if not _is_same(have[pool.name], pool)]
    return Differences(
        added=[pool for name, pool in want.items() if name not in have],
        removed=[pool for name, pool in have.items() if name not in want and pool is not now.driver.pools[0]],
        bounds=[pool for pool in changed if _is_same(have[pool.name], pool)],
        metrics=now.driver.metrics != wanted.driver.metrics,
        level=now.log_level != wanted.log_level,
        refused=refused,
    )


def _is_same(one: PoolConfig, other: PoolConfig) -> bool:
    """Whether both describe one pool, with bounds that may differ."""
    return replace(one, **{name: getattr(other, name) for name in _BOUNDS}) == other


def _moved(now: PoolConfig, wanted: PoolConfig) -> str:
    return (
        f"pool {now.name} is {now} and cannot become {wanted}: volumes are known by their pool's name; put it back, and"
        " give the other one a name of its own"
    )


def _default(now: DriverConfig, wanted: DriverConfig) -> list[str]:
    """The first pool is the one of all classes that name none."""
    first, other = now.pools[0].name, wanted.pools[0].name
    if first == other:
        return []
    text = f"pool {other} is the first now, which is the one for classes that name none; that stays {first}: {RESTART}"
    if first not in {pool.name for pool in wanted.pools}:
        return [f"{text}, but look first whether {first} has volumes (tonnage volumes), which would be out of reach"]
    return [text]


def _others(now: NodeConfig, wanted: NodeConfig) -> list[str]:
    """Fields that hold from the start, by their names in the file."""
    found: dict[str, str] = {}
    for one, other, live in ((now, wanted, ("driver", "log_level")), (now.driver, wanted.driver, _LIVE)):
        for field in fields(one):
            old, new = getattr(one, field.name), getattr(other, field.name)
            if field.name not in live and old != new:
                found.setdefault(_WORDS.get(field.name, field.name), f"{_shown(old)} to {_shown(new)}")
    return [
        f"{name} changes from {change}, which is read at the start only: {RESTART}" for name, change in found.items()
    ]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"
