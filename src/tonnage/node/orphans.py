"""Compares what a driver has with what the cluster knows: nothing leaks, and nothing is lost.

Removed by itself is only what was surely never handed over (its claim still waits for a volume, but not from here) and
what was ephemeral with policy Delete and has no PersistentVolume (of this node: another's may have the same name) and
no claim any more, or one that got its volume elsewhere. Everything else that no PV
tells of is an orphan: kept, counted and told, for a person to adopt or purge. All is decided by live reads, on volumes
of a certain age that this cluster's agent made. A sweep that would remove much stops and asks. In a cluster that went
back to an older state, claims that are not there may be newer than that state: all is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from tonnage.aio.clock import Clock, parse_rfc3339
from tonnage.api import names
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, NODES, VOLUMES
from tonnage.api.quantity import from_bytes
from tonnage.claims.node_scope import Driver, NodeScope
from tonnage.csi.client.types import CreatedVolume
from tonnage.errors import ApiNotFound, TonnageError
from tonnage.kube.client import Client, refer
from tonnage.kube.events import EventRecorder
from tonnage.node.capacity.poller import Readings
from tonnage.node.driver_set import Drivers
from tonnage.node.provisioner.controller import Provisioner
from tonnage.observe import metrics

log = logging.getLogger(__name__)
AGE = 60.0
"""Seconds that a volume must have lived before it is judged."""
MOST = 10
"""Volumes that one sweep removes without being asked; as well, a fifth of the pool's bytes."""
_RETRY = 60.0
_CREATED = "tonnage.dev/created"
_SHOWN = 5


class Verdict(Enum):
    """What a volume without a PersistentVolume is."""

    WANTED = "wanted"
    """Its claim waits for it here."""
    YOUNG = "young"
    """To be looked at later."""
    FOREIGN = "foreign"
    """Another cluster's."""
    LEFTOVER = "leftover"
    """Nobody was ever given it, or it went with its pod: to be removed."""
    ORPHAN = "orphan"
    """May hold somebody's data: kept."""


@dataclass(frozen=True)
class Orphan:
    """A volume that no PersistentVolume tells of. claim: namespace/name of its record, "" for none."""

    driver: str
    id: str
    size: int
    claim: str


@dataclass
class Findings:
    """One driver's sweep. removed: what went. asked: what would have gone, had it not been too much."""

    removed: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    again: bool = False


