"""Loop over the contents of one node, of single or of group snapshots: takes them, has them made ready, deletes them.

The snapshot controller of the cluster makes the contents, with our label where it knows the node. A content without the
label is taken by the agent that certainly has its volumes or snapshots: it writes the label first. No annotation marks
a creation under way: a snapshot's name comes from the uid of the object that asked for it, so each call may be
repeated, and a deletion calls the driver by that name.

Invariant: a content loses its finalizer only when what it has is certainly gone, is to be retained, or never was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import (
    ApiConflictError,
    ApiNotFoundError,
    InUseError,
    InvalidError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.csi.client.types import ListedGroup, ListedSnapshot
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.group_snapshot import VolumeGroupSnapshotContent
from tonnage.kubernetes.api.kinds import VOLUMES, Kind
from tonnage.kubernetes.api.snapshot import MANAGED_BY, VolumeSnapshotContent
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.indexes import BY_HANDLE, handle_of
from tonnage.kubernetes.client.informer import Informer, Informers
from tonnage.kubernetes.client.object_write import without_finalizers
from tonnage.node.deletions import TakenSnapshot
from tonnage.node.provisioner.context import NodeContext
from tonnage.node.snapshots.shared import (
    LOOK_EVERY,
    NOTHING_MADE,
    RETRY_MAX,
    RETRY_START,
    WORKERS,
    Abandoned,
    FailureReasons,
    Rejections,
    has_volume,
    is_released,
    parameters_of,
    secrets_of,
)
from tonnage.provisioning.claims.bind import change, find
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.provisioning.claims.snapshot_shape import C, K, S, SnapshotShape

M = TypeVar("M", ListedSnapshot, ListedGroup)
Content = TypeVar("Content", VolumeSnapshotContent, VolumeGroupSnapshotContent, contravariant=True)
log = logging.getLogger(__name__)


class ContentCalls(Protocol[Content, M]):
    """What differs between single and group snapshots: the driver's calls."""

    def is_offered(self, driver: DriverInfo) -> bool:
        """Whether the driver has these calls."""

    async def exists(self, content: Content, driver: DriverInfo) -> bool:
        """Whether the driver has the snapshot of the content's handle. Raises: CsiError."""

    async def create(self, content: Content, driver: DriverInfo, name: str, **given: Mapping[str, str]) -> M:
        """Make its snapshot under that name. given: parameters and secrets. Idempotent. Raises: CsiError."""

    async def find(self, content: Content, driver: DriverInfo) -> M:
        """Find its snapshot, which was there before. Raises: CsiError, NotFoundError."""

    def status_of(self, made: M, now: float) -> dict[str, Any]:
        """The content's status with a snapshot. now: seconds since the epoch."""

    def taken(self, made: M) -> TakenSnapshot:
        """The ids of an answer of the driver."""

    async def named(self, content: Content, driver: DriverInfo) -> TakenSnapshot | None:
        """What the content names, and the driver may have. Raises: CsiError."""

    def ours(self, content: Content, driver: DriverInfo, name: str) -> TakenSnapshot | None:
        """What our driver may have made under that name. Raises: UnavailableError."""

    async def other_user(self, content: Content, taken: TakenSnapshot) -> str:
        """Another content of this node that is to keep that, "" for none. Raises: InUseError: it may go later."""


