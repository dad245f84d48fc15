"""Snapshots of one node: makes and deletes what its VolumeSnapshotContents ask for, as csi-snapshotter does per node.

The snapshot controller of the cluster makes the contents, with our label where it knows the node. A content without the
label is taken by the agent that certainly has its volume or snapshot: it writes the label first. A content that waits
to be made has the controller's finalizer, so nothing is made that could be forgotten. No annotation marks a creation
under way: the snapshot's name comes from the VolumeSnapshot's uid, so each call may be repeated, and a deletion calls
the driver by that name.

A member of a group is made and deleted with its group: of its content only the label and finalizer are ours.

Invariant: a content loses its finalizer only when its snapshot is certainly gone, is to be retained, or never was.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.aio.tasks import SharedRead
from tonnage.api.core import PersistentVolume
from tonnage.api.group_snapshot import is_member_content
from tonnage.api.kinds import SNAPSHOT_CLASSES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES
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
from tonnage.csi.client import types
from tonnage.csi.errors import CsiError
from tonnage.errors import (
    ApiConflictError,
    ApiNotFoundError,
    InUseError,
    InvalidError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.kube.cache import Cache
from tonnage.kube.controller import Reconciler
from tonnage.kube.informer import Informers
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.snapshots.shared import (
    BY_HANDLE,
    LOOK_EVERY,
    NOTHING_MADE,
    RETRY_MAX,
    RETRY_START,
    WORKERS,
    Abandoned,
    Refusals,
    Requests,
    handle_of,
    has_volume,
    is_released,
    kind_of,
    parameters_of,
    pool_of,
    secrets_of,
    without,
)

log = logging.getLogger(__name__)
_NAMED_BY_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_SECRET = (SECRET_NAME, SECRET_NAMESPACE)
_REQUESTS = Requests(
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    "SnapshotCreationFailed",
    "Failed to create snapshot",
    lambda content: content.spec.volume_snapshot_ref,
    lambda content: [content.spec.source.volume_handle] if content.spec.source.volume_handle else [],
    BEING_DELETED,
)


class Snapshotter(Reconciler[str]):
    """Loop over the contents of this node, and over those that have no node yet. Keys are their names.

    Ignored: changes of status, also by our own writes; a driver that refused is asked again by the back-off.
    """

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        super().__init__("snapshots", workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self._node, self._client, self._informers = node, node.client, informers
        self._own = informers.of(SNAPSHOT_CONTENTS, labels=f"{MANAGED_BY}={node.scope.label}", optional=True)
        self._unowned: Cache[VolumeSnapshotContent] | None = None
        self._refusals, self._abandoned = Refusals(node, _REQUESTS), Abandoned(node)
        self._users = SharedRead(self._read_users)
        self.watch(self._own, self._changed)
        node.volumes.add_index(BY_HANDLE, handle_of)
        node.drivers.on_add(lambda _: self._look_at_all())
        node.readings.on_reading(self._wake_full)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._own.wait_served()  # without the kind: one look each minute, not two
        if self._unowned is None:
            # By label, though contents are few: those of other nodes would reach each agent of a large cluster.
            unowned = self._informers.of(SNAPSHOT_CONTENTS, labels=f"!{MANAGED_BY}", optional=True)
            unowned.cache.add_index(BY_HANDLE, _source_of)
            self._unowned = self.watch(unowned, self._changed)
            self.watch(self._informers.of(VOLUMES, labels=self._node.scope.selector), self._volume_added)
        await super().run()

    def _changed(self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None) -> Iterable[str]:
        if new is None:
            if old is not None and self._own.cache.get(old.key) is None:
                self._refusals.forget(old.key)
                self._abandoned.forget(old.key)
            return ()
        if not _is_due(new) or (old is not None and _shape(old) == _shape(new)):
            return ()
        return (new.key,)

    def _volume_added(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        """Look at contents without a node: the volume may be the source of one."""
        if old is not None or new is None or self._unowned is None:
            return ()
        return [content.key for key in handle_of(new) for content in self._unowned.by(BY_HANDLE, key)]

    def _look_at_all(self) -> None:
        for content in (*self._own.cache, *(self._unowned or ())):
            if _is_due(content):
                self.enqueue(content.key)

    def _wake_full(self) -> None:
        for key in self._refusals:
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
            if wait := self._abandoned.left(content):
                return wait
        labels = {"metadata": {"labels": {MANAGED_BY: self._node.scope.label}}}
        with suppress(ApiNotFoundError):
            await self._client.patch(SNAPSHOT_CONTENTS, meta.name, labels, resource_version=meta.resource_version)
        return None

    def _has_volume(self, content: VolumeSnapshotContent, driver: DriverInfo) -> bool:
        handle = content.spec.source.volume_handle
        return bool(handle) and has_volume(self._node.volumes, driver, handle)

    async def _has_snapshot(self, content: VolumeSnapshotContent, driver: DriverInfo) -> bool:
        if not _names_by_uid(content) or types.LIST_SNAPSHOTS not in driver.controller:
            return False
        return await self._is_there(content.handle, driver)

    async def _is_there(self, handle: str, driver: DriverInfo) -> bool:
        """Whether the driver, which lists snapshots, has it. Raises CsiError."""
        try:
            return await driver.client.find_snapshot(handle) is not None
        except CsiError as failure:
            if failure.infeasible:  # no driver has such an id
                return False
            raise

    # Made, or found

    async def _make_ready(self, content: VolumeSnapshotContent, driver: DriverInfo) -> float | None:
        key = content.key
        if await self._refusals.is_full(content, driver):
            return None
        is_new = bool(content.spec.source.volume_handle) and not is_member_content(content)
        try:
            made = await (self._create(content, driver) if is_new else self._find(content, driver))
        except (CsiError, *NOTHING_MADE) as failure:
            return await self._refusals.refused(content, driver, failure, partial(self._write, content))
        self._refusals.forget(key)
        if not await self._write(content, _status_of(made, self._node.clock.time())):
            if is_new:
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
        handle = content.handle
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
        return await parameters_of(self._client, SNAPSHOT_CLASSES, name, driver)

    async def _secrets(self, content: VolumeSnapshotContent, driver: DriverInfo) -> dict[str, str]:
        return await secrets_of(self._client, content.metadata.annotations, driver, _SECRET)

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
        if content.spec.source.volume_handle and not await self._other_users(content, made.id):
            await driver.client.delete_snapshot(made.id, secrets=await self._secrets(content, driver))
            log.info("snapshot deleted, its content is gone content=%s snapshot=%s", content.key, made.id)

    # Deletion

    async def _delete(self, content: VolumeSnapshotContent, driver: DriverInfo) -> float | None:
        """Delete the snapshot if the policy says so, then take the finalizer off."""
        if not await is_released(self._client, _REQUESTS, content):
            return LOOK_EVERY
        now = await find(self._client, SNAPSHOT_CONTENTS, content.metadata.name)  # live: this destroys data of a user
        if now is None or now.metadata.uid != content.metadata.uid or not now.metadata.deleting:
            return None
        if now.metadata.labels.get(MANAGED_BY) != self._node.scope.label:
            return None
        if now.spec.deletion_policy == "Delete" and not is_member_content(now):  # a member goes with its group
            try:
                await self._delete_snapshot(now, driver)
            except (CsiError, InUseError, InvalidError, NotFoundError) as failure:
                self._refusals.tell(
                    now, "SnapshotDeleteError", f"Failed to delete snapshot: {failure}", kind_of(failure)
                )
                raise
        with suppress(ApiNotFoundError, ApiConflictError):
            await change(self._client, SNAPSHOT_CONTENTS, now, without(CONTENT_BOUND))
        return None

    async def _delete_snapshot(self, content: VolumeSnapshotContent, driver: DriverInfo) -> None:
        """Delete what the content has, unless another content has it too. Raises CsiError.

        A content that never had a VolumeSnapshot was made to delete its snapshot, as Velero makes them: it waits for
        the VolumeSnapshots of other contents (InUseError), since those contents may have the policy Retain.
        """
        secrets = await self._secrets(content, driver)
        handle = content.status.snapshot_handle or await self._unrecorded(content, driver, secrets)
        if not handle or types.CREATE_DELETE_SNAPSHOT not in driver.controller:
            return
        others = await self._other_users(content, handle)
        if others and content.spec.volume_snapshot_ref.uid:
            log.warning("snapshot retained snapshot=%s content=%s other=%s", handle, content.key, others[0].key)
            return
        for other in others:
            user = other.spec.volume_snapshot_ref
            if not user.uid or not await is_released(self._client, _REQUESTS, other, gone=True):
                raise InUseError(
                    f"snapshot {handle} is also that of VolumeSnapshot {user.namespace}/{user.name}; delete that first"
                )
        await driver.client.delete_snapshot(handle, secrets=secrets)
        log.info("snapshot deleted content=%s snapshot=%s driver=%s", content.key, handle, driver.name)
        self._node.readings.want(driver.name, freed=True)

    async def _unrecorded(self, content: VolumeSnapshotContent, driver: DriverInfo, secrets: dict[str, str]) -> str:
        """The id of a snapshot that may be there without being reported, "" for none.

        A pre-provisioned one has its id in the content, which tells the node only where it is named by uid. Of those
        that were made, ours has its name in the id. Another driver tells the id only where it makes the snapshot, or
        finds it made.
        """
        uid, source = content.spec.volume_snapshot_ref.uid, content.spec.source.volume_handle
        if given := content.spec.source.snapshot_handle:
            if not _names_by_uid(content):  # an agent that releases what no node owns may have one of the same name
                return ""
            lists = types.LIST_SNAPSHOTS in driver.controller
            return given if not lists or await self._is_there(given, driver) else ""
        if not uid or not source:
            return ""
        if driver.default_pool:
            if pool_of(source) in driver.pools:
                return f"{pool_of(source)}/{snapshot_name(uid)}"
            if self._has_volume(content, driver):
                raise UnavailableError(f"pool {pool_of(source)} of content {content.key} is not served now")
            return ""
        try:
            parameters = await self._parameters(content, driver)
            return (
                await driver.client.create_snapshot(snapshot_name(uid), source, parameters=parameters, secrets=secrets)
            ).id
        except NOTHING_MADE:
            return ""
        except CsiError as failure:
            if not failure.final:
                raise
            return ""

    async def _other_users(self, content: VolumeSnapshotContent, handle: str) -> list[VolumeSnapshotContent]:
        """The other contents of this node that have the snapshot and are to keep it.

        Other nodes may have snapshots of the same id: their contents have their label.
        """
        found = []
        for other in (await self._users.get(self._node.scope.label)).get(handle, ()):
            if other.metadata.uid == content.metadata.uid or other.spec.driver != content.spec.driver:
                continue
            goes = other.metadata.deleting and other.spec.deletion_policy == "Delete"
            if not goes or not await is_released(self._client, _REQUESTS, other):
                found.append(other)
        return found

    async def _read_users(self, label: str) -> Mapping[str, list[VolumeSnapshotContent]]:
        """Read live which contents of the node with that label, or of none, name each snapshot.

        A content gets its label once, and no other one: read in this order, none is missed that gets it meanwhile.
        """
        found: dict[str, list[VolumeSnapshotContent]] = {}
        for labels in (f"!{MANAGED_BY}", f"{MANAGED_BY}={label}"):
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
    if is_member_content(content) and not content.status.snapshot_handle:  # its controller writes that first
        return False
    return not content.status.ready_to_use and (has_finalizer or bool(content.spec.source.snapshot_handle))


def _shape(content: VolumeSnapshotContent) -> object:
    meta = content.metadata
    notes = meta.annotations.get(BEING_DELETED), meta.annotations.get(SECRET_NAME)
    ready = bool(content.status.ready_to_use)  # not "false instead of nothing", which is our own write
    handle = content.status.snapshot_handle if is_member_content(content) else ""
    return meta.uid, meta.deleting, CONTENT_BOUND in meta.finalizers, notes, content.spec, ready, handle


def _names_by_uid(content: VolumeSnapshotContent) -> bool:
    """Whether its handle is unique among nodes; names that people gave are not."""
    return _NAMED_BY_UID.search(content.handle) is not None


def _source_of(content: VolumeSnapshotContent) -> Iterable[str]:
    handle = content.spec.source.volume_handle
    return (f"{content.spec.driver} {handle}",) if handle else ()


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
