"""Starvation guard: reserves capacity for an often rescheduled pod.

Opt-in. Otherwise smaller pods may use all capacity that becomes free. The scheduler selected this node for the pod, so
all but its storage fits: selectors, taints, cpu and memory. Whatever becomes free is reserved for the pod: published
capacity excludes it, and no other claim gets it. One pod at a time for each node, and only one that fits the empty
node. The guard ends when the pod has its capacity, is gone, may run elsewhere, or has waited too long.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tonnage.capacity.ledger import ClaimReservation, Ledger
from tonnage.claims.node_scope import CapacitySource
from tonnage.csi.errors import CsiError
from tonnage.errors import Unavailable
from tonnage.node.driver_set import DriverSet

log = logging.getLogger(__name__)
LONGEST = 1800.0
"""Maximum seconds of the guard for one pod; then the pod is rescheduled."""


class StarvationGuard:
    """Chooses the pod of the starvation guard.

    after: reschedules that the pod must have; 0: no pod.
    """

    def __init__(self, ledger: Ledger, drivers: DriverSet, *, after: int) -> None:
        self._ledger, self._drivers, self._after = ledger, drivers, after

    async def keeps(self, promises: Sequence[ClaimReservation], withdrawals: int) -> bool:
        """Return whether the guard holds for these claims of one pod. Idempotent.

        Begins the guard if it can.
        """
        uids = {p.uid for p in promises}
        if not self._after or withdrawals < self._after:
            return False
        if (kept := self._ledger.kept()) and not kept & uids:
            return False
        for source in {p.source.room: p.source for p in promises}.values():
            if not kept and sum(p.size for p in promises if p.source.room == source.room) > await self._whole(source):
                return False
        if (others := self._ledger.kept()) and not others & uids:  # during the call
            return False
        self._ledger.keep(uids)
        return True

    async def _whole(self, source: CapacitySource) -> int:
        """Return bytes of an empty pool, 0 where that is not known."""
        driver = self._drivers.get(source.driver)
        if driver is None or not (driver.lists_volumes and driver.lists_capacity):
            return 0
        pool = source.room.partition("/")[2] if driver.default_pool else ""
        place = driver.segment if driver.topology else None
        try:
            room = await driver.client.get_capacity({"pool": pool} if pool else {}, topology=place)
            volumes = await driver.client.list_volumes()
        except (CsiError, Unavailable) as failure:
            log.warning("capacity not known driver=%s error=%s", driver.name, failure)
            return 0
        return room.available + sum(v.size for v in volumes if not pool or v.id.startswith(f"{pool}/"))
