"""What single and group snapshots share beyond their loop: classes, Secrets, rejections, contents that no node owns.

A driver that has no capacity is asked again when a pool has more free bytes, not by a timer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic
from zlib import crc32

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiNotFoundError, InvalidError, NotFoundError, TonnageError, UnsupportedError
from tonnage.csi.client import types
from tonnage.csi.errors import Code, CsiError, label_of
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume
from tonnage.kubernetes.api.group_snapshot import VolumeGroupSnapshotContent
from tonnage.kubernetes.api.meta import ObjectReference
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.api.snapshot import VolumeSnapshotContent
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.indexes import BY_HANDLE
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.provisioning.claims.provisioning import SecretRef, read_secret, release_after
from tonnage.provisioning.claims.snapshot_shape import C, K, S, SnapshotShape

WORKERS = 20
RETRY_START, RETRY_MAX = 1.0, 300.0
LOOK_EVERY = 60.0
"""Seconds between two looks for what no event tells: a snapshot that is imported, a VolumeSnapshot that goes."""
NOTHING_MADE = (InvalidError, NotFoundError, UnsupportedError)
_SECRET_KEYS = frozenset(
    f"{names.CSI_PREFIX}{role}-secret-{part}"
    for role in ("snapshotter", "snapshotter-list", "group-snapshotter", "group-snapshotter-get")
    for part in ("name", "namespace")
)
_OURS = frozenset({names.ON_NODE_GONE})
"""Parameters of a class that are for the controller, not for the driver."""


@dataclass(frozen=True)
class FailureReasons:
    """Reasons of Events about snapshots of one shape."""

    not_made: str
    not_deleted: str


async def parameters_of(
    client: Client, shape: SnapshotShape[S, C, K], content: C, driver: DriverInfo
) -> dict[str, str]:
    """The parameters of a content's class, for the driver. Raises: InvalidError, NotFoundError."""
    name, kind = shape.class_of(content), shape.classes.kind
    found = await find(client, shape.classes, name) if name else None
    if found is None:
        if name and not driver.default_pool:  # ours takes no parameters, so none are missed
            raise NotFoundError(f"there is no {kind} {name!r}: make it again")
        return {}
    where = f"{kind} {name}"
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


async def secrets_of(client: Client, shape: SnapshotShape[S, C, K], content: C, driver: DriverInfo) -> dict[str, str]:
    """The Secret that a content's annotations name. Raises: NotFoundError."""
    notes, (name, namespace) = content.metadata.annotations, shape.secret
    if driver.default_pool or name not in notes:
        return {}
    ref = SecretRef(notes[name], notes.get(namespace, ""))
    try:
        return await read_secret(client, ref)
    except ApiNotFoundError:
        raise NotFoundError(f"there is no Secret {ref.namespace}/{ref.name}: make it again") from None


async def has_id(call: Awaitable[object | None]) -> bool:
    """Whether a driver, as it answers this call, has what was asked for. Raises: CsiError."""
    try:
        return await call is not None
    except CsiError as failure:
        if failure.infeasible:  # no driver has such an id
            return False
        raise


def has_volume(volumes: Cache[PersistentVolume], driver: DriverInfo, handle: str) -> bool:
    """Whether a PV of this node has the volume. Only names after a uid are unique among nodes."""
    for volume in volumes.by(BY_HANDLE, f"{driver.name} {handle}"):
        name = volume.metadata.name
        unique = name.startswith(names.volume_name("")) and (not driver.default_pool or handle.endswith(f"/{name}"))
        if unique and driver.reaches(volume):
            return True
    return False


def pool_of(handle: str) -> str:
    """The pool of a handle of ours: `<pool>/<name>`."""
    return handle.partition("/")[0]


def kind_of(failure: TonnageError) -> str:
    """One word for a failure."""
    return label_of(failure.code) if isinstance(failure, CsiError) else type(failure).__name__


class Abandoned:
    """Contents that are being deleted and that no node owns: nothing was made for them, so any agent may release one.

    They are left to the node that may have the volume or snapshot for a while; each agent waits for another time.
    """

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._due: dict[str, float] = {}

    def left(self, content: VolumeSnapshotContent | VolumeGroupSnapshotContent) -> float:
        """Seconds until this agent may release it."""
        now, spread = self._node.clock.monotonic(), crc32(f"{self._node.scope.node} {content.metadata.uid}".encode())
        due = self._due.setdefault(content.key, now + RETRY_MAX + spread % RETRY_MAX)
        return max(0.0, due - now)

    def forget(self, key: str) -> None:
        """It is gone."""
        self._due.pop(key, None)


