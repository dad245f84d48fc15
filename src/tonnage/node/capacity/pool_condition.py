"""Node condition `TonnagePoolUnavailable`: True while a pool of this node cannot write or is not open.

The agent writes it when the faults change, and never as a heartbeat. A Node that never had a fault has no such
condition. One that an agent of before has left is written anew only once the pools were tried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import NODES
from tonnage.kubernetes.api.meta import Condition, condition, to_builtins
from tonnage.kubernetes.client.client import Client, StrategicPatch
from tonnage.kubernetes.client.controller import Reconciler, on_difference
from tonnage.kubernetes.client.informer import Informers
from tonnage.storage.pools.core.pool import Pool

log = logging.getLogger(__name__)
_LONGEST = 256  # characters of each pool's fault


class PoolFaults:
    """Which pools of a driver are not available. pools: those that are served now. not_open: why one is not open."""

    def __init__(self, pools: Callable[[], Iterable[Pool]], not_open: Callable[[str], str] = lambda pool: "") -> None:
        self._pools, self._not_open = pools, not_open
        self.changed: Callable[[], None] = lambda: None
        """Called when the faults may have changed. Set by the agent."""

    def now(self) -> dict[str, str]:
        """Return what is wrong, by the pool's name."""
        found = {}
        for pool in self._pools():
            if why := self._not_open(pool.name):
                found[pool.name] = f"is not open: {why}"
            elif pool.probe.fault:
                found[pool.name] = f"cannot write: {pool.probe.fault}"
        return found

    async def look(self) -> None:
        """Try to write to each open pool."""
        await asyncio.gather(*(pool.probe.run() for pool in self._pools() if not self._not_open(pool.name)))


class PoolCondition(Reconciler[str]):
    """Controller of the condition; its only key is the node's name."""

    def __init__(self, client: Client, informers: Informers, node: str, faults: PoolFaults, clock: Clock) -> None:
        self._client, self._faults, self._clock = client, faults, clock
        nodes = informers.of(NODES, fields=f"metadata.name={node}")
        self._nodes = nodes.cache
        super().__init__("pool_condition", workers=1)
        self.watch(nodes, on_difference(lambda found: (found.metadata.uid, _of(found)), lambda found: [node]))
        faults.changed = lambda: self.enqueue(node)

    async def reconcile(self, name: str) -> float | None:
        """Write the condition if it differs. Idempotent. Raises: ApiError, UnavailableError."""
        node = self._nodes.get(name)
        if node is None:
            return None
        known = _of(node)
        if known is not None and known.status == "True" and not self._faults.now():
            await self._faults.look()
        faults = self._faults.now()
        if known is None and not faults:
            return None
        wanted = _wanted(node, faults, rfc3339(self._clock.time()))
        if wanted == known:
            return None
        written = {**to_builtins(wanted), "lastHeartbeatTime": rfc3339(self._clock.time())}
        patch = StrategicPatch(status={"conditions": [written]})  # those of the kubelet stay
        await self._client.patch(NODES, name, patch, subresource="status", uid=node.metadata.uid)
        log.info("condition written node=%s status=%s message=%s", name, wanted.status, wanted.message)
        return None


def _of(node: Node) -> Condition | None:
    return next((one for one in node.status.conditions if one.type == names.POOL_UNAVAILABLE), None)


def _wanted(node: Node, faults: dict[str, str], now: str) -> Condition:
    row = ("False", "PoolsAvailable", "all pools of the node can write")
    if faults:
        texts = [f"pool {pool} {why[:_LONGEST]}" for pool, why in sorted(faults.items())]
        row = ("True", "PoolUnavailable", f"{'; '.join(texts)}; look at the disk (dmesg), see tonnage pools")
    return condition(node.status.conditions, names.POOL_UNAVAILABLE, *row, now=now)
