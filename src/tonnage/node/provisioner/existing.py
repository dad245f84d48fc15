"""Volumes that exist for claims without a PV: an earlier agent ended between CreateVolume and the PV.

GetCapacity results include such a volume, so its claim needs no more capacity. Used before a claim is rejected.
"""

from __future__ import annotations

import logging

from tonnage.aio.clock import Clock
from tonnage.claims.node_scope import claim_uid
from tonnage.csi.errors import CsiError
from tonnage.errors import Unavailable
from tonnage.node.driver_set import DriverSet

log = logging.getLogger(__name__)
PAUSE = 60.0
"""Seconds for which a list without the claim's volume is valid: another CreateVolume call may still end."""


class ExistingVolumes:
    """Finds the volumes of claims with ListVolumes."""

    def __init__(self, drivers: DriverSet, clock: Clock) -> None:
        self._drivers, self._clock = drivers, clock
        self._listed: dict[str, tuple[float, frozenset[str]]] = {}

    async def has(self, driver: str, uid: str) -> bool:
        """Return whether the driver has a volume for the claim of that uid.

        False if the driver does not name claims in its volumes, or does not answer. True is never an old answer.
        """
        found = self._drivers.get(driver)
        if found is None or not found.lists_volumes or not found.default_pool:
            return False
        now = self._clock.monotonic()
        listed, uids = self._listed.get(driver, (float("-inf"), frozenset()))
        if now < listed + PAUSE and uid not in uids:
            return False
        try:
            volumes = await found.client.list_volumes()
        except (CsiError, Unavailable) as failure:
            log.warning("volumes not listed driver=%s error=%s", driver, failure)
            return False
        uids = frozenset(map(claim_uid, volumes)) - {""}
        self._listed[driver] = now, uids
        return uid in uids
