"""The loop over VolumeAttachments of the served drivers, with external-attacher's objects.

Order of an attachment's writes: the finalizer of its PV (once), its own finalizer with the node's id, the driver's
call, its status. So whatever was published has an attachment that cannot vanish before it is unpublished, and a PV that
names the volume. Detaching is the driver's call and one write, which takes the finalizer off.

A PV gets its finalizer as soon as it is bound, so that no pod waits for that write. Another loop does that: at the
first start thousands of PVs may be bound, and no attachment is to wait for them.

Ignored: changes of errors, metadata and finalizers of attachments, which are our own writes, and of PVs that stay
bound. Attached volumes are compared with ListVolumes elsewhere, which calls attach_again().
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import ref

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiError, ApiNotFoundError, PreconditionError, TonnageError
from tonnage.base.observe import metrics
from tonnage.controller.attach.decision import (
    NODE_ID,
    AttachmentFacts,
    AttachVolume,
    DetachVolume,
    MarkAttached,
    RejectAttachment,
    decide,
)
from tonnage.controller.attach.drivers import AttachingDriver, AttachingDrivers
from tonnage.controller.config import LoopContext
from tonnage.csi.client import types
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api.core import PersistentVolume, SecretReference
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CSI_NODES, VOLUMES, Kind
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.storage import CSINode, VolumeAttachment
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.controller import Reconciler, on_difference
from tonnage.kubernetes.client.object_write import patch_object, without_finalizers
from tonnage.provisioning.claims.bind import change
from tonnage.provisioning.claims.provisioning import SecretRef, read_secret

log = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)
WORKERS, PROTECTORS = 100, 8
RETRY_START, RETRY_MAX = 1.0, 300.0
_BY_VOLUME, _BY_NODE, _BY_DRIVER = "attacher: by volume", "attacher: by node", "attacher: by driver"


class VolumeProtector(Reconciler[str]):
    """Loop over PVs, by name: our finalizer is on those that are bound, until they are deleted and attached nowhere.

    holding: returns the attachments of a volume that are or may be attached.
    """

    def __init__(
        self,
        context: LoopContext,
        drivers: AttachingDrivers,
        holding: Callable[[str, AttachingDriver], Sequence[VolumeAttachment]],
    ) -> None:
        super().__init__("volume-protector", workers=PROTECTORS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self._client, self._drivers, self._holding = context.client, drivers, holding
        self._volumes = self.watch(context.informers.of(VOLUMES), on_difference(_shape_of_volume, _of_volume))
        drivers.on_add(self._driver_added)

    async def reconcile(self, key: str) -> None:
        """Protect a PV that will be attached, or release one that is being deleted. Idempotent. Raises: ApiError."""
        volume = self._volumes.get(key)
        source = volume.spec.csi if volume is not None else None
        driver = self._drivers.get(source.driver) if source is not None else None
        if volume is None or driver is None:
            return
        if volume.metadata.deleting:
            # An attachment that waits keeps nothing: a PV that is being deleted is not attached any more.
            if not self._holding(key, driver):
                await _release(self._client, VOLUMES, volume, driver)
        elif _is_bound(volume) and driver.has(types.PUBLISH_UNPUBLISH_VOLUME):
            with suppress(ApiNotFoundError):
                await self.protect(volume, driver)

    async def protect(self, volume: PersistentVolume, driver: AttachingDriver) -> None:
        """Put our finalizer on the PV: while it is attached, somebody must know the volume's handle. Idempotent.

        Raises: PreconditionError for a PV that is being deleted without it, ApiError.
        """

        def body(now: PersistentVolume) -> dict[str, Any] | None:
            if driver.finalizer in now.metadata.finalizers:
                return None
            if now.metadata.deleting:
                raise PreconditionError(f'PersistentVolume "{now.metadata.name}" is marked for deletion')
            return _metadata([*now.metadata.finalizers, driver.finalizer])

        await change(self._client, VOLUMES, volume, body)

    def _driver_added(self, _driver: AttachingDriver) -> None:
        for volume in self._volumes:
            for key in _of_volume(volume):
                self.enqueue(key)


class Attacher(Reconciler[str]):
    """Loop over VolumeAttachments, by name."""

    def __init__(self, context: LoopContext, drivers: AttachingDrivers) -> None:
        super().__init__("attacher", workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self._client, self._clock, self._drivers = context.client, context.clock, drivers
        self._held: set[str] = set()  # uids of attachments that may be attached, whatever the cache says
        self._again: set[str] = set()
        informers = context.informers
        self.attachments = informers.of(ATTACHMENTS).cache
        self.attachments.add_index(_BY_VOLUME, lambda one: (one.volume_name,))
        self.attachments.add_index(_BY_NODE, lambda one: (one.node_name,))
        self.attachments.add_index(_BY_DRIVER, lambda one: (one.attacher,))
        self._nodes = self.watch(informers.of(CSI_NODES), self._node_changed)
        self._volumes = self.watch(
            informers.of(VOLUMES), on_difference(_shape_of_volume, lambda v: self._of_volume(v.metadata.name))
        )
        self.watch(informers.of(ATTACHMENTS), self._attachment_changed)
        drivers.on_add(self._driver_added)
        self.protector = VolumeProtector(context, drivers, self._holding)

    def attached(self, driver: str) -> dict[str, VolumeAttachment]:
        """Attachments of a driver that are attached and stay, by name."""
        found = self.attachments.by(_BY_DRIVER, driver)
        return {one.metadata.name: one for one in found if one.attached and not one.metadata.deleting}

    def handle_of(self, one: VolumeAttachment) -> str:
        """Handle of an attachment's volume, "" when it is not known."""
        volume = self._volumes.get(one.volume_name)
        return volume.spec.csi.volume_handle if volume is not None and volume.spec.csi is not None else ""

    def attach_again(self, name: str) -> None:
        """Attach once more what the driver says is not attached."""
        self._again.add(name)
        self.enqueue(name)

    async def reconcile(self, key: str) -> None:
        """Attach or detach one volume. Idempotent: may be killed between any two lines.

        Raises: ApiError; CsiError and others after they are written to the attachment.
        """
        one = self.attachments.get(key)
        driver = self._drivers.get(one.attacher) if one is not None else None
        if one is None or driver is None:
            return
        match decide(self._facts(one, driver)):
            case AttachVolume() as wanted:
                await self._reported(one, "attachError", self._attach(one, driver, wanted))
            case MarkAttached():
                await self._write_attached(one, {})
            case DetachVolume() as wanted:
                await self._reported(one, "detachError", self._detach(one, driver, wanted))
            case RejectAttachment(message, field):
                await self._reported(one, field, _reject(message))
        self._again.discard(key)

    def _facts(self, one: VolumeAttachment, driver: AttachingDriver) -> AttachmentFacts:
        node = self._nodes.get(one.node_name)
        entry = node.driver(driver.name) if node is not None else None
        return AttachmentFacts(
            one,
            driver,
            self._volumes.get(one.volume_name),
            entry.node_id if entry is not None else "",
            self._rival(one, driver),
            one.metadata.name in self._again,
        )

    def _rival(self, one: VolumeAttachment, driver: AttachingDriver) -> str:
        """Another node to which the volume is or may be attached.

        Nothing else runs between this look and the entry into _held, so of two new attachments one is first.
        """
        for other in self._holding(one.volume_name, driver):
            if other.metadata.uid != one.metadata.uid and other.node_name != one.node_name:
                return other.node_name
        return ""

    def _holding(self, volume: str, driver: AttachingDriver) -> list[VolumeAttachment]:
        """Attachments of a volume that are or may be attached."""
        found = self.attachments.by(_BY_VOLUME, volume)
        return [one for one in found if driver.finalizer in one.metadata.finalizers or one.metadata.uid in self._held]

    # Attaching

    async def _attach(self, one: VolumeAttachment, driver: AttachingDriver, wanted: AttachVolume) -> None:
        self._held.add(one.metadata.uid)
        secrets = await self._secrets(wanted.secret)
        await self.protector.protect(wanted.volume, driver)
        one = await self._protect(one, driver, wanted.node_id)
        metadata = await driver.client(one.node_name).attach_volume(
            wanted.source.volume_handle,
            wanted.node_id,
            wanted.capability,
            read_only=wanted.read_only,
            context=wanted.source.volume_attributes,
            secrets=secrets,
        )
        await self._write_attached(one, metadata)

    async def _protect(self, one: VolumeAttachment, driver: AttachingDriver, node_id: str) -> VolumeAttachment:
        """Put our finalizer and the node's id on the attachment, in one write."""

        def body(now: VolumeAttachment) -> dict[str, Any] | None:
            meta = now.metadata
            if driver.finalizer in meta.finalizers and meta.annotations.get(NODE_ID) == node_id:
                return None
            finalizers = list(dict.fromkeys([*meta.finalizers, driver.finalizer]))
            return _metadata(finalizers, annotations={NODE_ID: node_id})

        return await change(self._client, ATTACHMENTS, one, body)

    async def _write_attached(self, one: VolumeAttachment, metadata: Mapping[str, str]) -> None:
        before = one.status.get("attachmentMetadata") or {}
        if one.attached and before == metadata and not one.status.get("attachError"):
            return
        shown: dict[str, str | None] = {**dict.fromkeys(before), **metadata}  # a merge patch removes what is null
        status = {"attached": True, "attachmentMetadata": shown or None, "attachError": None}
        await patch_object(self._client, ATTACHMENTS, one, {"status": status}, subresource="status", guarded=False)
        log.info("volume attached attachment=%s volume=%s node=%s", one.metadata.name, one.volume_name, one.node_name)

    # Detaching

    async def _detach(self, one: VolumeAttachment, driver: AttachingDriver, wanted: DetachVolume) -> None:
        if wanted.source is not None:
            secrets = await self._secrets(wanted.source.controller_publish_secret_ref)
            client = driver.client(one.node_name)
            await client.detach_volume(wanted.source.volume_handle, wanted.node_id, secrets=secrets)
        if set(one.metadata.finalizers) != {driver.finalizer}:  # it stays, for somebody else
            status = {"attached": False, "attachmentMetadata": None, "detachError": None}
            one = await patch_object(
                self._client, ATTACHMENTS, one, {"status": status}, subresource="status", guarded=False
            )
        await _release(self._client, ATTACHMENTS, one, driver)
        self._held.discard(one.metadata.uid)
        log.info("volume detached attachment=%s volume=%s node=%s", one.metadata.name, one.volume_name, one.node_name)

    # Errors and Secrets

    async def _reported(self, one: VolumeAttachment, field: str, work: Any) -> None:
        """Await work; write its error to the status, once for each text, and raise it."""
        try:
            await work
        except ApiNotFoundError as failure:
            if await self._is_gone(one):
                return  # with its attachment, the wish is gone too
            await self._write_error(one, field, failure)
            raise
        except TonnageError as failure:
            if not isinstance(failure, ApiError):  # the API server's own faults are not the volume's
                await self._write_error(one, field, failure)
            raise

    async def _is_gone(self, one: VolumeAttachment) -> bool:
        with suppress(ApiNotFoundError):
            now = await self._client.get(ATTACHMENTS, one.metadata.name)
            return now.metadata.uid != one.metadata.uid
        return True

    async def _write_error(self, one: VolumeAttachment, field: str, failure: TonnageError) -> None:
        now = self.attachments.get(one.metadata.name)
        before = ((now or one).status.get(field) or {}).get("message", "")
        if before == str(failure):
            return
        error: dict[str, Any] = {"message": str(failure), "time": rfc3339(self._clock.time())}
        if isinstance(failure, CsiError):
            error["errorCode"] = failure.code.value
        with suppress(ApiNotFoundError):
            body = {"status": {field: error}}
            await patch_object(self._client, ATTACHMENTS, one, body, subresource="status", guarded=False)

    async def _secrets(self, found: SecretReference | None) -> dict[str, str]:
        return await read_secret(self._client, None if found is None else SecretRef(found.name, found.namespace))

    # Events of the watches

    def _attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> Iterable[str]:
        if old is not None and new is not None and _shape(old) == _shape(new):
            return
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._held.discard(old.metadata.uid)
            self.protector.enqueue(old.volume_name)
            yield from self._of_volume(old.volume_name)
        if new is not None:
            yield new.metadata.name

    def _of_volume(self, name: str) -> Iterable[str]:
        return _keys(self.attachments.by(_BY_VOLUME, name))

    def _node_changed(self, old: CSINode | None, new: CSINode | None) -> Iterable[str]:
        node = new or old
        assert node is not None
        return _keys(self.attachments.by(_BY_NODE, node.metadata.name))

    def _driver_added(self, driver: AttachingDriver) -> None:
        weak = ref(self)

        def counts(driver: AttachingDriver) -> Mapping[str, int]:
            attacher = weak()
            if attacher is None or attacher._drivers.get(driver.name) is not driver:
                return {}  # of a term that has ended: another may count the same objects
            return attacher.counts(driver.name)

        metrics.ATTACHMENTS.count(driver, driver.name, counts)
        for one in self.attachments.by(_BY_DRIVER, driver.name):
            self.enqueue(one.metadata.name)

    def counts(self, driver: str) -> Mapping[str, int]:
        """Attachments of a driver by state."""
        states = dict.fromkeys(("attached", "attaching", "detaching", "failed"), 0)
        return states | Counter(_state(one) for one in list(self.attachments.by(_BY_DRIVER, driver)))


