"""Attributes controller: gives bound claims of this node another VolumeAttributesClass (KEP-3751).

One call of the driver, then two writes: the PV, then the claim's status. That a change is in progress is written before
it has ended only where a kill could otherwise hide it: for the first class of a volume, since the claim may still go
back to none, and for drivers of others; also where the call takes over a second or its outcome is not known. For the
rest, each agent calls our driver once more with the present class when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import ApiNotFoundError, TonnageError
from tonnage.csi.errors import CsiError, label_of
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import ATTRIBUTES_CLASSES, CLAIMS, VOLUMES
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.storage import VolumeAttributesClass
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler, on_add, on_difference
from tonnage.kubernetes.client.indexes import claimed
from tonnage.kubernetes.client.informer import Informers
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims import attributes as change_of
from tonnage.provisioning.claims.attributes import IN_PROGRESS, INFEASIBLE, PENDING, ModifyFacts
from tonnage.provisioning.claims.bind import change
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.provisioning.claims.provisioning import SecretRef, read_secret

log = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)
WORKERS = 16
RETRY_START, RETRY_MAX = 1.0, 300.0
SLOW = 1.0
"""Seconds after which the claim says that a change is in progress."""
_REJECTED = "InvalidArgument"
_CLASSES = attrgetter(
    "spec.volume_attributes_class_name",
    "status.current_volume_attributes_class_name",
    "status.modify_volume_status",
)
_SHAPE = attrgetter(
    "metadata.uid", "metadata.deleting", "spec.volume_name", "status.phase",
    "spec.volume_attributes_class_name", "status.current_volume_attributes_class_name", "status.modify_volume_status",
)  # fmt: skip


@dataclass
class _Memory:
    """What this process knows of a claim.

    uid: of the claim. pending: class of a call whose outcome is not known. rejected: uid of the class that was
    rejected, and when it is tried again. reported: the last failure that an Event reported. claim, volume: as last
    written; the watch may be behind, and what is done would be done again.
    """

    uid: str = ""
    claim: PersistentVolumeClaim | None = None
    volume: PersistentVolume | None = None
    pending: str = ""
    rejected: tuple[str, float] = ("", 0.0)
    reported: str = ""


_NOTHING = _Memory()


class AttributesModifier(Reconciler[str]):
    """Loop over this node's claims that have, want or had a VolumeAttributesClass."""

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        self._node = node
        self._memory: dict[str, _Memory] = {}
        super().__init__("attributes", workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self._doubted: set[str] = set()
        """uids of claims that had a class when this process began: an earlier one may have begun to change it."""
        memory, known = self._memory, node.claims
        self._claims = claims = informers.of(CLAIMS, labels=node.scope.selector)
        volumes = informers.of(VOLUMES, labels=node.scope.selector)
        # Ignored: claims without a class, and changes of their other fields.
        self.watch(claims, on_difference(_SHAPE, lambda c: (c.key,) if any(_CLASSES(c)) or c.key in memory else ()))
        # A PV that appears. Ignored: its changes, since only agents write its class.
        self.watch(volumes, on_add(lambda v: [k for k in claimed(v) if (c := known.get(k)) and any(_CLASSES(c))]))
        self.watch(informers.of(ATTRIBUTES_CLASSES, optional=True), self._class_changed)
        node.drivers.on_add(lambda _: self._look_at_all())

    async def run(self) -> None:
        """Work until cancelled."""
        await self._claims.wait_synced()
        had = [c for c in self._node.claims if c.status.current_volume_attributes_class_name]
        self._doubted |= {claim.metadata.uid for claim in had}
        await super().run()

    # Events

    def _class_changed(self, old: VolumeAttributesClass | None, new: VolumeAttributesClass | None) -> Iterable[str]:
        """Return the claims that wait for a class. Ignored: its end."""
        if new is None or (old is not None and old.metadata.uid == new.metadata.uid):
            return ()
        return [c.key for c in self._node.claims if new.metadata.name in (change_of.begun(c), change_of.wanted(c))]

    def _look_at_all(self) -> None:
        for claim in self._node.claims:
            if any(_CLASSES(claim)):
                self.enqueue(claim.key)

    # Reconcile one claim

    async def reconcile(self, key: str) -> float | None:
        """Bring the volume of a claim to its class. Idempotent."""
        claim = self._node.claims.get(key)
        if claim is None or self._memory.get(key, _NOTHING).uid not in ("", claim.metadata.uid):
            self._memory.pop(key, None)
        volume = self._node.volumes.get(claim.spec.volume_name) if claim is not None else None
        if claim is None or volume is None or volume.spec.csi is None:
            return None
        driver = self._node.drivers.get(volume.spec.csi.driver)
        if driver is None or not driver.reaches(volume):
            return None
        memory = self._memory.setdefault(key, _Memory(claim.metadata.uid))
        claim, volume = _newer(claim, memory.claim), _newer(volume, memory.volume)
        return await self._run(claim, volume, driver, memory)

    async def _run(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume, driver: DriverInfo, memory: _Memory
    ) -> float | None:
        match change_of.step(await self._facts(claim, volume, driver, memory)):
            case change_of.Cancel():
                await self._cancel(claim, memory)
            case change_of.ClassMissing(name):
                await self._miss(claim, name, memory)
                return RETRY_MAX
            case change_of.RejectChange(name, why):
                await self._reject(claim, name, why, memory)
                return RETRY_MAX
            case change_of.ReapplyClass(attributes):
                return await self._assert(_Change(claim, volume, driver, attributes, memory))
            case change_of.Modify(attributes, is_recorded):
                return await self._modify(_Change(claim, volume, driver, attributes, memory), is_recorded=is_recorded)
            case change_of.Finish(name):
                await self._write_claim(claim, name)
        return None

    async def _facts(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume, driver: DriverInfo, memory: _Memory
    ) -> ModifyFacts:
        classes, goal = self._node.attributes, change_of.goal_of(claim, memory.pending)
        # Only our own driver is called again: what a call costs another one is not known.
        is_asserted = claim.metadata.uid not in self._doubted or not driver.default_pool
        found = await classes.find(goal) if goal else None
        if found is None and (other := change_of.wanted(claim)) not in ("", goal):
            goal, found = other, await classes.find(other)  # the begun change can never end
        fault = change_of.class_fault(found, driver) if found is not None else ""
        return ModifyFacts(claim, volume, goal, found, fault, is_asserted)

    async def _cancel(self, claim: PersistentVolumeClaim, memory: _Memory) -> None:
        memory.claim = await change(self._node.client, CLAIMS, claim, change_of.cancelled, subresource="status")
        memory.rejected, memory.reported = ("", 0.0), ""
        self._node.events.normal(refer(CLAIMS, claim), "VolumeModifyCanceled", "Cancelled modify.")

    async def _miss(self, claim: PersistentVolumeClaim, name: str, memory: _Memory) -> None:
        await self._record(claim, PENDING, name)
        self._tell(claim, memory, self._node.attributes.missing_text(name))

    async def _reject(self, claim: PersistentVolumeClaim, name: str, why: str, memory: _Memory) -> None:
        text = f'Modifying volume to "{name}" failed. Waiting for retry.'
        await self._record(claim, INFEASIBLE, name, text, error=(_REJECTED, why))
        self._tell(claim, memory, why)

    async def _assert(self, work: _Change) -> float | None:
        secrets = await self._secrets(work.volume)
        try:
            await _call(work, secrets)
        except CsiError as failure:
            self._tell(work.claim, work.memory, f"{_about(work.claim, work.attributes)}: {failure}")
            if failure.final:
                return RETRY_MAX
            raise
        self._doubted.discard(work.claim.metadata.uid)
        return None

    async def _modify(self, work: _Change, *, is_recorded: bool) -> float | None:
        attributes, memory = work.attributes, work.memory
        now, name = self._node.clock.monotonic(), attributes.metadata.name
        uid, until = memory.rejected
        if uid == attributes.metadata.uid and now < until:
            return until - now
        secrets = await self._secrets(work.volume)
        current = work.claim.status.current_volume_attributes_class_name
        if not is_recorded and not (current and work.driver.default_pool):
            work.claim = await self._record(work.claim, IN_PROGRESS, name, _progress(name))
        try:
            await self._call_slowly(work, secrets)
        except CsiError as failure:
            return await self._failed(work, failure)
        memory.volume = await change(self._node.client, VOLUMES, work.volume, lambda volume: _with_class(volume, name))
        await self._write_claim(work.claim, name)
        # Not before: until both say so, only this memory knows what the volume has.
        self._doubted.discard(work.claim.metadata.uid)
        memory.pending, memory.rejected, memory.reported = "", ("", 0.0), ""
        text = f"{_about(work.claim, attributes)}: successful"
        self._node.events.normal(refer(CLAIMS, work.claim), "VolumeModifySuccessful", text)
        log.info("volume modified claim=%s class=%s", work.claim.key, name)
        return None

    async def _call_slowly(self, work: _Change, secrets: Mapping[str, str]) -> None:
        """Call the driver; while that takes long, the claim says so."""
        work.memory.pending = work.attributes.metadata.name
        call = asyncio.ensure_future(_call(work, secrets))
        slow = asyncio.ensure_future(self._node.clock.sleep(SLOW))
        try:
            await asyncio.wait((call, slow), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                with suppress(TonnageError):  # it is only reported
                    name = work.memory.pending
                    work.claim = await self._record(work.claim, IN_PROGRESS, name, _progress(name))
                text = _about(work.claim, work.attributes)
                self._node.events.normal(refer(CLAIMS, work.claim), "VolumeModify", text)
            await call
        finally:
            slow.cancel()
            call.cancel()

    async def _secrets(self, volume: PersistentVolume) -> Mapping[str, str]:
        secret = change_of.modify_secret(volume)
        return await read_secret(self._node.client, SecretRef(*secret) if secret is not None else None)

    async def _failed(self, work: _Change, failure: CsiError) -> float | None:
        """Tell a failure. Raises it where the change is tried again with back-off."""
        claim, memory, name = work.claim, work.memory, work.attributes.metadata.name
        if failure.infeasible:
            memory.pending = ""
            memory.rejected = work.attributes.metadata.uid, self._node.clock.monotonic() + RETRY_MAX
            await self._reject(claim, name, failure.message, memory)
            return RETRY_MAX
        # Exhausted is no answer that lasts: what is lacking may come.
        if failure.final and not failure.exhausted:
            memory.pending = ""
            text = f'Modifying volume to "{name}" failed. Waiting for retry.'
            error = (label_of(failure.code), failure.message)
            await self._record(claim, IN_PROGRESS, name, text, error=error)
        else:
            await self._record(claim, IN_PROGRESS, name, f'Modifying volume to "{name}" is still in progress.')
        self._tell(claim, memory, f"{_about(claim, work.attributes)}: {failure}")
        raise failure

    async def _record(
        self,
        claim: PersistentVolumeClaim,
        state: str,
        target: str,
        message: str = "",
        *,
        error: tuple[str, str] | None = None,
    ) -> PersistentVolumeClaim:
        """Write the state of a change; return the claim as it is then: a later write must start from that."""
        now = self._node.clock.time()

        def patch(live: PersistentVolumeClaim) -> dict[str, object] | None:
            return change_of.changing(live, state, target, message, error=error, now=now)

        written = await change(self._node.client, CLAIMS, claim, patch, subresource="status")
        self._memory.setdefault(claim.key, _Memory(claim.metadata.uid)).claim = written
        return written

    async def _write_claim(self, claim: PersistentVolumeClaim, name: str) -> None:
        def patch(live: PersistentVolumeClaim) -> dict[str, object] | None:
            return change_of.ended(live, name)

        with suppress(ApiNotFoundError):  # it was deleted meanwhile
            written = await change(self._node.client, CLAIMS, claim, patch, subresource="status")
            self._memory.setdefault(claim.key, _Memory(claim.metadata.uid)).claim = written

    def _tell(self, claim: PersistentVolumeClaim, memory: _Memory, why: str) -> None:
        if memory.reported != why:
            memory.reported = why
            self._node.events.warning(refer(CLAIMS, claim), "VolumeModifyFailed", why)


@dataclass
class _Change:
    """One change under way. claim: as it was read or written last."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume
    driver: DriverInfo
    attributes: VolumeAttributesClass
    memory: _Memory


async def _call(work: _Change, secrets: Mapping[str, str]) -> None:
    assert work.volume.spec.csi is not None
    handle = work.volume.spec.csi.volume_handle
    await work.driver.client.modify_volume(handle, work.attributes.parameters, secrets=secrets)


def _newer(cached: T, written: T | None) -> T:
    """Return what is newer of the same object."""
    is_same = written is not None and written.metadata.uid == cached.metadata.uid
    return written if written is not None and is_same and written.metadata.version > cached.metadata.version else cached


def _with_class(volume: PersistentVolume, name: str) -> dict[str, object] | None:
    same = volume.spec.volume_attributes_class_name == name
    return None if same else {"spec": {"volumeAttributesClassName": name}}


def _about(claim: PersistentVolumeClaim, attributes: VolumeAttributesClass) -> str:
    return f"modifying volume {claim.metadata.name} with vac {attributes.metadata.name}"


def _progress(name: str) -> str:
    return f'Modifying volume to "{name}" is in progress.'
