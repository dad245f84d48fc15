"""Groups of snapshots of one node: makes and deletes what its VolumeGroupSnapshotContents ask for.

The snapshot controller of the cluster makes the contents. Ours labels them with their node; upstream's never does, so
the agent that has all volumes of a content takes it, by its label. The driver takes all snapshots at one moment or
none, under a name that comes from the VolumeGroupSnapshot's uid: each call may be repeated, and a deletion calls the
driver by that name.

Invariant: a content loses its finalizer only when its group is certainly gone, is to be retained, or never was.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.aio.clock import rfc3339
from tonnage.api.core import PersistentVolume
from tonnage.api.group_snapshot import (
    GROUP_BEING_DELETED,
    GROUP_CONTENT_BOUND,
    GROUP_HANDLE,
    GROUP_SECRET_NAME,
    GROUP_SECRET_NAMESPACE,
    VolumeGroupSnapshotContent,
    group_name,
)
from tonnage.api.kinds import GROUP_CLASSES, GROUP_CONTENTS, GROUP_SNAPSHOTS, SNAPSHOT_CONTENTS, VOLUMES
from tonnage.api.snapshot import MANAGED_BY
from tonnage.claims.bind import change, find
from tonnage.claims.node_scope import DriverInfo
from tonnage.csi.client import types
from tonnage.csi.driver.driver import id_of
from tonnage.csi.driver.group_members import member_name
from tonnage.csi.errors import Code, CsiError
from tonnage.errors import (
    ApiConflictError,
    ApiNotFoundError,
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
_NAMED_BY_UID = re.compile(r"groupsnapshot-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_SECRET = (GROUP_SECRET_NAME, GROUP_SECRET_NAMESPACE)
_REQUESTS = Requests(
    GROUP_CONTENTS,
    GROUP_SNAPSHOTS,
    "GroupSnapshotCreationFailed",
    "Failed to create group snapshot",
    lambda content: content.spec.volume_group_snapshot_ref,
    lambda content: content.spec.source.volume_handles,
    GROUP_BEING_DELETED,
)


class GroupSnapshotter(Reconciler[str]):
    """Loop over the group contents of this node, and over those that have no node yet. Keys are their names.

    Ignored: changes of status, also by our own writes; a driver that refused is asked again by the back-off.
    """

    def __init__(self, node: NodeContext, informers: Informers) -> None:
        super().__init__("group_snapshots", workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self._node, self._client, self._informers = node, node.client, informers
        self._own = informers.of(GROUP_CONTENTS, labels=f"{MANAGED_BY}={node.scope.label}", optional=True)
        self._unowned: Cache[VolumeGroupSnapshotContent] | None = None
        self._refusals, self._abandoned = Refusals(node, _REQUESTS), Abandoned(node)
        self.watch(self._own, self._changed)
        node.volumes.add_index(BY_HANDLE, handle_of)
        node.drivers.on_add(lambda _: self._look_at_all())
        node.readings.on_reading(self._wake_full)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._own.wait_served()  # without the kind: one look each minute, not two
        if self._unowned is None:
            unowned = self._informers.of(GROUP_CONTENTS, labels=f"!{MANAGED_BY}", optional=True)
            unowned.cache.add_index(BY_HANDLE, _sources_of)
            self._unowned = self.watch(unowned, self._changed)
            self.watch(self._informers.of(VOLUMES, labels=self._node.scope.selector), self._volume_added)
        await super().run()

    def _changed(self, old: VolumeGroupSnapshotContent | None, new: VolumeGroupSnapshotContent | None) -> Iterable[str]:
        if new is None:
            if old is not None and self._own.cache.get(old.key) is None:
                self._refusals.forget(old.key)
                self._abandoned.forget(old.key)
            return ()
        if not _is_due(new) or (old is not None and _shape(old) == _shape(new)):
            return ()
        return (new.key,)

    def _volume_added(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        """Look at contents without a node: the volume may be the last that was missing of one."""
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
        meta, handles = content.metadata, content.spec.source.volume_handles
        found = [handle for handle in handles if has_volume(self._node.volumes, driver, handle)]
        if not (handles and len(found) == len(handles)) and not await self._has_group(content, driver):
            if found and not meta.deleting:
                self._report_apart(content, found)
            if not (meta.deleting and not content.status.volume_group_snapshot_handle):
                return None if handles else RETRY_MAX
            if wait := self._abandoned.left(content):
                return wait
        labels = {"metadata": {"labels": {MANAGED_BY: self._node.scope.label}}}
        with suppress(ApiNotFoundError):
            await self._client.patch(GROUP_CONTENTS, meta.name, labels, resource_version=meta.resource_version)
        return None

    def _report_apart(self, content: VolumeGroupSnapshotContent, found: list[str]) -> None:
        """Report that no node has all volumes of the content; only the agent of its first volume does."""
        handles = content.spec.source.volume_handles
        if found[0] != handles[0]:
            return
        others = ", ".join(handle for handle in handles if handle not in found)
        text = f"volumes {', '.join(found)} are on node {self._node.scope.node}, {others} are not"
        self._refusals.tell(content, _REQUESTS.reason, f"{_REQUESTS.verb}: {text}: a group is of one node", "apart")

    async def _has_group(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> bool:
        """Whether the driver has an existing group. Only names after a uid are unique among nodes."""
        given = content.spec.source.group_snapshot_handles
        if given is None or not _NAMED_BY_UID.fullmatch(content.handle) or not _is_offered(driver):
            return False
        try:
            await driver.client.get_group_snapshot(content.handle, given.volume_snapshot_handles)
        except CsiError as failure:
            if failure.infeasible:  # no driver has such ids
                return False
            raise
        return True

    # Made, or found

    async def _make_ready(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> float | None:
        key, is_new = content.key, bool(content.spec.source.volume_handles)
        if await self._refusals.is_full(content, driver):
            return None
        try:
            made = await (self._create(content, driver) if is_new else self._find(content, driver))
        except (CsiError, *NOTHING_MADE) as failure:
            try:
                return await self._refusals.refused(content, driver, failure, partial(self._write, content))
            except CsiError as again:
                if again.code is not Code.INTERNAL:
                    raise
                return RETRY_MAX  # writers may have waited for seconds: not again at once
        self._refusals.forget(key)
        if not await self._write(content, _status_of(made, self._node.clock.time())):
            if is_new and not await self._other_user(content, made.id, [one.id for one in made.snapshots]):
                await self._delete_group(content, driver, made.id, [one.id for one in made.snapshots])
            return None
        if not made.ready:
            raise UnavailableError(f"group snapshot {made.id} of content {key} is not ready yet")
        return None

    async def _create(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> types.ListedGroup:
        """Call CreateVolumeGroupSnapshot. Raises CsiError, InvalidError, NotFoundError, UnsupportedError."""
        uid = content.spec.volume_group_snapshot_ref.uid
        self._check(content, driver)
        if not uid:
            why = "spec.volumeGroupSnapshotRef has no uid: let a VolumeGroupSnapshot make the content"
            raise InvalidError(why)
        made = await self._call_create(content, driver)
        self._node.readings.want(driver.name)  # before it is reported: others may ask for that capacity now
        log.info("group snapshot made content=%s group=%s driver=%s", content.key, made.id, driver.name)
        return made

    async def _call_create(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> types.ListedGroup:
        name = content.spec.volume_group_snapshot_class_name
        return await driver.client.create_group_snapshot(
            group_name(content.spec.volume_group_snapshot_ref.uid),
            content.spec.source.volume_handles,
            parameters=await parameters_of(self._client, GROUP_CLASSES, name, driver),
            secrets=await self._secrets(content, driver),
        )

    async def _find(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> types.ListedGroup:
        """Find a pre-provisioned group. Raises as _create()."""
        self._check(content, driver)
        return await driver.client.get_group_snapshot(content.handle, content.snapshot_handles)

    def _check(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> None:
        """Raises UnsupportedError, InvalidError."""
        if not _is_offered(driver):
            raise UnsupportedError(f"driver {driver.name} on node {self._node.scope.node} offers no group snapshots")
        if driver.default_pool and GROUP_SECRET_NAME in content.metadata.annotations:
            raise InvalidError(f"annotation {GROUP_SECRET_NAME}: driver {driver.name} uses no secrets; remove it")

    async def _secrets(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> dict[str, str]:
        return await secrets_of(self._client, content.metadata.annotations, driver, _SECRET)

    async def _write(self, content: VolumeGroupSnapshotContent, status: Mapping[str, Any]) -> bool:
        """Write the status of the content; return False if that is gone."""
        meta = content.metadata
        try:
            await self._client.patch(GROUP_CONTENTS, meta.name, {"status": status}, subresource="status", uid=meta.uid)
        except ApiNotFoundError:
            return False
        return True

    # Deletion

    async def _delete(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> float | None:
        """Delete the group if the policy says so, then take the finalizer off."""
        if not await is_released(self._client, _REQUESTS, content):
            return LOOK_EVERY
        now = await find(self._client, GROUP_CONTENTS, content.metadata.name)  # live: this destroys data of a user
        if now is None or now.metadata.uid != content.metadata.uid or not now.metadata.deleting:
            return None
        if now.metadata.labels.get(MANAGED_BY) != self._node.scope.label:
            return None
        if now.spec.deletion_policy == "Delete":
            try:
                await self._delete_data(now, driver)
            except (CsiError, InvalidError, NotFoundError) as failure:
                text = f"Failed to delete group snapshot: {failure}"
                self._refusals.tell(now, "GroupSnapshotDeleteError", text, kind_of(failure))
                raise
        with suppress(ApiNotFoundError, ApiConflictError):
            await change(self._client, GROUP_CONTENTS, now, without(GROUP_CONTENT_BOUND))
        return None

    async def _delete_data(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> None:
        """Delete what the content has, unless another content has a part of it too. Raises CsiError."""
        if not _is_offered(driver):
            return
        handle, ids = content.handle, content.snapshot_handles
        if not handle:
            handle, ids = await self._unrecorded(content, driver)
        if not handle:
            return
        if other := await self._other_user(content, handle, ids):
            log.warning("group snapshot retained group=%s content=%s other=%s", handle, content.key, other)
            return
        await self._delete_group(content, driver, handle, ids)

    async def _delete_group(
        self, content: VolumeGroupSnapshotContent, driver: DriverInfo, handle: str, ids: list[str]
    ) -> None:
        await driver.client.delete_group_snapshot(handle, ids, secrets=await self._secrets(content, driver))
        log.info("group snapshot deleted content=%s group=%s driver=%s", content.key, handle, driver.name)
        self._node.readings.want(driver.name, freed=True)

    async def _unrecorded(self, content: VolumeGroupSnapshotContent, driver: DriverInfo) -> tuple[str, list[str]]:
        """The ids of a group that may have been made without being reported, "" for none.

        Ours has its name as id. Another driver tells the id only where it makes the group, or finds it made.
        """
        uid = content.spec.volume_group_snapshot_ref.uid
        if not uid or not content.spec.source.volume_handles:
            return "", []
        if driver.default_pool:
            group = group_name(uid)
            return group, [id_of(pool_of(one), member_name(group, one)) for one in content.spec.source.volume_handles]
        try:
            made = await self._call_create(content, driver)
        except NOTHING_MADE:
            return "", []
        except CsiError as failure:
            if not failure.final:
                raise
            return "", []
        return made.id, [one.id for one in made.snapshots]

    async def _other_user(self, content: VolumeGroupSnapshotContent, handle: str, ids: list[str]) -> str:
        """The name of another content of this node that is to keep the group or one of its snapshots, "" for none.

        Members of the group do not count, but those whose policy was changed to Retain.
        """
        # In this order: a content gets its label once, so none is missed that gets it meanwhile.
        for labels in (f"!{MANAGED_BY}", f"{MANAGED_BY}={self._node.scope.label}"):
            for group in (await self._client.list(GROUP_CONTENTS, labels=labels)).items:
                same = group.spec.driver == content.spec.driver and group.handle == handle
                goes = group.metadata.deleting and group.spec.deletion_policy == "Delete"
                if same and group.metadata.uid != content.metadata.uid and not goes:
                    return group.key
            for one in (await self._client.list(SNAPSHOT_CONTENTS, labels=labels)).items:
                is_member = one.metadata.annotations.get(GROUP_HANDLE) == handle
                same = one.spec.driver == content.spec.driver and (is_member or one.handle in ids)
                goes = (is_member or one.metadata.deleting) and one.spec.deletion_policy == "Delete"
                if same and not goes:
                    return one.key
        return ""


def _is_offered(driver: DriverInfo) -> bool:
    return types.GROUP_CONTROLLER_SERVICE in driver.plugin


def _is_due(content: VolumeGroupSnapshotContent) -> bool:
    """Whether there is something to do, as far as the content tells."""
    has_finalizer = GROUP_CONTENT_BOUND in content.metadata.finalizers
    if content.metadata.deleting:
        return has_finalizer
    if MANAGED_BY not in content.metadata.labels:
        return True
    existing = content.spec.source.group_snapshot_handles is not None
    return not content.status.ready_to_use and (has_finalizer or existing)


def _shape(content: VolumeGroupSnapshotContent) -> object:
    meta = content.metadata
    notes = meta.annotations.get(GROUP_BEING_DELETED), meta.annotations.get(GROUP_SECRET_NAME)
    ready = bool(content.status.ready_to_use)  # not "false instead of nothing", which is our own write
    return meta.uid, meta.deleting, GROUP_CONTENT_BOUND in meta.finalizers, notes, content.spec, ready


def _sources_of(content: VolumeGroupSnapshotContent) -> Iterable[str]:
    return [f"{content.spec.driver} {handle}" for handle in content.spec.source.volume_handles]


def _status_of(made: types.ListedGroup, now: float) -> dict[str, Any]:
    listed = [
        {
            "volumeHandle": one.volume_id,
            "snapshotHandle": one.id,
            "creationTime": int((one.created or made.created or now) * 1e9),
            "readyToUse": one.ready,
            **({"restoreSize": one.size} if one.size > 0 else {}),
        }
        for one in made.snapshots
    ]
    return {
        "volumeGroupSnapshotHandle": made.id,
        "creationTime": rfc3339(made.created or now),
        "readyToUse": made.ready,
        "error": None,
        "volumeSnapshotInfoList": listed,
    }
