"""Snapshots of one node: makes and deletes what its VolumeSnapshotContents ask for, as csi-snapshotter does per node.

The snapshot controller of the cluster makes the contents, with our label where it knows the node. A content without the
label is taken by the agent that certainly has its volume or snapshot: it writes the label first. A content that waits
to be made has the controller's finalizer, so nothing is made that could be forgotten. No annotation marks a creation
under way: the snapshot's name comes from the VolumeSnapshot's uid, so each call may be repeated, and a deletion calls
the driver by that name.

Invariant: a content loses its finalizer only when its snapshot is certainly gone, is to be retained, or never was.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from zlib import crc32

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import rfc3339
from tonnage.aio.tasks import SharedRead
from tonnage.api import names
from tonnage.api.core import PersistentVolume
from tonnage.api.kinds import SNAPSHOT_CLASSES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES
from tonnage.api.meta import ObjectReference
from tonnage.api.quantity import from_bytes
from tonnage.api.snapshot import (
    BEING_DELETED,
    CONTENT_BOUND,
    MANAGED_BY,
    SECRET_NAME,
    SECRET_NAMESPACE,
    VolumeSnapshotContent,
    snapshot_name,
)
from tonnage.claims.bind import change, find
from tonnage.claims.node_scope import DriverInfo
from tonnage.claims.provisioning import SecretRef, read_secret, release_after
from tonnage.csi.client import types
from tonnage.csi.errors import Code, CsiError, label_of
from tonnage.errors import (
    ApiConflictError,
    ApiNotFoundError,
    InvalidError,
    NotFoundError,
    TonnageError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.kube.cache import Cache
from tonnage.kube.client import refer
from tonnage.kube.controller import Reconciler
from tonnage.kube.informer import Informers
from tonnage.node.provisioner.context import NodeContext

log = logging.getLogger(__name__)
WORKERS = 20
RETRY_START, RETRY_MAX = 1.0, 300.0
LOOK_EVERY = 60.0
"""Seconds between two looks for what no event tells: a snapshot that is imported, a VolumeSnapshot that goes."""
_MOMENT = 0.05
"""Seconds in which deletions share one live read of the node's contents."""
_BY_HANDLE = "driver and volume handle"
_NAMED_BY_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_SECRET_KEYS = frozenset(
    f"{names.CSI_PREFIX}{role}-secret-{part}"
    for role in ("snapshotter", "snapshotter-list", "group-snapshotter", "group-snapshotter-get")
    for part in ("name", "namespace")
)
_OURS = frozenset({names.ON_NODE_GONE})
"""Parameters of a class that are for the controller, not for the driver."""
_NOTHING_MADE = (InvalidError, NotFoundError, UnsupportedError)


