"""Gauges of the pools, updated when metrics are scraped.

Nothing is measured in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tonnage.observe import metrics
from tonnage.pools.core import status
from tonnage.pools.core.pool import Pool
from tonnage.pools.core.status import PoolStatus

log = logging.getLogger(__name__)


async def measure(pools: Iterable[Pool]) -> None:
    """Read all pools and set their gauges.

    A pool that cannot be read is reported as down; its other gauges stay as they were.
    """
    for pool in pools:
        found = await status.read(pool)
        if found.problem:
            log.warning("pool cannot be read pool=%s error=%s", pool.name, found.problem)
        _show(found)


def _show(found: PoolStatus) -> None:
    labels = (found.pool, found.kind)
    metrics.POOL_UP.labels(*labels).set(0 if found.problem else 1)
    if found.room is None:
        return
    for gauge, value in (
        (metrics.POOL_SIZE, found.room.total),
        (metrics.POOL_FREE, found.room.free),
        (metrics.POOL_LARGEST, found.room.largest),
        (metrics.POOL_RESERVED, found.promised),
        (metrics.POOL_VOLUMES, len(found.volumes)),
        (metrics.POOL_SNAPSHOTS, len(found.snapshots)),
        (metrics.POOL_ABNORMAL, len(found.abnormal)),
        (metrics.POOL_ERASING, found.erasing_bytes),
        (metrics.POOL_ERASING_VOLUMES, len(found.erasing)),
    ):
        gauge.labels(*labels).set(value)