class Sweep:
    """Looks at start, when want() says that a PersistentVolume vanished, and every `every` seconds (0: not)."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        *,
        scope: NodeScope,
        drivers: Drivers,
        readings: Readings,
        provisioner: Provisioner,
        clock: Clock,
        every: float = 3600.0,
        went_back: bool = False,
    ) -> None:
        self._client, self._events, self._clock, self._every = client, events, clock, every
        self._scope, self._drivers = scope, drivers
        self._readings, self._provisioner = readings, provisioner
        self._went_back = went_back
        self._wanted = asyncio.Event()
        self._found: dict[str, Findings] = {}
        drivers.on_add(lambda _: self.want())

    @property
    def orphans(self) -> list[Orphan]:
        """What was found and kept, for people to decide."""
        return [orphan for found in self._found.values() for orphan in found.orphans]

    def want(self) -> None:
        """Look soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Work until cancelled."""
        pause: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            self._wanted.clear()
            again = False
            for driver in self._drivers:
                try:
                    again |= (await self.sweep(driver)).again
                except TonnageError as failure:
                    log.warning("sweep failed driver=%s retry=%.0fs error=%s", driver.name, _RETRY, failure)
                    again = True
            pause = AGE if again else self._every or None
            # Deletions come in crowds, and each makes a volume vanish: one look serves them all.
            await self._clock.sleep(1.0)

    async def sweep(self, driver: Driver) -> Findings:
        """Compare once. May be repeated. Raises ApiError, CsiError, Unavailable: then nothing more is judged."""
        found = Findings()
        if not driver.lists_volumes:
            return found
        listed = [v for v in await driver.client.list_volumes() if _is_here(v, driver)]
        known = await self._handles(driver) if listed else set()
        leftovers = []
        for volume in listed:
            if volume.id in known:
                continue
            verdict = await self._judge(volume, driver)
            found.again |= verdict is Verdict.YOUNG
            if verdict is Verdict.LEFTOVER:
                leftovers.append(volume)
            elif verdict is Verdict.ORPHAN and not await self._has_pv(volume, driver):
                found.orphans.append(Orphan(driver.name, volume.id, volume.size, _claim_of(volume)))
        if await self._is_much(driver, listed, leftovers):
            found.asked = [v.id for v in leftovers]
        else:
            for volume in leftovers:
                if await self._remove(volume, driver):
                    found.removed.append(volume.id)
        await self._tell(driver, found)
        return found

    async def _handles(self, driver: Driver) -> set[str]:
        """Handles of all PersistentVolumes of the driver that may tell of volumes here: also of those that lost our
        label or that a person made. Other nodes may have volumes of the same handles."""
        volumes: Sequence[PersistentVolume] = (await self._client.list(VOLUMES)).items
        return {
            v.spec.csi.volume_handle
            for v in volumes
            if v.spec.csi and v.spec.csi.driver == driver.name and driver.reaches(v)
        }

    # Judging

    async def _judge(self, volume: CreatedVolume, driver: Driver) -> Verdict:
        record = volume.context
        if not driver.default_pool:
            return Verdict.ORPHAN  # not our record: only told of
        cluster = record.get(names.PARAM_CLUSTER, "")
        if cluster in self._scope.former:
            return Verdict.ORPHAN  # its objects are lost: whether anybody needs it is not known
        if cluster and cluster != self._scope.cluster_uid:
            return Verdict.FOREIGN
        if self._age(record) < AGE:
            return Verdict.YOUNG
        if not cluster or not _uid(volume):
            return Verdict.ORPHAN
        claim = await self._claim(volume)
        goes_with_pod = record.get(names.PARAM_EPHEMERAL) == "true" and record.get(names.PARAM_RECLAIM) == "Delete"
        if claim is None:
            return Verdict.LEFTOVER if goes_with_pod and not self._went_back else Verdict.ORPHAN
        if claim.spec.volume_name:
            # Bound to one on another node: this one came too late. Else it was used: its PV was removed by force.
            late = goes_with_pod and await self._is_elsewhere(claim.spec.volume_name, driver)
            return Verdict.LEFTOVER if late else Verdict.ORPHAN
        sent_here = claim.metadata.annotations.get(names.SELECTED_NODE) == self._scope.node
        return Verdict.WANTED if sent_here else Verdict.LEFTOVER

    def _age(self, record: Mapping[str, str]) -> float:
        try:
            return self._clock.time() - parse_rfc3339(record.get(_CREATED, ""))
        except ValueError:
            return AGE  # no time in the record: an old volume, or one that is not ours

    async def _claim(self, volume: CreatedVolume) -> PersistentVolumeClaim | None:
        """The claim that the volume was made for, live; None when it is gone (another may have its name)."""
        record = volume.context
        try:
            claim = await self._client.get(
                CLAIMS, record.get(names.CSI_PVC_NAME, ""), record.get(names.CSI_PVC_NAMESPACE, "")
            )
        except ApiNotFound:
            return None
        return claim if claim.metadata.uid == _uid(volume) else None

    async def _has_pv(self, volume: CreatedVolume, driver: Driver) -> bool:
        """Whether its PersistentVolume was written since all were listed."""
        found = await self._pv(names.volume_name(_uid(volume))) if _uid(volume) else None
        return found is not None and driver.reaches(found)

    async def _is_elsewhere(self, name: str, driver: Driver) -> bool:
        found = await self._pv(name)
        return found is not None and not driver.reaches(found)

    async def _pv(self, name: str) -> PersistentVolume | None:
        try:
            return await self._client.get(VOLUMES, name)
        except ApiNotFound:
            return None

    async def _is_much(
        self, driver: Driver, listed: Sequence[CreatedVolume], leftovers: Sequence[CreatedVolume]
    ) -> bool:
        if len(leftovers) > MOST:
            return True
        for pool in {_pool(v, driver) for v in leftovers}:
            room = await driver.client.get_capacity({"pool": pool}) if driver.lists_capacity else None
            total = (room.available if room else 0) + sum(v.size for v in listed if _pool(v, driver) == pool)
            if 5 * sum(v.size for v in leftovers if _pool(v, driver) == pool) > total:
                return True
        return False

    # Acting

    async def _remove(self, volume: CreatedVolume, driver: Driver) -> bool:
        """Delete a leftover, unless its claim comes here at this moment, or a PV turns up."""
        uid = _uid(volume)
        if not self._provisioner.block(uid):
            return False
        try:
            if await self._judge(volume, driver) is not Verdict.LEFTOVER or await self._has_pv(volume, driver):
                return False
            await driver.client.delete_volume(volume.id)
        finally:
            self._provisioner.unblock(uid)
        log.warning("leftover volume removed volume=%s claim=%s", volume.id, _claim_of(volume))
        self._readings.want(driver.name)
        return True

    async def _tell(self, driver: Driver, found: Findings) -> None:
        before = self._found.get(driver.name, Findings())
        self._found[driver.name] = found
        pools = {_pool_of(o.id, driver) for o in (*before.orphans, *found.orphans)}
        for pool in pools:
            count = sum(_pool_of(o.id, driver) == pool for o in found.orphans)
            metrics.ORPHANS.labels(self._scope.node, pool).set(count)
        if found.asked and found.asked != before.asked:
            text = (
                f"{len(found.asked)} volumes of driver {driver.name} belong to nobody, too many to be removed without"
                f" a word: {_some(found.asked)}; a person has to look at them"
            )
            await self._warn("SweepStopped", text)
        if found.orphans and found.orphans != before.orphans and driver.default_pool:
            size = from_bytes(sum(o.size for o in found.orphans))
            text = (
                f"{len(found.orphans)} volumes ({size}) of driver {driver.name} have no PersistentVolume and are kept:"
                f" {_some([o.id for o in found.orphans])}; a person has to adopt or purge them"
            )
            await self._warn("OrphanedVolumes", text)

    async def _warn(self, reason: str, text: str) -> None:
        log.warning("sweep node=%s reason=%s %s", self._scope.node, reason, text)
        with suppress(ApiNotFound):
            self._events.warning(refer(NODES, await self._client.get(NODES, self._scope.node)), reason, text)


def _is_here(volume: CreatedVolume, driver: Driver) -> bool:
    """A driver may list volumes of other nodes too."""
    if not volume.topologies or not driver.segment:
        return True
    return any(all(driver.segment.get(k) == v for k, v in place.items()) for place in volume.topologies)


def _uid(volume: CreatedVolume) -> str:
    """uid of the claim, out of the name that the volume was given; "" for a volume that no claim asked for."""
    name = volume.context.get(names.CSI_PV_NAME, "")
    prefix = names.volume_name("")
    return name[len(prefix) :] if name.startswith(prefix) else ""


def _claim_of(volume: CreatedVolume) -> str:
    name = volume.context.get(names.CSI_PVC_NAME, "")
    return f"{volume.context.get(names.CSI_PVC_NAMESPACE, '')}/{name}" if name else ""


def _pool(volume: CreatedVolume, driver: Driver) -> str:
    return _pool_of(volume.id, driver)


def _pool_of(handle: str, driver: Driver) -> str:
    """Our ids are `<pool>/<name>`."""
    return handle.partition("/")[0] if driver.default_pool else driver.name


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:_SHOWN])
    return f"{shown} and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else shown