class ContentLoop(Reconciler[str], Generic[S, C, K, M]):
    """Loop over the contents of this node, and over those that have no node yet. Keys are their names.

    Ignored: changes of status, also by our own writes; a driver that rejected is asked again by the back-off.
    """

    def __init__(
        self,
        name: str,
        node: NodeContext,
        informers: Informers,
        calls: ContentCalls[C, M],
        reasons: FailureReasons,
        shape: SnapshotShape[S, C, K],
    ) -> None:
        super().__init__(name, workers=WORKERS, backoff=Backoff(RETRY_START, RETRY_MAX))
        self._node, self._client, self._informers = node, node.client, informers
        self._calls: ContentCalls[C, M] = calls
        self._shape: SnapshotShape[S, C, K] = shape
        self._kind: Kind[C] = shape.contents
        self._own: Informer[C] = informers.of(self._kind, labels=f"{MANAGED_BY}={node.scope.label}", optional=True)
        self._unowned: Cache[C] | None = None
        self._rejections: Rejections[S, C, K] = Rejections(node, shape, reasons)
        self._abandoned = Abandoned(node)
        self.watch(self._own, self._changed)
        node.volumes.add_index(BY_HANDLE, handle_of)
        node.drivers.on_add(lambda _: self._look_at_all())
        node.readings.on_reading(self._wake_full)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._own.wait_served()  # without the kind: one look each minute, not two
        if self._unowned is None:
            # By label, though contents are few: those of other nodes would reach each agent of a large cluster.
            unowned = self._informers.of(self._kind, labels=f"!{MANAGED_BY}", optional=True)
            unowned.cache.add_index(BY_HANDLE, self._sources_of)
            self._unowned = self.watch(unowned, self._changed)
            self.watch(self._informers.of(VOLUMES, labels=self._node.scope.selector), self._volume_added)
        await super().run()

    def _sources_of(self, content: C) -> Iterable[str]:
        return [f"{content.spec.driver} {handle}" for handle in self._shape.handles(content)]

    def _changed(self, old: C | None, new: C | None) -> Iterable[str]:
        if new is None:
            if old is not None and self._own.cache.get(old.key) is None:
                self._rejections.forget(old.key)
                self._abandoned.forget(old.key)
            return ()
        if not self._is_due(new) or (old is not None and self._seen_of(old) == self._seen_of(new)):
            return ()
        return (new.key,)

    def _is_due(self, content: C) -> bool:
        """Whether there is something to do, as far as the content tells."""
        shape, meta = self._shape, content.metadata
        has_finalizer = shape.content_finalizer in meta.finalizers
        if meta.deleting:
            return has_finalizer
        if MANAGED_BY not in meta.labels:
            return True
        if shape.is_member(content) and not shape.recorded(content):  # its controller writes that first
            return False
        return not content.status.ready_to_use and (has_finalizer or shape.is_given(content))

    def _seen_of(self, content: C) -> object:
        """What a change must differ in to be looked at; our own writes do not."""
        shape, meta = self._shape, content.metadata
        notes = meta.annotations.get(shape.being_deleted), meta.annotations.get(shape.secret[0])
        ready = bool(content.status.ready_to_use)  # not "false instead of nothing", which is our own write
        handle = shape.recorded(content) if shape.is_member(content) else ""
        return meta.uid, meta.deleting, shape.content_finalizer in meta.finalizers, notes, content.spec, ready, handle

    def _volume_added(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        """Look at contents without a node: the volume may be the source of one, or the last that it lacks."""
        if old is not None or new is None or self._unowned is None:
            return ()
        return [content.key for key in handle_of(new) for content in self._unowned.by(BY_HANDLE, key)]

    def _look_at_all(self) -> None:
        for content in (*self._own.cache, *(self._unowned or ())):
            if self._is_due(content):
                self.enqueue(content.key)

    def _wake_full(self) -> None:
        for key in self._rejections:
            self.enqueue(key)

    async def reconcile(self, key: str) -> float | None:
        """Take, make ready or delete one content. Idempotent."""
        content = self._own.cache.get(key)
        if content is None:
            return await self._take(key)
        driver = self._node.drivers.get(content.spec.driver)
        if driver is None or not self._is_due(content):
            return None
        if content.metadata.deleting:
            return await self._delete(content, driver)
        return await self._make_ready(content, driver)

    async def _take(self, key: str) -> float | None:
        """Label a content of this node that has no label. A test of its version makes one owner certain."""
        content = self._unowned.get(key) if self._unowned is not None else None
        driver = self._node.drivers.get(content.spec.driver) if content is not None else None
        if content is None or driver is None:
            return None
        meta = content.metadata
        if not await self._is_here(content, driver):
            if not meta.deleting or self._shape.recorded(content):
                return RETRY_MAX if self._is_unique(content) else None  # a snapshot may be imported
            if wait := self._abandoned.left(content):
                return wait
        labels = {"metadata": {"labels": {MANAGED_BY: self._node.scope.label}}}
        with suppress(ApiNotFoundError):
            await self._client.patch(self._kind, meta.name, labels, resource_version=meta.resource_version)
        return None

    async def _is_here(self, content: C, driver: DriverInfo) -> bool:
        """Whether the content is of this node, which has its volumes or its snapshot. Raises: CsiError."""
        handles = self._shape.handles(content)
        found = [handle for handle in handles if has_volume(self._node.volumes, driver, handle)]
        if (handles and len(found) == len(handles)) or (
            self._is_unique(content) and await self._calls.exists(content, driver)
        ):
            return True
        if found and found[0] == handles[0] and not content.metadata.deleting:
            self._rejections.apart(content, found)
        return False

    def _is_unique(self, content: C) -> bool:
        """Whether its handle is named by uid, and so unique among nodes; names that people gave are not."""
        return self._shape.named_by_uid.search(content.handle) is not None

    async def _make_ready(self, content: C, driver: DriverInfo) -> float | None:
        calls, shape = self._calls, self._shape
        is_new = bool(shape.handles(content)) and not shape.is_member(content)
        if await self._rejections.is_full(content, driver):
            return None
        try:
            self._check(content, driver, is_new=is_new)
            made = await (self._create(content, driver) if is_new else calls.find(content, driver))
        except (CsiError, *NOTHING_MADE) as failure:
            return await self._rejections.rejected(content, driver, failure, partial(self._write, content))
        self._rejections.forget(content.key)
        if is_new:
            log.info("%s made content=%s snapshot=%s driver=%s", shape.word, content.key, made.id, driver.name)
            self._node.readings.want(driver.name)  # before it is reported: others may ask for that capacity now
        if not await self._write(content, calls.status_of(made, self._node.clock.time())):
            if is_new:
                secrets = await secrets_of(self._client, shape, content, driver)
                await self._delete_taken(content, driver, calls.taken(made), secrets)
            return None
        if not made.ready:
            raise UnavailableError(f"{shape.word} {made.id} of content {content.key} is not ready yet")
        return None

    def _check(self, content: C, driver: DriverInfo, *, is_new: bool) -> None:
        """Raises: UnsupportedError, InvalidError for what is not asked of the driver."""
        shape, secret = self._shape, self._shape.secret[0]
        if not self._calls.is_offered(driver):
            raise UnsupportedError(f"driver {driver.name} on node {self._node.scope.node} offers no {shape.word}s")
        if driver.default_pool and secret in content.metadata.annotations:
            raise InvalidError(f"annotation {secret}: driver {driver.name} uses no secrets; remove it")
        if is_new and not shape.ref(content).uid:
            user = shape.snapshots.kind
            raise InvalidError(f"spec.{shape.field('Ref')} has no uid: let a {user} make the content")

    async def _create(self, content: C, driver: DriverInfo) -> M:
        """Make its snapshot. Idempotent. Raises: CsiError; InvalidError, NotFoundError: the driver was not asked."""
        shape = self._shape
        parameters = await parameters_of(self._client, shape, content, driver)
        secrets = await secrets_of(self._client, shape, content, driver)
        name = shape.csi_name(shape.ref(content).uid)
        return await self._calls.create(content, driver, name, parameters=parameters, secrets=secrets)

    async def _write(self, content: C, status: Mapping[str, Any]) -> bool:
        """Write the status of the content; return False if that is gone."""
        meta = content.metadata
        try:
            await self._client.patch(self._kind, meta.name, {"status": status}, subresource="status", uid=meta.uid)
        except ApiNotFoundError:
            return False
        return True

    async def _delete(self, content: C, driver: DriverInfo) -> float | None:
        """Delete the snapshot if the policy says so, then take the finalizer off."""
        if not await is_released(self._client, self._shape, content):
            return LOOK_EVERY
        now = await find(self._client, self._kind, content.metadata.name)  # live: this destroys data of a user
        if now is None or now.metadata.uid != content.metadata.uid or not now.metadata.deleting:
            return None
        if now.metadata.labels.get(MANAGED_BY) != self._node.scope.label:
            return None
        if now.spec.deletion_policy == "Delete" and not self._shape.is_member(now):
            try:
                await self._delete_data(now, driver)
            except (CsiError, InUseError, InvalidError, NotFoundError) as failure:
                self._rejections.not_deleted(now, failure)
                raise
        with suppress(ApiNotFoundError, ApiConflictError):
            finalizer = self._shape.content_finalizer
            await change(self._client, self._kind, now, lambda live: without_finalizers(live, finalizer))
        return None

    async def _delete_data(self, content: C, driver: DriverInfo) -> None:
        """Delete what the content has, unless another content has it too.

        The Secret is read first: without it, a driver cannot tell what it made. Raises: CsiError, InUseError.
        """
        secrets = await secrets_of(self._client, self._shape, content, driver)
        if self._calls.is_offered(driver) and (taken := await self._taken(content, driver)) is not None:
            await self._delete_taken(content, driver, taken, secrets)

    async def _taken(self, content: C, driver: DriverInfo) -> TakenSnapshot | None:
        """What the driver may have for the content, also if that was not reported. Raises: CsiError, UnavailableError.

        Ours has its name in the id. Another driver tells the id only where it makes the snapshot, or finds it made.
        """
        calls, shape = self._calls, self._shape
        taken, uid = await calls.named(content, driver), shape.ref(content).uid
        if taken is not None or not uid or not shape.handles(content):
            return taken
        if driver.default_pool:
            return calls.ours(content, driver, shape.csi_name(uid))
        try:
            return calls.taken(await self._create(content, driver))
        except NOTHING_MADE:
            return None
        except CsiError as failure:
            if not failure.final:
                raise
            return None

    async def _delete_taken(
        self, content: C, driver: DriverInfo, taken: TakenSnapshot, secrets: Mapping[str, str]
    ) -> None:
        if other := await self._calls.other_user(content, taken):
            log.warning("%s retained id=%s content=%s other=%s", self._shape.word, taken.id, content.key, other)
            return
        await self._node.deletions.delete_snapshots(driver, taken, content, secrets)
        self._node.readings.want(driver.name, freed=True)