class Rejections(Generic[S, C, K]):
    """What a driver rejected: errors in the contents, Events, and who waits for free bytes."""

    def __init__(self, node: NodeContext, shape: SnapshotShape[S, C, K], reasons: FailureReasons) -> None:
        self._node, self._reasons = node, reasons
        self._shape: SnapshotShape[S, C, K] = shape
        self._full: dict[str, dict[str, int]] = {}  # contents without capacity, and the free bytes of each pool then
        self._reported: dict[str, str] = {}  # content -> kind of failure that an Event reported

    def __iter__(self) -> Iterator[str]:
        """Contents that wait for free bytes."""
        return iter(tuple(self._full))

    def forget(self, key: str) -> None:
        """It is made, or gone."""
        self._full.pop(key, None)
        self._reported.pop(key, None)

    async def is_full(self, content: C, driver: DriverInfo) -> bool:
        """Whether no pool has more free bytes than when the driver rejected."""
        before = self._full.get(content.key)
        if before is None:
            return False
        now = await self._free(driver, self._shape.handles(content))
        if not now or any(now[pool] > before.get(pool, 0) for pool in now):
            return False
        self._full[content.key] = now
        return True

    async def rejected(
        self, content: C, driver: DriverInfo, failure: TonnageError, write: Callable[[Any], Awaitable[object]]
    ) -> float | None:
        """Report why there is no snapshot; return seconds until the next try, None where an event brings it.

        Raises: the failure, for the back-off.
        """
        code = failure.code if isinstance(failure, CsiError) else None
        if code is Code.ABORTED:  # a call of the same name is under way
            raise failure
        text, after, was_full = str(failure), RETRY_MAX, content.key in self._full
        if code is Code.RESOURCE_EXHAUSTED and self._shape.handles(content):
            text, free = await self._lack(content, driver, text)
            if free:
                self._full[content.key] = free
        is_new = content.status.error is None or (content.status.error.message != text and not was_full)
        if is_new:  # of a full pool only the numbers differ
            error = {"message": text, "time": rfc3339(self._node.clock.time())}
            await write({"readyToUse": False, "error": error})
        self._tell(content, self._reasons.not_made, f"Failed to create {self._shape.word}: {text}", kind_of(failure))
        if content.key in self._full and code is Code.RESOURCE_EXHAUSTED:
            return None
        if isinstance(failure, NotFoundError):
            after = LOOK_EVERY
        may_wait = (None, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED)
        if code not in may_wait and not (code is Code.INTERNAL and self._shape.stops_writers):
            raise failure
        return after

    def apart(self, content: C, found: Sequence[str]) -> None:
        """Report that this node has only these of the content's volumes: no node has all of them."""
        others = ", ".join(handle for handle in self._shape.handles(content) if handle not in found)
        why = (
            f"volumes {', '.join(found)} are on node {self._node.scope.node}, {others} are not: a group is of one node"
        )
        self._tell(content, self._reasons.not_made, f"Failed to create {self._shape.word}: {why}", "apart")

    def not_deleted(self, content: C, failure: TonnageError) -> None:
        """Report why a snapshot was not deleted."""
        text = f"Failed to delete {self._shape.word}: {failure}"
        self._tell(content, self._reasons.not_deleted, text, kind_of(failure))

    async def _lack(self, content: C, driver: DriverInfo, text: str) -> tuple[str, dict[str, int]]:
        """The text with numbers, and the free bytes of each pool; none where the driver does not tell them."""
        handles = self._shape.handles(content)
        free = await self._free(driver, handles)
        if not free or not driver.default_pool:
            return text, free
        size = ""
        if types.GET_VOLUME in driver.controller:
            with suppress(CsiError):
                total = sum([(await driver.client.get_volume(handle))[0].size for handle in handles])
                size = from_bytes(total)
        return _shortage(self._node.scope.node, len(handles), size, free), free

    async def _free(self, driver: DriverInfo, handles: Sequence[str]) -> dict[str, int]:
        """Free bytes of each pool where the volumes are; empty where the driver does not tell them."""
        if not driver.lists_capacity:
            return {}
        found = {}
        for pool in dict.fromkeys(pool_of(handle) if driver.default_pool else "" for handle in handles):
            try:
                found[pool] = (await driver.client.get_capacity({"pool": pool} if pool else {})).available
            except CsiError:
                return {}
        return found

    def _tell(self, content: C, reason: str, text: str, kind: str) -> None:
        """Emit once for each kind of failure, on the content and on what it is for, which its user can read."""
        kind = f"{reason} {kind}"
        if self._reported.get(content.key) == kind:
            return
        self._reported[content.key] = kind
        ref, user = self._shape.ref(content), self._shape.snapshots
        once = f"{content.metadata.uid}\0{kind}"
        self._node.events.warning(refer(self._shape.contents, content), reason, text, once=once)
        if ref.name:
            about = ObjectReference(user.api_version, user.kind, ref.namespace, ref.name, ref.uid)
            self._node.events.warning(about, reason, text, once=once)


def _shortage(node: str, volumes: int, size: str, free: Mapping[str, int]) -> str:
    """A sentence with numbers. size: of the volumes, "" if unknown."""
    what = f"snapshots of {volumes} volumes" + (f", {size}" if size else "")
    if volumes == 1:
        what = "a snapshot" + (f" of {size}" if size else "")
    listed = [(pool, f"{from_bytes(count)} free") for pool, count in sorted(free.items())]
    if len(listed) == 1:
        text = f"pool {listed[0][0]} on node {node} has no capacity for {what} ({listed[0][1]})"
    else:
        left = ", ".join(f"{pool}: {count}" for pool, count in listed)
        text = f"pools on node {node} have no capacity for {what} ({left})"
    return f"{text}: delete snapshots or volumes there"


async def is_released(client: Client, shape: SnapshotShape[S, C, K], content: C, *, gone: bool = False) -> bool:
    """Whether nothing needs the content: what it was made for is gone, being deleted, or never was.

    gone: being deleted is not enough, since a claim may still be made of it.
    """
    ref = shape.ref(content)
    if content.metadata.annotations.get(shape.being_deleted) == "yes" or not ref.uid:
        return True
    found = await find(client, shape.snapshots, ref.name, ref.namespace)
    return found is None or found.metadata.uid != ref.uid or (found.metadata.deleting and not gone)
