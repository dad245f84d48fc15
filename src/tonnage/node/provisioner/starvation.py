"""Starvation guard: reserves capacity for an often rescheduled pod.

Opt-in. Otherwise smaller pods may use all capacity that becomes free. The scheduler selected this node for the pod, so
all but its storage fits: selectors, taints, cpu and memory. Whatever becomes free is reserved for the pod: published
capacity excludes it, and no other claim gets it. One pod at a time for each node, and only one that fits the empty
node. The guard ends when the pod has its capacity, is gone, may run elsewhere, or has waited too long.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tonnage.capacity.ledger import ClaimReservation
from tonnage.claims.node_scope import CapacitySource
from tonnage.csi.errors import CsiError
from tonnage.errors import UnavailableError
from tonnage.node.provisioner.context import NodeContext

log = logging.getLogger(__name__)
LONGEST = 1800.0
"""Maximum seconds of the guard for one pod; then the pod is rescheduled."""


async def holds(node: NodeContext, reservations: Sequence[ClaimReservation], reschedules: int) -> bool:
    """Return whether the guard holds for these claims of one pod. Idempotent.

    Begins the guard if it can.
    """
    ledger, uids = node.ledger, {p.uid for p in reservations}
    if not node.guard_after or reschedules < node.guard_after:
        return False
    if (guarded := ledger.kept()) and not guarded & uids:
        return False
    for source in {p.source.room: p.source for p in reservations}.values():
        needed = sum(p.size for p in reservations if p.source.room == source.room)
        if not guarded and needed > await _empty_size(node, source):
            return False
    if (others := ledger.kept()) and not others & uids:  # during the call
        return False
    ledger.keep(uids)
    return True


async def _empty_size(node: NodeContext, source: CapacitySource) -> int:
    """Return bytes of an empty pool, 0 where that is not known."""
    driver = node.drivers.get(source.driver)
    if driver is None or not (driver.lists_volumes and driver.lists_capacity):
        return 0
    pool = source.room.partition("/")[2] if driver.default_pool else ""
    segment = driver.segment if driver.topology else None
    try:
        free = await driver.client.get_capacity({"pool": pool} if pool else {}, topology=segment)
        volumes = await driver.client.list_volumes()
    except (CsiError, UnavailableError) as failure:
        log.warning("capacity not known driver=%s error=%s", driver.name, failure)
        return 0
    return free.available + sum(v.size for v in volumes if not pool or v.id.startswith(f"{pool}/"))
