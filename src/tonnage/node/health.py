"""Volume health: Events on claims whose volumes become abnormal, and when they are well again.

The driver is asked, never the API server: one ListVolumes at intervals. An Event is emitted on a change only. A failed
call says nothing of a volume, and a volume that is missing in one list may be new.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tonnage.base.errors import TonnageError
from tonnage.csi.client import types
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.kinds import CLAIMS, NODES
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.events import NORMAL
from tonnage.node.capacity.poller import shorten
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.node_scope import DriverInfo

log = logging.getLogger(__name__)
POLLS = 1.0
"""Seconds between two looks, in times of the capacity poller's."""
MISSING = 2
"""Lists in a row without a volume after which it counts as abnormal."""
WELL = "The Volume returns to the healthy state"
_SHOWN = 5


@dataclass
class _Seen:
    """What is known of a volume.

    fault: "" for a healthy one. changes: how often it changed in this process. missing: lists in a row without it.
    """

    fault: str = ""
    changes: int = 0
    missing: int = 0


class VolumeHealth:
    """Loop over the volumes of this node that claims have.

    every: seconds between two looks, 0 for none. spread: factor of each wait, so that nodes do not look in step.
    """

    def __init__(
        self, node: NodeContext, every: float, *, spread: Callable[[], float] = lambda: random.uniform(0.9, 1.1)
    ) -> None:
        self._node, self._every, self._spread = node, every, spread
        self._seen: dict[str, _Seen] = {}  # uid of the PV
        self._ill: dict[str, frozenset[str]] = {}  # driver -> uids of abnormal volumes

    async def run(self) -> None:
        """Work until cancelled; return at once where there is no interval."""
        while self._every > 0:
            await self._node.clock.sleep(self._every * self._spread())
            for driver in self._node.drivers:
                try:
                    await self.look(driver)
                except TonnageError as failure:
                    log.warning("volume health not known driver=%s error=%s", driver.name, failure)

    async def look(self, driver: DriverInfo) -> None:
        """Look at a driver's volumes once. Idempotent. Raises: CsiError, UnavailableError, ApiError."""
        if types.VOLUME_CONDITION not in driver.controller or not driver.lists_volumes:
            return
        found = await driver.client.list_conditions()
        held = {v.metadata.uid: v for v in self._node.volumes if _is_held(v, driver)}
        for uid in self._seen.keys() - {v.metadata.uid for v in self._node.volumes}:
            del self._seen[uid]
        for uid, volume in held.items():
            seen = self._seen.setdefault(uid, _Seen())
            health = await self._health(volume, driver, found, seen)
            if health is not None:
                self._tell(volume, seen, shorten(health.message) if health.abnormal else "")
        await self._tell_node(driver, [v for uid, v in held.items() if self._seen[uid].fault], len(held))

    async def _health(
        self, volume: PersistentVolume, driver: DriverInfo, found: Mapping[str, types.Health], seen: _Seen
    ) -> types.Health | None:
        """Return the condition of a volume, None where it is not known."""
        assert volume.spec.csi is not None
        handle = volume.spec.csi.volume_handle
        if handle in found:
            seen.missing = 0
            return found[handle]
        seen.missing += 1
        if seen.missing < MISSING:
            return None
        if types.GET_VOLUME in driver.controller:
            try:
                return (await driver.client.get_volume(handle))[1]
            except CsiError as failure:
                if failure.code in (Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.ABORTED):
                    return None
                return types.Health(abnormal=True, message=failure.message)
        return types.Health(abnormal=True, message=f"driver {driver.name} no longer lists volume {handle}")

    def _tell(self, volume: PersistentVolume, seen: _Seen, fault: str) -> None:
        if fault == seen.fault:
            return
        seen.fault = fault
        ref = volume.spec.claim_ref
        assert ref is not None
        about = ObjectReference(CLAIMS.api_version, CLAIMS.kind, ref.namespace, ref.name, ref.uid)
        # After a restart the first fault has the key that it had before, if it is the same.
        key = f"{volume.metadata.uid}\0{fault}\0{seen.changes}"
        seen.changes += 1
        if fault:
            self._node.events.warning(about, "VolumeConditionAbnormal", fault, once=key)
        else:
            self._node.events.record(about, NORMAL, "VolumeConditionNormal", WELL, once=key)
        log.warning("volume health changed volume=%s fault=%s", volume.metadata.name, fault or "none")

    async def _tell_node(self, driver: DriverInfo, ill: list[PersistentVolume], count: int) -> None:
        """Emit an Event on the Node when its first volume becomes abnormal, and when none is any more.

        Not a condition of the Node: the agent would need the right to write the status of nodes.
        """
        before, now = self._ill.get(driver.name, frozenset()), frozenset(v.metadata.uid for v in ill)
        self._ill[driver.name] = now
        if bool(before) == bool(now) or (node := await find(self._node.client, NODES, self._node.scope.node)) is None:
            return
        if not now:
            self._node.events.normal(
                refer(NODES, node), "VolumesNormal", f"all volumes of driver {driver.name} are well"
            )
            return
        ours = sorted(f"{v.spec.claim_ref.namespace}/{v.spec.claim_ref.name}" for v in ill if v.spec.claim_ref)
        shown = ", ".join(ours[:_SHOWN]) + (f" and {len(ours) - _SHOWN} more" if len(ours) > _SHOWN else "")
        text = (
            f"{len(ill)} of {count} volumes of driver {driver.name} are abnormal, of claims {shown}; see their Events"
        )
        key = "\0".join((node.metadata.uid, driver.name, *sorted(now)))
        self._node.events.warning(refer(NODES, node), "VolumesAbnormal", text, once=key)


def _is_held(volume: PersistentVolume, driver: DriverInfo) -> bool:
    csi, ref = volume.spec.csi, volume.spec.claim_ref
    is_bound = volume.status.phase == "Bound" and ref is not None and bool(ref.uid)
    if volume.status.reason == names.RECLAIMED:
        return False
    return is_bound and csi is not None and csi.driver == driver.name and driver.reaches(volume)