def _metadata(finalizers: list[str] | None, **more: Any) -> dict[str, Any]:
    return {"metadata": {"finalizers": finalizers, **more}}


async def _release(client: Client, kind: Kind[T], obj: T, driver: AttachingDriver) -> None:
    """Take our finalizer off, in one write."""
    with suppress(ApiNotFoundError):
        await change(client, kind, obj, lambda now: without_finalizers(now, driver.finalizer))


def _is_bound(volume: PersistentVolume) -> bool:
    return volume.status.phase == "Bound"


def _shape_of_volume(volume: PersistentVolume) -> object:
    return volume.metadata.uid, volume.metadata.deleting, _is_bound(volume)


def _of_volume(volume: PersistentVolume) -> Iterable[str]:
    """Return the PV's name where it is to be protected or released."""
    if volume.metadata.deleting or _is_bound(volume):
        yield volume.metadata.name


async def _reject(message: str) -> None:
    raise PreconditionError(message)


def _keys(found: Iterable[VolumeAttachment]) -> Iterable[str]:
    """Keys of attachments that have something left to do."""
    for one in found:
        if one.metadata.deleting or not one.attached:
            yield one.metadata.name


def _shape(one: VolumeAttachment) -> object:
    return one.metadata.uid, one.metadata.deleting, bool(one.attached)


def _state(one: VolumeAttachment) -> str:
    if one.metadata.deleting:
        return "failed" if one.status.get("detachError") else "detaching"
    if one.attached:
        return "attached"
    return "failed" if one.status.get("attachError") else "attaching"
