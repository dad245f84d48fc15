"""Growth of this node's volumes: what external-resizer does, for claims of this node (KEP-284, KEP-1790).

A bound claim that requests more than it has gets it in one go: its bytes are reserved in the ledger, the driver expands
the volume and grows its file system where it is mounted, then the PV and the claim's status are written. The volume's
size is the truth: every step is repeated until both show it, so a kill at any point loses nothing.

What does not fit is infeasible: the claim says so with numbers, and it is tried again when the pool has more free, or
when the request changes. A driver whose file system cannot grow while mounted leaves that to the kubelet's next mount.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiNotFoundError, TonnageError
from tonnage.csi.client import types
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import matching
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, VOLUMES
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler, on_add
from tonnage.kubernetes.client.events import NORMAL, WARNING
from tonnage.kubernetes.client.indexes import claimed
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.capacity.ledger import Shortfall
from tonnage.provisioning.claims import growth
from tonnage.provisioning.claims.bind import change
from tonnage.provisioning.claims.growth import Growth, growth_of
from tonnage.provisioning.claims.node_scope import CapacitySource, DriverInfo
from tonnage.provisioning.claims.provisioning import SecretRef, capability_of, read_secret

log = logging.getLogger(__name__)
WORKERS = 16
RETRY_START, RETRY_MAX = 1.0, 60.0
INFEASIBLE = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND})
"""Codes of a driver that can never expand the volume to that size."""
AGAIN = 300.0
"""Seconds until a driver that reports no capacity is asked again for what it rejected."""


@dataclass
class RejectedGrowth:
    """A growth that the driver or the ledger rejected.

    asked: bytes that the claim requested then. source: where capacity was insufficient, None if it was not that. free:
    the lowest bytes that it had since. more: bytes that are needed, 0 where only the driver knows. until: monotonic
    seconds when to try again in any case.
    """

    asked: int
    source: CapacitySource | None = None
    free: int = 0
    more: int = 0
    until: float = float("inf")
    is_over: bool = False

    def look(self, available: int) -> bool:
        """Return whether to try again, with that many bytes free now."""
        self.is_over = self.is_over or (available > self.free and available >= self.more)
        self.free = min(self.free, available)
        return self.is_over


class VolumeGrowth(Reconciler[str]):
    """Loop over this node's bound claims that request more than they have."""

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        self._node = node
        self._holds: dict[str, RejectedGrowth] = {}
        self._reserved: dict[str, str] = {}  # claim -> key of its reservation in the ledger, until its outcome is known
        self._reported: dict[str, str] = {}  # claim -> the last failure that an Event reported
        super().__init__("growth", workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self._claims = self.watch(informers.of(CLAIMS, labels=node.scope.selector), self._claim_changed)
        # A bound claim may be known before its PV. Other changes of a PV do not matter.
        self._volumes = self.watch(informers.of(VOLUMES, labels=node.scope.selector), on_add(claimed))
        node.drivers.on_add(lambda _: self._look_at_all())
        node.readings.on_reading(self._look_at_held)

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        """Return the claim whose growth changed, or that the kubelet gave up. Ignored: other changes of status."""
        before = growth_of(old) if old is not None else None
        after = growth_of(new) if new is not None else None
        if after is not None and old is not None and new is not None and _gave_up(new) and not _gave_up(old):
            return (new.key,)
        is_same = old is not None and new is not None and old.metadata.uid == new.metadata.uid
        if (before is None and after is None) or (before == after and is_same):
            return ()
        claim = new or old
        return (claim.key,) if claim is not None else ()

    def _look_at_all(self) -> None:
        """Try all again: a driver that is attached again may do what it rejected."""
        for hold in self._holds.values():
            hold.is_over = True
        for claim in self._claims:
            if growth_of(claim) is not None:
                self.enqueue(claim.key)

    def _look_at_held(self) -> None:
        """Enqueue rejected claims whose pool has more free bytes now."""
        for key, hold in self._holds.items():
            left = self._node.ledger.capacity(hold.source) if hold.source is not None else None
            if left is not None and hold.look(left.available):
                self.enqueue(key)

    async def reconcile(self, key: str) -> float | None:
        """Expand the volume of one claim, if it requests that. Idempotent."""
        claim = self._claims.get(key)
        wanted = growth_of(claim) if claim is not None else None
        if claim is None or wanted is None:
            self._forget(key)
            if claim is not None:
                await self._tidy(claim)
            return None
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None or volume.spec.csi is None or not matching.is_claimed_by(volume, claim):
            return None
        driver = self._node.drivers.get(volume.spec.csi.driver)
        if driver is None or not driver.reaches(volume) or _is_kubelets(claim, wanted):
            return None
        hold = self._holds.get(key)
        if hold is not None and hold.asked == wanted.asked and not hold.is_over:
            left = hold.until - self._node.clock.monotonic()
            if left > 0:
                return left if left < float("inf") else None
        if types.EXPAND_VOLUME not in driver.controller:
            if types.EXPAND_VOLUME in await driver.client.node_capabilities():  # all of it is the node's part
                await self._write(claim, volume, types.Expanded(wanted.asked, on_node=True))
                return None
            text = f"driver {driver.name} does not expand volumes; {_copy_hint(wanted)}"
            return await self._reject(claim, wanted, text, RejectedGrowth(wanted.asked))
        return await self._grow(claim, volume, driver, wanted)

    async def _tidy(self, claim: PersistentVolumeClaim) -> None:
        """Remove the old capacity from the PV once the kubelet has grown the file system.

        A claim that gets this PV later would begin with it.
        """
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None or growth.OLD_CAPACITY not in volume.metadata.annotations or growth.awaits_node(claim):
            return

        def body(now: PersistentVolume) -> dict[str, object] | None:
            if growth.OLD_CAPACITY not in now.metadata.annotations or not matching.is_claimed_by(now, claim):
                return None
            return {"metadata": {"annotations": {growth.OLD_CAPACITY: None}}}

        with suppress(ApiNotFoundError):
            await change(self._node.client, VOLUMES, volume, body)

    def _forget(self, key: str) -> None:
        """Forget a claim that requests no more; one that was expanded keeps its reservation until it is read."""
        self._holds.pop(key, None)
        self._reported.pop(key, None)
        self._drop(key)

    def _reserve(
        self, claim: PersistentVolumeClaim, source: CapacitySource, wanted: Growth, more: int
    ) -> Shortfall | None:
        """Reserve the bytes of a growth; those of an earlier attempt with the same size stay."""
        key, uid = claim.key, claim.metadata.uid
        reservation = f"growth/{key}/{wanted.asked}/{uid}"  # no claim's uid has a slash
        if self._reserved.get(key) not in (None, reservation):
            self._drop(key)
        found = self._node.ledger.expand(reservation, source, more, now=self._node.clock.monotonic())
        if found is None:
            self._reserved[key] = reservation
        return found

    def _drop(self, key: str) -> None:
        if (reservation := self._reserved.pop(key, None)) is not None:
            self._node.ledger.removed(reservation)

    # One growth

    async def _grow(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume, driver: DriverInfo, wanted: Growth
    ) -> float | None:
        """Reserve the bytes, expand the volume, and write its size."""
        source = self._source(volume, driver)
        more = wanted.asked - max(wanted.has, matching.capacity(volume))
        await self._node.readings.first(driver)
        shortfall = self._reserve(claim, source, wanted, more) if source is not None else None
        if source is not None and shortfall is not None and not await self._has(volume, driver, wanted.asked):
            hold = RejectedGrowth(wanted.asked, source, shortfall.free, more)
            return await self._reject(claim, wanted, self._lack(driver, shortfall, wanted), hold)
        try:
            made = await self._expand(volume, driver, wanted.asked)
        except CsiError as failure:
            return await self._end_failed(claim, wanted, driver, failure, source)
        self._holds.pop(claim.key, None)
        self._absorb(claim, driver, more)
        await self._write(claim, volume, made)
        return None

    async def _expand(self, volume: PersistentVolume, driver: DriverInfo, size: int) -> types.Expanded:
        """Call the driver. Raises: CsiError; ABORTED for an answer that is too small."""
        csi = volume.spec.csi
        assert csi is not None
        ref = csi.controller_expand_secret_ref
        secrets = await read_secret(self._node.client, SecretRef(ref.name, ref.namespace) if ref else None)
        made = await driver.client.expand_volume(
            csi.volume_handle, size, capability=capability_of(volume, driver), secrets=secrets
        )
        if made.size and made.size < size:
            raise CsiError(Code.ABORTED, f"expanded to {made.size} bytes, requested {size}")
        return types.Expanded(made.size or size, made.on_node)

    async def _has(self, volume: PersistentVolume, driver: DriverInfo, size: int) -> bool:
        """Return whether the volume has that size already: an agent ended before it wrote so."""
        if types.GET_VOLUME not in driver.controller or volume.spec.csi is None:
            return False
        try:
            found, _ = await driver.client.get_volume(volume.spec.csi.volume_handle)
        except TonnageError:
            return False
        return found.size >= size

    def _absorb(self, claim: PersistentVolumeClaim, driver: DriverInfo, more: int) -> None:
        """Keep the reservation until GetCapacity results include the growth."""
        reservation = self._reserved.pop(claim.key, None)
        if reservation is not None and driver.lists_capacity:
            self._node.ledger.made(reservation, more)
            self._node.readings.want(driver.name)
        elif reservation is not None:
            self._node.ledger.removed(reservation)

    async def _write(self, claim: PersistentVolumeClaim, volume: PersistentVolume, made: types.Expanded) -> None:
        """Write the size into the PV, then into the claim's status, as external-resizer does. Idempotent."""
        why = await self._why_unfinished(volume) if made.on_node else ""
        old = claim.status.capacity.get(growth.STORAGE, "")

        def enlarge(now: PersistentVolume) -> dict[str, object] | None:
            if matching.capacity(now) >= made.size:
                return None
            notes = {"metadata": {"annotations": {growth.OLD_CAPACITY: old}}} if made.on_node else {}
            return {"spec": {"capacity": {growth.STORAGE: from_bytes(made.size)}}, **notes}

        def report(now: PersistentVolumeClaim) -> dict[str, object] | None:
            if growth_of(now) is None:
                return None
            if made.on_node:
                return growth.pending(now, made.size, why, now=rfc3339(self._node.clock.time()))
            return growth.finished(now, made.size)

        try:
            await change(self._node.client, VOLUMES, volume, enlarge)
            await change(self._node.client, CLAIMS, claim, report, subresource="status")
        except ApiNotFoundError:  # deleted meanwhile: its volume is reclaimed at its size
            return
        log.info("volume expanded volume=%s size=%d", volume.metadata.name, made.size)
        if made.on_node:
            self._tell(
                claim, NORMAL, "FileSystemResizeRequired", f"Require file system resize of volume on node: {why}"
            )
        else:
            self._tell(claim, NORMAL, "VolumeResizeSuccessful", f"Resize volume succeeded: {from_bytes(made.size)}")

    async def _why_unfinished(self, volume: PersistentVolume) -> str:
        """Return why the file system could not grow while mounted, as the driver says."""
        assert volume.spec.csi is not None
        driver = self._node.drivers.get(volume.spec.csi.driver)
        waits = "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
        if driver is None or types.GET_VOLUME not in driver.controller:
            return waits
        try:
            _, health = await driver.client.get_volume(volume.spec.csi.volume_handle)
        except TonnageError:
            return waits
        return health.message or waits

    # What failed

    async def _end_failed(
        self,
        claim: PersistentVolumeClaim,
        wanted: Growth,
        driver: DriverInfo,
        failure: CsiError,
        source: CapacitySource | None,
    ) -> float | None:
        """Classify a failure of the driver. Raises it where the claim waits for its back-off."""
        if not failure.final:  # the call may still go on: its bytes stay reserved
            self._report(claim, wanted, str(failure))
            raise failure
        self._drop(claim.key)
        self._node.readings.want(driver.name)
        is_known = driver.default_pool and source is not None  # else no reading says when it may fit
        again = float("inf") if is_known else self._node.clock.monotonic() + AGAIN
        text = failure.message if driver.default_pool else str(failure)
        if failure.exhausted:
            left = self._node.ledger.capacity(source) if source is not None else None
            free = left.available if left is not None else 0
            return await self._reject(claim, wanted, text, RejectedGrowth(wanted.asked, source, free, until=again))
        if failure.code in INFEASIBLE:
            hint = f"; {_copy_hint(wanted)}" if failure.infeasible else ""
            return await self._reject(claim, wanted, text + hint, RejectedGrowth(wanted.asked, until=again))
        await self._note(claim, text, infeasible=False)
        self._report(claim, wanted, text)
        raise failure

    async def _reject(
        self, claim: PersistentVolumeClaim, wanted: Growth, why: str, hold: RejectedGrowth
    ) -> float | None:
        """Write that the growth is infeasible, once for each request; return when to try it again."""
        known = self._holds.get(claim.key)
        is_same = known is not None and (known.asked, known.source) == (hold.asked, hold.source)
        if not is_same:  # else only its numbers may differ
            await self._note(claim, why, infeasible=True)
            self._report(claim, wanted, why)
        self._holds[claim.key] = hold
        left = hold.until - self._node.clock.monotonic()
        return left if left < float("inf") else None

    async def _note(self, claim: PersistentVolumeClaim, why: str, *, infeasible: bool) -> None:
        now = rfc3339(self._node.clock.time())

        def body(current: PersistentVolumeClaim) -> dict[str, object] | None:
            return growth.failed(current, why, infeasible=infeasible, now=now) if growth_of(current) else None

        try:
            await change(self._node.client, CLAIMS, claim, body, subresource="status")
        except ApiNotFoundError:
            return

    def _lack(self, driver: DriverInfo, shortfall: Shortfall, wanted: Growth) -> str:
        more, free = shortfall.sizes[0], shortfall.free
        pool = shortfall.source.pool_key.partition("/")[2]
        text = (
            f"{'pool' if driver.default_pool else 'driver'} {pool} on node {self._node.scope.node} has"
            f" {from_bytes(free)} free, {from_bytes(more)} more needed; delete volumes there"
        )
        most = wanted.asked - more + free
        if most <= wanted.has:
            return text
        return f"{text}, or ask for less: more than {from_bytes(wanted.has)}, at most {from_bytes(most)}"

    def _report(self, claim: PersistentVolumeClaim, wanted: Growth, why: str) -> None:
        """Emit an Event, once for each failure of a request; another process that met it counts."""
        text = f"claim {claim.key}: not expanded {wanted.text}: {why}"
        if self._reported.get(claim.key) != text:
            self._reported[claim.key] = text
            self._tell(claim, WARNING, "VolumeResizeFailed", text, once=f"{claim.metadata.uid}\0{text}")

    def _tell(self, claim: PersistentVolumeClaim, kind: str, reason: str, text: str, *, once: str = "") -> None:
        self._node.events.record(refer(CLAIMS, claim), kind, reason, text, once=once)

    def _source(self, volume: PersistentVolume, driver: DriverInfo) -> CapacitySource | None:
        """Return the ledger's source of a volume, None if its class is gone: then the driver alone decides."""
        storage_class = self._node.classes.get(volume.spec.storage_class_name)
        return driver.source(storage_class) if storage_class is not None else None


def _is_kubelets(claim: PersistentVolumeClaim, wanted: Growth) -> bool:
    """Return whether the volume has that size already, and the kubelet has yet to grow its file system."""
    if not growth.awaits_node(claim):
        return False
    allocated = claim.status.allocated_resources.get(growth.STORAGE)
    return allocated is not None and to_bytes(allocated) >= wanted.asked


def _gave_up(claim: PersistentVolumeClaim) -> bool:
    """Return whether the kubelet does not try again: what it met may be over, and the file system may have grown."""
    return claim.status.allocated_resource_statuses.get(growth.STORAGE) == growth.NODE_INFEASIBLE


def _copy_hint(wanted: Growth) -> str:
    return f"make a claim of {from_bytes(wanted.asked)} instead and copy its content"