class Snapshotter(Reconciler[str]):
    """Loop over the contents of this node, and over those that have no node yet. Keys are their names.

    Ignored: changes of status, also by our own writes; a driver that refused is asked again by the back-off.
    """

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        super().__init__("snapshots", workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self._node, self._client, self._informers = node, node.client, informers
        self._own = informers.of(SNAPSHOT_CONTENTS, labels=f"{MANAGED_BY}={node.scope.label}", optional=True)
        self._unowned: Cache[VolumeSnapshotContent] | None = None
        self._full: dict[str, int] = {}  # contents without capacity, and the free bytes then
        self._abandoned: dict[str, float] = {}  # contents without a node -> when this one lets them go
        self._reported: dict[str, str] = {}  # content -> kind of failure that an Event reported
        self._users = SharedRead(self._read_users, moment=_MOMENT)
        self.watch(self._own, self._changed)
        node.volumes.add_index(_BY_HANDLE, _handle_of)
        node.drivers.on_add(lambda _: self._look_at_all())
        node.readings.on_reading(self._wake_full)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._own.wait_served()  # without the kind: one look each minute, not two
        if self._unowned is None:
            # By label, though contents are few: those of other nodes would reach each agent of a large cluster.
            unowned = self._informers.of(SNAPSHOT_CONTENTS, labels=f"!{MANAGED_BY}", optional=True)
            unowned.cache.add_index(_BY_HANDLE, _source_of)
            self._unowned = self.watch(unowned, self._changed)
            self.watch(self._informers.of(VOLUMES, labels=self._node.scope.selector), self._volume_added)
        await super().run()

    def _changed(self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None) -> Iterable[str]:
        if new is None:
            if old is not None and self._own.cache.get(old.key) is None:
                self._full.pop(old.key, None)
                self._reported.pop(old.key, None)
                self._abandoned.pop(old.key, None)
            return ()
        if not _is_due(new) or (old is not None and _shape(old) == _shape(new)):
            return ()
        return (new.key,)

    def _volume_added(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        """Look at contents without a node: the volume may be the source of one."""
        if old is not None or new is None or self._unowned is None:
            return ()
        return [content.key for key in _handle_of(new) for content in self._unowned.by(_BY_HANDLE, key)]

    def _look_at_all(self) -> None:
        for content in (*self._own.cache, *(self._unowned or ())):
            if _is_due(content):
                self.enqueue(content.key)

    def _wake_full(self) -> None:
        for key in self._full:
            self.enqueue(key)

    async def reconcile(self, key: str) -> float | None:
        """Take, make ready or delete one content. Idempotent."""
        content = self._own.cache.get(key)
        if content is None:
            return await self._take(key)
        driver = self._node.drivers.get(content.spec.driver)
        if driver is None or not _is_due(content):
            return None
        if content.metadata.deleting:
            return await self._delete(content, driver)
        return await self._make_ready(content, driver)

    # Whose content it is

    async def _take(self, key: str) -> float | None:
        """Label a content of this node that has no label. A test of its version makes one owner certain."""
        content = self._unowned.get(key) if self._unowned is not None else None
        driver = self._node.drivers.get(content.spec.driver) if content is not None else None
        if content is None or driver is None:
            return None
        meta = content.metadata
        if not self._has_volume(content, driver) and not await self._has_snapshot(content, driver):
            if not (content.metadata.deleting and not content.status.snapshot_handle):
                return RETRY_MAX if _names_by_uid(content) else None
            if wait := self._left_to_others(content):
                return wait
        labels = {"metadata": {"labels": {MANAGED_BY: self._node.scope.label}}}
        with suppress(ApiNotFoundError):
            await self._client.patch(SNAPSHOT_CONTENTS, meta.name, labels, resource_version=meta.resource_version)
        return None

    def _left_to_others(self, content: VolumeSnapshotContent) -> float:
        """Seconds for which a content that is being deleted is left to the node that may have its volume or snapshot.

        Without a label nothing was made for it, so any agent may let it go; each waits for another time.
        """
        now, spread = self._node.clock.monotonic(), crc32(f"{self._node.scope.node} {content.metadata.uid}".encode())
        due = self._abandoned.setdefault(content.key, now + RETRY_MAX + spread % RETRY_MAX)
        return max(0.0, due - now)

    def _has_volume(self, content: VolumeSnapshotContent, driver: DriverInfo) -> bool:
        """Whether a PV of this node has the volume. Only names after a uid are unique among nodes."""
        for volume in self._node.volumes.by(_BY_HANDLE, next(iter(_source_of(content)), "")):
            name, handle = volume.metadata.name, content.spec.source.volume_handle
            unique = name.startswith(names.volume_name("")) and (not driver.default_pool or handle.endswith(f"/{name}"))
            if unique and driver.reaches(volume):
                return True
        return False

    async def _has_snapshot(self, content: VolumeSnapshotContent, driver: DriverInfo) -> bool:
        if not _names_by_uid(content) or types.LIST_SNAPSHOTS not in driver.controller:
            return False
        try:
            return await driver.client.find_snapshot(content.handle) is not None
        except CsiError as failure:
            if failure.infeasible:  # no driver has such an id
                return False
            raise

    # Made, or found

    async def _make_ready(self, content: VolumeSnapshotContent, driver: DriverInfo) -> float | None:
        key, handle = content.key, content.spec.source.volume_handle
        if key in self._full:
            free = await self._free(driver, handle)
            if free is not None and free <= self._full[key]:
                self._full[key] = free
                return None
        try:
            made = await (self._create(content, driver) if handle else self._find(content, driver))
        except (CsiError, *_NOTHING_MADE) as failure:
            return await self._refused(content, driver, failure)
        self._full.pop(key, None)
        self._reported.pop(key, None)
        if not await self._write(content, _status_of(made, self._node.clock.time())):
            await self._undo(content, driver, made)
            return None
        if not made.ready:
            raise UnavailableError(f"snapshot {made.id} of content {key} is not ready yet")
        return None

    async def _create(self, content: VolumeSnapshotContent, driver: DriverInfo) -> types.ListedSnapshot:
        """Call CreateSnapshot. Raises CsiError; Invalid, NotFound, Unsupported for what is not asked of the driver."""
        uid, source = content.spec.volume_snapshot_ref.uid, content.spec.source.volume_handle
        self._check(content, driver)
        if not uid:
            raise InvalidError("spec.volumeSnapshotRef has no uid: let a VolumeSnapshot make the content")
        parameters, secrets = await self._parameters(content, driver), await self._secrets(content, driver)
        made = await driver.client.create_snapshot(snapshot_name(uid), source, parameters=parameters, secrets=secrets)
        self._node.readings.want(driver.name)  # before it is reported: others may ask for that capacity now
        log.info("snapshot made content=%s snapshot=%s driver=%s", content.key, made.id, driver.name)
        return made

    async def _find(self, content: VolumeSnapshotContent, driver: DriverInfo) -> types.ListedSnapshot:
        """Find a pre-provisioned snapshot. Raises as _create()."""
        handle = content.spec.source.snapshot_handle
        self._check(content, driver)
        if types.LIST_SNAPSHOTS not in driver.controller:
            return types.ListedSnapshot(handle, "", 0, 0.0, ready=True)
        found = await driver.client.find_snapshot(handle)
        if found is None:
            node = self._node.scope.node
            raise NotFoundError(f"can not find snapshot for snapshotID {handle[:128]}: driver on node {node} has none")
        return found

    def _check(self, content: VolumeSnapshotContent, driver: DriverInfo) -> None:
        """Raises UnsupportedError, InvalidError."""
        if types.CREATE_DELETE_SNAPSHOT not in driver.controller:
            raise UnsupportedError(f"driver {driver.name} on node {self._node.scope.node} offers no snapshots")
        if driver.default_pool and SECRET_NAME in content.metadata.annotations:
            raise InvalidError(f"annotation {SECRET_NAME}: driver {driver.name} uses no secrets; remove it")

    async def _parameters(self, content: VolumeSnapshotContent, driver: DriverInfo) -> dict[str, str]:
        """The parameters of its class. Raises Invalid, NotFound."""
        name = content.spec.volume_snapshot_class_name
        found = await find(self._client, SNAPSHOT_CLASSES, name) if name else None
        if found is None:
            if name and not driver.default_pool:  # ours takes no parameters, so none are missed
                raise NotFoundError(f"there is no VolumeSnapshotClass {name!r}: make it again")
            return {}
        where = f"VolumeSnapshotClass {name}"
        if found.driver != driver.name:
            raise InvalidError(f"{where} is of driver {found.driver}, the volume of driver {driver.name}")
        for key in sorted(found.parameters):
            if key in _SECRET_KEYS and driver.default_pool:
                raise InvalidError(f"{where}: parameter {key}: driver {driver.name} uses no secrets; remove it")
            if key.startswith(names.CSI_PREFIX) and key not in _SECRET_KEYS:
                raise InvalidError(
                    f'{where}: found unknown parameter key "{key}" with reserved namespace {names.CSI_PREFIX}'
                )
        release_after(found.parameters)
        return {key: value for key, value in found.parameters.items() if key not in _SECRET_KEYS | _OURS}

    async def _secrets(self, content: VolumeSnapshotContent, driver: DriverInfo) -> dict[str, str]:
        notes = content.metadata.annotations
        if driver.default_pool or SECRET_NAME not in notes:
            return {}
        ref = SecretRef(notes[SECRET_NAME], notes.get(SECRET_NAMESPACE, ""))
        try:
            return await read_secret(self._client, ref)
        except ApiNotFoundError:
            raise NotFoundError(f"there is no Secret {ref.namespace}/{ref.name}: make it again") from None

    async def _write(self, content: VolumeSnapshotContent, status: Mapping[str, Any]) -> bool:
        """Write the status of the content; return False if that is gone."""
        meta = content.metadata
        try:
            await self._client.patch(
                SNAPSHOT_CONTENTS, meta.name, {"status": status}, subresource="status", uid=meta.uid
            )
        except ApiNotFoundError:
            return False
        return True

    async def _undo(self, content: VolumeSnapshotContent, driver: DriverInfo, made: types.ListedSnapshot) -> None:
        """Delete a snapshot whose content went while it was made: nothing names it any more."""
        if content.spec.source.volume_handle and not await self._other_user(content, made.id):
            await driver.client.delete_snapshot(made.id, secrets=await self._secrets(content, driver))
            log.info("snapshot deleted, its content is gone content=%s snapshot=%s", content.key, made.id)

    # What the driver refuses

    async def _refused(self, content: VolumeSnapshotContent, driver: DriverInfo, failure: TonnageError) -> float | None:
        """Tell why there is no snapshot; return seconds until the next try, None where an event brings it.

        Raises: the failure, for the back-off.
        """
        code = failure.code if isinstance(failure, CsiError) else None
        if code is Code.ABORTED:  # a call of the same name is under way
            raise failure
        text, after, was_full = str(failure), RETRY_MAX, content.key in self._full
        if code is Code.RESOURCE_EXHAUSTED and content.spec.source.volume_handle:
            text, free = await self._lack(content, driver, text)
            if free is not None:
                self._full[content.key] = free
        is_new = content.status.error is None or (content.status.error.message != text and not was_full)
        if is_new:  # of a full pool only the numbers differ
            error = {"message": text, "time": rfc3339(self._node.clock.time())}
            await self._write(content, {"readyToUse": False, "error": error})
        self._tell(content, "SnapshotCreationFailed", f"Failed to create snapshot: {text}", _kind(failure))
        if content.key in self._full and code is Code.RESOURCE_EXHAUSTED:
            return None
        if isinstance(failure, NotFoundError):
            after = LOOK_EVERY
        if code not in (None, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED):
            raise failure
        return after

    async def _lack(self, content: VolumeSnapshotContent, driver: DriverInfo, text: str) -> tuple[str, int | None]:
        """The text with numbers, and the free bytes; None where the driver does not tell them."""
        handle = content.spec.source.volume_handle
        free = await self._free(driver, handle)
        if free is None or not driver.default_pool:
            return text, free
        size = ""
        if types.GET_VOLUME in driver.controller:
            with suppress(CsiError):
                size = f" of {from_bytes((await driver.client.get_volume(handle))[0].size)}"
        pool, node = _pool(handle), self._node.scope.node
        what = f"pool {pool} on node {node} has no capacity for a snapshot{size} ({from_bytes(free)} free)"
        return f"{what}: delete snapshots or volumes there", free

    async def _free(self, driver: DriverInfo, handle: str) -> int | None:
        """Free bytes where the volume is; None where the driver does not tell them."""
        if not driver.lists_capacity:
            return None
        parameters = {"pool": _pool(handle)} if driver.default_pool else {}
        try:
            return (await driver.client.get_capacity(parameters)).available
        except CsiError:
            return None

    def _tell(self, content: VolumeSnapshotContent, reason: str, text: str, kind: str) -> None:
        """Emit once for each kind of failure, on the content and on the VolumeSnapshot, which its user can read."""
        kind = f"{reason} {kind}"
        if self._reported.get(content.key) == kind:
            return
        self._reported[content.key] = kind
        ref = content.spec.volume_snapshot_ref
        once = hashlib.sha256(f"{content.metadata.uid}\0{kind}".encode()).hexdigest()[:16]
        self._node.events.warning(refer(SNAPSHOT_CONTENTS, content), reason, text, once=once)
        if ref.name:
            about = ObjectReference(SNAPSHOTS.api_version, SNAPSHOTS.kind, ref.namespace, ref.name, ref.uid)
            self._node.events.warning(about, reason, text, once=once)

    # Deletion

    async def _delete(self, content: VolumeSnapshotContent, driver: DriverInfo) -> float | None:
        """Delete the snapshot if the policy says so, then take the finalizer off."""
        if not await self._is_released(content):
            return LOOK_EVERY
        now = await find(self._client, SNAPSHOT_CONTENTS, content.metadata.name)  # live: this destroys data of a user
        if now is None or now.metadata.uid != content.metadata.uid or not now.metadata.deleting:
            return None
        if now.metadata.labels.get(MANAGED_BY) != self._node.scope.label:
            return None
        if now.spec.deletion_policy == "Delete":
            try:
                await self._delete_snapshot(now, driver)
            except (CsiError, InvalidError, NotFoundError) as failure:
                self._tell(now, "SnapshotDeleteError", f"Failed to delete snapshot: {failure}", _kind(failure))
                raise
        with suppress(ApiNotFoundError, ApiConflictError):
            await change(self._client, SNAPSHOT_CONTENTS, now, _without_finalizer)
        return None

    async def _is_released(self, content: VolumeSnapshotContent) -> bool:
        """Whether no VolumeSnapshot needs the content: it is gone, being deleted, or never was."""
        ref = content.spec.volume_snapshot_ref
        if content.metadata.annotations.get(BEING_DELETED) == "yes" or not ref.uid:
            return True
        found = await find(self._client, SNAPSHOTS, ref.name, ref.namespace)
        return found is None or found.metadata.uid != ref.uid or found.metadata.deleting

    async def _delete_snapshot(self, content: VolumeSnapshotContent, driver: DriverInfo) -> None:
        """Delete what the content has, unless another content has it too. Raises CsiError."""
        secrets = await self._secrets(content, driver)
        handle = content.status.snapshot_handle or await self._unrecorded(content, driver, secrets)
        if not handle or types.CREATE_DELETE_SNAPSHOT not in driver.controller:
            return
        if other := await self._other_user(content, handle):
            log.warning("snapshot retained snapshot=%s content=%s other=%s", handle, content.key, other)
            return
        await driver.client.delete_snapshot(handle, secrets=secrets)
        log.info("snapshot deleted content=%s snapshot=%s driver=%s", content.key, handle, driver.name)
        self._node.readings.want(driver.name)

    async def _unrecorded(self, content: VolumeSnapshotContent, driver: DriverInfo, secrets: dict[str, str]) -> str:
        """The id of a snapshot that may have been made without being reported, "" for none.

        Ours has its name in the id. Another driver tells the id only where it makes the snapshot, or finds it made.
        """
        uid, source = content.spec.volume_snapshot_ref.uid, content.spec.source.volume_handle
        if not uid or not source:
            return ""
        if driver.default_pool:
            if _pool(source) in driver.pools:
                return f"{_pool(source)}/{snapshot_name(uid)}"
            if self._has_volume(content, driver):
                raise UnavailableError(f"pool {_pool(source)} of content {content.key} is not served now")
            return ""
        try:
            parameters = await self._parameters(content, driver)
            return (
                await driver.client.create_snapshot(snapshot_name(uid), source, parameters=parameters, secrets=secrets)
            ).id
        except _NOTHING_MADE:
            return ""
        except CsiError as failure:
            if not failure.final:
                raise
            return ""

    async def _other_user(self, content: VolumeSnapshotContent, handle: str) -> str:
        """The name of another content of this node that has the snapshot and is to keep it, "" for none.

        Other nodes may have snapshots of the same id: their contents have their label.
        """
        for other in (await self._users.get()).get(handle, ()):
            if other.metadata.uid == content.metadata.uid or other.spec.driver != content.spec.driver:
                continue
            goes = other.metadata.deleting and other.spec.deletion_policy == "Delete"
            if not goes or not await self._is_released(other):
                return other.key
        return ""

    async def _read_users(self) -> Mapping[str, list[VolumeSnapshotContent]]:
        """Read live which contents of this node, or of none, name each snapshot.

        A content gets its label once, and no other one: read in this order, none is missed that gets it meanwhile.
        """
        found: dict[str, list[VolumeSnapshotContent]] = {}
        for labels in (f"!{MANAGED_BY}", f"{MANAGED_BY}={self._node.scope.label}"):
            for content in (await self._client.list(SNAPSHOT_CONTENTS, labels=labels)).items:
                for handle in {content.status.snapshot_handle, content.spec.source.snapshot_handle} - {""}:
                    found.setdefault(handle, []).append(content)
        return found


def _is_due(content: VolumeSnapshotContent) -> bool:
    """Whether there is something to do, as far as the content tells."""
    has_finalizer = CONTENT_BOUND in content.metadata.finalizers
    if content.metadata.deleting:
        return has_finalizer
    if MANAGED_BY not in content.metadata.labels:
        return True
    return not content.status.ready_to_use and (has_finalizer or bool(content.spec.source.snapshot_handle))


def _shape(content: VolumeSnapshotContent) -> object:
    meta = content.metadata
    notes = meta.annotations.get(BEING_DELETED), meta.annotations.get(SECRET_NAME)
    ready = bool(content.status.ready_to_use)  # not "false instead of nothing", which is our own write
    return meta.uid, meta.deleting, CONTENT_BOUND in meta.finalizers, notes, content.spec, ready


def _names_by_uid(content: VolumeSnapshotContent) -> bool:
    """Whether its handle is unique among nodes; names that people gave are not."""
    return _NAMED_BY_UID.search(content.handle) is not None


def _handle_of(volume: PersistentVolume) -> Iterable[str]:
    return (f"{volume.spec.csi.driver} {volume.spec.csi.volume_handle}",) if volume.spec.csi is not None else ()


def _source_of(content: VolumeSnapshotContent) -> Iterable[str]:
    handle = content.spec.source.volume_handle
    return (f"{content.spec.driver} {handle}",) if handle else ()


def _pool(handle: str) -> str:
    """The pool of a handle of ours: `<pool>/<name>`."""
    return handle.partition("/")[0]


def _kind(failure: TonnageError) -> str:
    return label_of(failure.code) if isinstance(failure, CsiError) else type(failure).__name__


def _status_of(made: types.ListedSnapshot, now: float) -> dict[str, Any]:
    status: dict[str, Any] = {
        "snapshotHandle": made.id,
        "creationTime": int((made.created or now) * 1e9),
        "readyToUse": made.ready,
        "error": None,
    }
    if made.size > 0:
        status["restoreSize"] = made.size
    return status


def _without_finalizer(content: VolumeSnapshotContent) -> dict[str, object] | None:
    if CONTENT_BOUND not in content.metadata.finalizers:
        return None
    remaining = [finalizer for finalizer in content.metadata.finalizers if finalizer != CONTENT_BOUND]
    return {"metadata": {"finalizers": remaining or None}}
