"""Sweep: compares a driver's volumes with the cluster's PVs and claims.

It deletes only leftovers by itself. A leftover was never handed over: by its record no pod ever had it and it was made
empty, and its ephemeral claim is gone, or its claim has another volume or waits for another node. Any other volume
without a PV is an orphan. It stays and is reported, until a person adopts or purges it: a PV that is missing does not
show what policy it had at last. All decisions use live reads, and only volumes of a minimum age that this cluster's
agent made. A sweep that would delete many volumes stops and asks. In a cluster that returned to an older state, missing
claims may be newer than that state: the sweep deletes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from tonnage.base.aio.clock import Clock, parse_rfc3339
from tonnage.base.errors import PreconditionError, TonnageError
from tonnage.base.observe import metrics
from tonnage.csi.client.types import CreatedVolume
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, NODES, VOLUMES
from tonnage.kubernetes.api.matching import driver_volume
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.client.client import Client, refer
from tonnage.node.config.agent import AgentConfig
from tonnage.node.history import ApiHistory
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.provisioner.controller import Provisioner
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.node_scope import DriverInfo, claim_uid

log = logging.getLogger(__name__)
AGE = 60.0
"""Minimum age of a volume that a sweep judges, in seconds."""
MOST = 10
"""Maximum number of volumes that one sweep deletes without being asked."""
_RETRY = 60.0
_CREATED = "tonnage.dev/created"
_SHOWN = 5


class Verdict(Enum):
    """State of a volume without a PV."""

    WANTED = "wanted"
    """Its claim waits for it here."""
    YOUNG = "young"
    """Too young: a later sweep judges it."""
    FOREIGN = "foreign"
    """Belongs to another cluster."""
    UNSENT = "unsent"
    """Its claim waits, but not here: the sweep deletes it if no pod ever had it. Else the claim may come back."""
    LEFTOVER = "leftover"
    """Its claim got another one elsewhere or was ephemeral and is gone: the sweep deletes it if no pod ever had it."""
    ORPHAN = "orphan"
    """May hold data of a user: it stays."""


_NEEDLESS = (Verdict.UNSENT, Verdict.LEFTOVER)
_ORPHANED = (Verdict.ORPHAN, Verdict.LEFTOVER)


@dataclass(frozen=True)
class Orphan:
    """A volume without a PV.

    claim: namespace/name in its record, "" for none.
    """

    driver: str
    id: str
    size: int
    claim: str


@dataclass
class Findings:
    """Result of one driver's sweep.

    removed: deleted volumes. asked: leftovers that stay because they are too many.
    """

    removed: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    again: bool = False


class Sweep:
    """Sweep loop.

    It runs at start, after want(), and at intervals. want() reports that a PV vanished.
    """

    def __init__(self, node: NodeContext, config: AgentConfig, provisioner: Provisioner, history: ApiHistory) -> None:
        self._history, self._deletions = history, node.deletions
        self._client, self._events, self._clock = node.client, node.events, node.clock
        self._scope, self._drivers = node.scope, node.drivers
        self._readings, self._provisioner = node.readings, provisioner
        self._every = config.sweep_every
        self._wanted = asyncio.Event()
        self._found: dict[str, Findings] = {}
        self._drivers.on_add(lambda _: self.want())

    @property
    def orphans(self) -> list[Orphan]:
        """The orphans that the last sweeps found."""
        return [orphan for found in self._found.values() for orphan in found.orphans]

    def want(self) -> None:
        """Schedule a sweep."""
        self._wanted.set()

    async def run(self) -> None:
        """Work until cancelled."""
        pause: float | None = None
        is_older, is_whole = False, True
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            was_older, is_older = is_older, await self._is_older()
            # All agents wait for a person in an older state: none reads all PersistentVolumes again without a reason.
            if self._wanted.is_set() or not (was_older and is_older and is_whole):
                self._wanted.clear()
                is_whole = await self._sweep_all()
            pause = self._every or None if is_whole and not is_older else AGE
            # Deletions come in groups, and each makes a PV vanish: one sweep serves them all.
            await self._clock.sleep(1.0)

    async def _sweep_all(self) -> bool:
        """Sweep all drivers. Returns False where that has to be repeated soon."""
        is_whole = True
        for driver in self._drivers:
            try:
                is_whole &= not (await self.sweep(driver)).again
            except TonnageError as failure:
                log.warning("sweep failed driver=%s retry=%.0fs error=%s", driver.name, _RETRY, failure)
                is_whole = False
        return is_whole

    async def _is_older(self) -> bool:
        """Return whether the API server may be in an older state. Orphans are reported even so."""
        try:
            await self._history.check()
        except PreconditionError:  # which says so in the log, once
            return True
        except TonnageError as failure:
            log.warning("API server's history not read node=%s error=%s", self._scope.node, failure)
            return True
        return False

    async def sweep(self, driver: DriverInfo) -> Findings:
        """Sweep one driver once. Idempotent.

        Raises: ApiError, UnavailableError, CsiError of calls that are about all volumes; it then judges no more
        volumes. One volume that the driver cannot delete now, as its disk hangs, stays until a later sweep, and stops
        no other.
        """
        found = Findings()
        if not driver.lists_volumes:
            return found
        listed = [v for v in await driver.client.list_volumes() if _is_here(v, driver)]
        known = await self._handles(driver) if listed else set()
        leftovers = []
        for volume in listed:
            if volume.id in known or names.flex_volume(names.flex_uid(volume.id)) in known:
                continue
            verdict = await self._judge(volume, driver)
            found.again |= verdict is Verdict.YOUNG
            is_unused = await self._is_unused(volume, driver) if verdict in _NEEDLESS else False
            found.again |= is_unused is None
            if is_unused:
                leftovers.append(volume)
            elif is_unused is False and verdict in _ORPHANED and not await self._has_pv(volume, driver):
                found.orphans.append(Orphan(driver.name, volume.id, volume.size, _claim_of(volume)))
        if len(leftovers) > MOST:
            found.asked = [v.id for v in leftovers]
        else:
            for volume in leftovers:
                try:
                    found.removed += [volume.id] if await self._remove(volume, driver) else []
                except CsiError as failure:
                    log.warning("volume not deleted volume=%s reason=%s", volume.id, failure)
                    found.again = True
        await self._tell(driver, found)
        return found

    async def _handles(self, driver: DriverInfo) -> set[str]:
        """Return handles of all of the driver's PVs that may be of volumes here, and names of volumes of FlexVolumes.

        PVs that lost our label or that a person made are included. Other nodes may have volumes of the same handles.
        """
        volumes: Sequence[PersistentVolume] = (await self._client.list(VOLUMES)).items
        return {
            found[1]
            for v in volumes
            if (found := driver_volume(v)) is not None and found[0] == driver.name and driver.reaches(v)
        } | {names.flex_volume(v.metadata.uid) for v in volumes if v.spec.flex_volume}

    # Verdict

    async def _judge(self, volume: CreatedVolume, driver: DriverInfo) -> Verdict:
        record = volume.context
        if not driver.default_pool:
            return Verdict.ORPHAN  # not our record: only reported
        cluster = record.get(names.PARAM_CLUSTER, "")
        if cluster in self._scope.former:
            return Verdict.ORPHAN  # its objects are lost: whether a user needs it is not known
        if cluster and cluster != self._scope.cluster_uid:
            return Verdict.FOREIGN
        if age_of(record.get(_CREATED, ""), self._clock) < AGE:
            return Verdict.YOUNG
        if not cluster or not claim_uid(volume):
            return Verdict.ORPHAN
        namespace, name = record.get(names.CSI_PVC_NAMESPACE, ""), record.get(names.CSI_PVC_NAME, "")
        claim = await read_claim(self._client, namespace, name, names.volume_name(claim_uid(volume)))
        if claim is None:  # only an ephemeral one is no loss where the API server's state comes back that has it
            goes_with_pod = record.get(names.PARAM_EPHEMERAL) == "true" and record.get(names.PARAM_RECLAIM) == "Delete"
            return Verdict.LEFTOVER if goes_with_pod else Verdict.ORPHAN
        if claim.spec.volume_name:
            # Bound on another node: this one was made too late. Otherwise its PV was deleted by force.
            found = await find(self._client, VOLUMES, claim.spec.volume_name)
            return Verdict.LEFTOVER if found is not None and not driver.reaches(found) else Verdict.ORPHAN
        sent_here = claim.metadata.annotations.get(names.SELECTED_NODE) == self._scope.node
        return Verdict.WANTED if sent_here else Verdict.UNSENT

    async def _is_unused(self, volume: CreatedVolume, driver: DriverInfo) -> bool | None:
        """Return whether no pod ever had the volume, None where the driver does not say now."""
        try:
            return not await self._deletions.keeps_unused(driver, volume.id, copies=False)
        except CsiError as reason:
            log.warning("volume not deleted volume=%s reason=%s", volume.id, reason)
            return None

    async def _has_pv(self, volume: CreatedVolume, driver: DriverInfo) -> bool:
        """Return whether its PV was written after all PVs were listed."""
        if names.flex_uid(volume.id):
            return names.flex_volume(names.flex_uid(volume.id)) in await self._handles(driver)
        uid = claim_uid(volume)
        found = await find(self._client, VOLUMES, names.volume_name(uid)) if uid else None
        return found is not None and driver.reaches(found)

    # Deletion

    async def _remove(self, volume: CreatedVolume, driver: DriverInfo) -> bool:
        """Delete a leftover.

        Not if its claim is set to this node at this moment, or a PV appears.
        """
        uid = claim_uid(volume) or names.flex_uid(volume.id)
        if not self._provisioner.block(uid):
            return False
        try:
            if await self._judge(volume, driver) not in _NEEDLESS or await self._has_pv(volume, driver):
                return False
            why = f"claim {_claim_of(volume)} does not need it"
            if await self._deletions.delete_unused(driver, volume.id, why, copies=False):
                return False
        except PreconditionError as reason:
            log.warning("volume not deleted volume=%s reason=%s", volume.id, reason)
            return False
        finally:
            self._provisioner.unblock(uid)
        self._readings.want(driver.name, freed=True)
        return True

    async def _tell(self, driver: DriverInfo, found: Findings) -> None:
        before = self._found.get(driver.name, Findings())
        self._found[driver.name] = found
        pools = {_pool_of(o.id, driver) for o in (*before.orphans, *found.orphans)}
        for pool in pools:
            count = sum(_pool_of(o.id, driver) == pool for o in found.orphans)
            metrics.ORPHANS.labels(self._scope.node, pool).set(count)
        if found.asked and found.asked != before.asked:
            text = (
                f"{len(found.asked)} volumes of driver {driver.name} have no PersistentVolume and no user, too many to"
                f" delete unasked: {_some(found.asked)}; check them"
            )
            await self._warn("SweepStopped", text)
        if found.orphans and found.orphans != before.orphans and driver.default_pool:
            size = from_bytes(sum(o.size for o in found.orphans))
            text = (
                f"{len(found.orphans)} volumes ({size}) of driver {driver.name} have no PersistentVolume:"
                f" {_some([o.id for o in found.orphans])}; adopt or purge them"
            )
            await self._warn("OrphanedVolumes", text)

    async def _warn(self, reason: str, text: str) -> None:
        log.warning("sweep node=%s reason=%s %s", self._scope.node, reason, text)
        if node := await find(self._client, NODES, self._scope.node):
            self._events.warning(refer(NODES, node), reason, text)


def age_of(created: str, clock: Clock) -> float:
    """Return the age of a volume in seconds, by the time in its record.

    AGE without a time: an old volume, or not ours.
    """
    try:
        return clock.time() - parse_rfc3339(created)
    except ValueError:
        return AGE


async def read_claim(client: Client, namespace: str, name: str, volume: str) -> PersistentVolumeClaim | None:
    """Return the claim that a volume was made for, by a live read. volume: the name of its PV.

    None when it is gone, also if another claim has its name.
    """
    claim = await find(client, CLAIMS, name, namespace)
    return claim if claim is not None and names.volume_name(claim.metadata.uid) == volume else None


def _is_here(volume: CreatedVolume, driver: DriverInfo) -> bool:
    """Return whether the volume is on this node: a driver may list others too."""
    if not volume.topologies or not driver.segment:
        return True
    return any(all(driver.segment.get(k) == v for k, v in place.items()) for place in volume.topologies)


def _claim_of(volume: CreatedVolume) -> str:
    name = volume.context.get(names.CSI_PVC_NAME, "")
    return f"{volume.context.get(names.CSI_PVC_NAMESPACE, '')}/{name}" if name else ""


def _pool_of(handle: str, driver: DriverInfo) -> str:
    """Return the pool of a handle: our ids are `<pool>/<name>`."""
    return handle.partition("/")[0] if driver.default_pool else driver.name


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:_SHOWN])
    return f"{shown} and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else shown
