"""Room kept for a pod that has gone back often, so that smaller ones do not take it for ever (opt-in).

The pod waits on the node that the scheduler chose for it, so all but the room is right there: selectors, taints, cpu
and memory. Whatever becomes free is kept for it: published capacity counts it as if it were booked, and no other claim
is booked against it. One pod a node at a time, and one only that the node could hold when it is empty. It ends when the
pod has its room, is gone, may go elsewhere, or has waited here for too long.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tonnage.capacity.ledger import ClaimReservation, Ledger
from tonnage.claims.node_scope import CapacitySource
from tonnage.csi.errors import CsiError
from tonnage.errors import Invalid, Unavailable
from tonnage.node.driver_set import DriverSet

log = logging.getLogger(__name__)
HELP = (
    "reserve a node's capacity for a pod with several volumes whose claims were rescheduled N times, so that smaller"
    " pods do not starve it (default: never)"
)
LONGEST = 1800.0
"""Seconds that a node's room is kept for one pod; then it goes back, to be sent somewhere else."""


def times(after: int) -> int:
    """after, if it is a number of withdrawals. Raises Invalid."""
    if after < 0:
        raise Invalid(f"--starvation-guard {after}: want a number of reschedules, 0 for never")
    return after


class StarvationGuard:
    """Decides for whom room is kept. after: how often a pod must have gone back before; 0: for nobody."""

    def __init__(self, ledger: Ledger, drivers: DriverSet, *, after: int) -> None:
        self._ledger, self._drivers, self._after = ledger, drivers, after

    async def keeps(self, promises: Sequence[ClaimReservation], withdrawals: int) -> bool:
        """Whether room is kept for these claims of one pod; from now on, if it can be. May be repeated."""
        uids = {p.uid for p in promises}
        if not self._after or withdrawals < self._after:
            return False
        if (kept := self._ledger.kept()) and not kept & uids:
            return False
        for source in {p.source.room: p.source for p in promises}.values():
            if not kept and sum(p.size for p in promises if p.source.room == source.room) > await self._whole(source):
                return False
        if (others := self._ledger.kept()) and not others & uids:  # while we asked
            return False
        self._ledger.keep(uids)
        return True

    async def _whole(self, source: CapacitySource) -> int:
        """Bytes of the room when nothing is in it; 0 where that is not known."""
        driver = self._drivers.get(source.driver)
        if driver is None or not (driver.lists_volumes and driver.lists_capacity):
            return 0
        pool = source.room.partition("/")[2] if driver.default_pool else ""
        place = driver.segment if driver.topology else None
        try:
            room = await driver.client.get_capacity({"pool": pool} if pool else {}, topology=place)
            volumes = await driver.client.list_volumes()
        except (CsiError, Unavailable) as failure:
            log.warning("room not known driver=%s error=%s", driver.name, failure)
            return 0
        return room.available + sum(v.size for v in volumes if not pool or v.id.startswith(f"{pool}/"))
