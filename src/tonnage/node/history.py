"""Whether the API server's state continues the one that this node has seen, or is an older one, as after a restore.

An older state lacks objects whose volumes have data here, and has objects that were deleted or changed since. So the
agent leaves a mark in the API, an annotation of its Node, and keeps the same mark in a file. Every deletion reads the
Node first. A mark that is not the one in the file means that the state is older than the mark: the agent then deletes
nothing until a person says so, by removing an annotation.

The Node is marked again when there are volumes that the last mark did not count, and at once when a person sets a
PersistentVolume to Retain: in a state of before, it may be Released with policy Delete.

After each watch, the mark says whether the agent may go on: in another state of the API server it starts anew, as its
informers hold objects of a history that is gone.

A PersistentVolume that a person gives to another claim is marked at once, and before a pod gets its volume: in an older
state it is Released, and its policy would delete what the other claim's pods wrote. A new Node has no mark: there, the
file says which claims such PersistentVolumes have.

The file is written before the Node, and again once the Node has the mark. Killed between the two, the agent finds the
former mark in the Node: it writes a new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiError, PreconditionError, TonnageError, UnavailableError, host_errors
from tonnage.base.observe import metrics
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, PersistentVolume
from tonnage.kubernetes.api.kinds import NODES, VOLUMES
from tonnage.kubernetes.api.matching import driver_volume
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.node_scope import NodeScope
from tonnage.storage.pools.base import record as records
from tonnage.storage.pools.base.threads import Threads

log = logging.getLogger(__name__)
FILE = "api-history"
"""Name of the file in the driver's state."""
EVENT = "ApiServerWentBack"
_FORBIDDEN = 403
_SHOWN = 32
_MOST_NODES = 32
SOON, EVERY = 30.0, 600.0
"""Seconds until a new volume is marked, and between two marks: each is a write of the Node, which many watch."""


class _Seen(msgspec.Struct, frozen=True):
    """The file. node: uid of the Node object. mark: what its annotation is, or former while the mark is not confirmed.

    volumes: what there was when the mark was written, see _marks_of(). given: volumes that have another claim than
    they were made for, seen before the mark was written and after that, as the API server may be restored between the
    two; other marks do not end that. stopped: why nothing may be deleted, ""
    otherwise. former_nodes: uids of Node objects of before: one that returns is of an older state.
    """

    node: str
    mark: str
    former: str = ""
    confirmed: bool = False
    volumes: list[str] = []
    given: list[str] = []
    stopped: str = ""
    former_nodes: list[str] = []
    version: int = records.FORMAT


class ApiHistory:
    """The marks of one node. state: the folder of the file; None keeps the marks in memory only."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        clock: Clock,
        scope: NodeScope,
        volumes: Cache[PersistentVolume],
        state: Path | None,
    ) -> None:
        self._client, self._events, self._clock = client, events, clock
        self._node, self._scope, self._volumes = scope.node, scope, volumes
        self._state = state
        self._seen: _Seen | None = None
        self._loaded = False
        self._may_mark = True
        self._lock = asyncio.Lock()
        self._changed, self._reused = asyncio.Event(), asyncio.Event()
        self._threads = Threads(f"history {scope.node}", 1)  # a write ends although the agent does not wait for it
        self._marked = float("-inf")  # monotonic time of the last mark for volumes
        self._begun = self._ended = 0
        self._outcome: TonnageError | None = None
        volumes.on_change(self._volume_changed)

    async def run(self) -> None:
        """Look at the Node at the start, and mark it again while volumes are made, until cancelled."""
        pauses = Backoff(initial=SOON, maximum=EVERY)
        try:
            while True:
                if await self._look():
                    pauses.forget(self)
                    await self._changed.wait()
                    pause = max(SOON, self._marked + EVERY - self._clock.monotonic())
                else:
                    pause = pauses.next(self)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._reused.wait()
                self._changed.clear()
                self._reused.clear()
        finally:
            self._threads.close()

    async def _look(self) -> bool:
        try:
            await self.check()
            await self._renew()
        except TonnageError as failure:
            log.warning("API server's history not looked at node=%s error=%s", self._node, failure)
            return False
        return True

    async def check(self) -> None:
        """Raises: PreconditionError where the API server's state is older than what this node has seen, or may be.

        Reads the Node; callers that wait for the same read share it. Raises: ApiError, UnavailableError.
        """
        asked = self._begun
        async with self._lock:
            if self._ended <= asked:  # no read has begun since, and ended
                self._begun += 1
                try:
                    await self._check_node()
                    self._outcome = None
                except TonnageError as failure:
                    self._outcome = failure
                self._ended = self._begun
            if self._outcome is not None:
                raise self._outcome

    async def continues(self) -> bool:
        """Return whether the API server's state is known to have the last mark of this process. Reads the Node.

        True where it may not write marks.
        """
        try:
            async with self._lock:  # a mark may be written now
                node = await find(self._client, NODES, self._node)
                if node is not None and not self._is_known(node):
                    await self._load(again=True)  # another agent of this node may have written it
                return node is not None and (self._is_known(node) or not self._may_mark)
        except TonnageError as failure:
            log.warning("API server's history not known node=%s error=%s", self._node, failure)
            return False

    async def before_use(self, handle: str) -> None:
        """Before a pod gets the volume of that id: mark it first, if it has another claim than it was made for.

        Else what the pod writes would be deleted in an older state that has its PersistentVolume Released. Idempotent.
        Raises: ApiError, UnavailableError; HostError where the file cannot be written.
        """
        given = set(_given(await self._users(handle)))
        if not given:
            return
        try:
            await self.check()
        except PreconditionError:
            return  # nothing is deleted, and what ends that is a new mark
        await self._renew(given)
        if self._may_mark and self._seen is not None and not given <= set(self._seen.given):
            raise UnavailableError(f"volume {handle}: that it has another claim is not marked yet")

    async def _users(self, handle: str) -> Sequence[PersistentVolume]:
        """Return the PersistentVolumes that pods may have the volume by. A person may have given one any name.

        They are read live: the watch may not show yet whom they were given to. Raises: ApiError, UnavailableError.
        """
        if names.flex_uid(handle):
            return ()  # it was made for one PersistentVolume, whatever claim that has
        seen = [volume.metadata.name for volume in self._volumes if _has_handle(volume, handle)]
        for name in seen or [handle.rpartition("/")[2]]:
            found = await find(self._client, VOLUMES, name)
            if found is not None and _has_handle(found, handle) and found.status.phase == "Bound":
                return (found,)
        return [volume for volume in (await self._client.list(VOLUMES)).items if _has_handle(volume, handle)]

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is None:
            return
        if old is not None and _goes(old) and not _goes(new):
            self._reused.set()
        if self._seen is None or not set(_marks_of([new])) <= set(self._seen.volumes):
            self._changed.set()
            if _given([new]):
                self._reused.set()

    async def _renew(self, more: Collection[str] = ()) -> None:
        """Mark the Node again, if there are volumes that the last mark did not count. more: further given ones."""
        async with self._lock:
            now = sorted({*more, *_marks_of(self._volumes)})
            if self._seen is None or self._seen.stopped or set(now) <= set(self._seen.volumes):
                return
            node = await find(self._client, NODES, self._node)
            if node is not None and node.metadata.uid == self._seen.node and _mark(node) == self._seen.mark:
                await self._write(node, volumes=now)
                self._marked = self._clock.monotonic()

    async def _check_node(self) -> None:
        node = await find(self._client, NODES, self._node)
        if node is None:
            raise PreconditionError(f"node {self._node} has no Node object: nothing is deleted until it has one")
        await self._load()
        if not self._is_known(node):
            await self._load(again=True)  # another agent of this node may have written it
        await self._judge(node, self._seen)

    def _is_known(self, node: Node) -> bool:
        seen = self._seen
        return seen is not None and (seen.node, seen.mark) == (node.metadata.uid, _mark(node))

    async def _judge(self, node: Node, seen: _Seen | None) -> None:
        """Compare a Node with the file. Raises: PreconditionError."""
        if seen is None or (not seen.stopped and _is_unmarked(node, seen)):
            if seen is not None and (why := await self._taken_back(seen)):
                await self._stop(node, why)
            await self._write(node)
        elif not self._is_known(node):
            await self._stop(node, seen.stopped or _older(node, seen))
        elif seen.stopped and seen.confirmed and names.DELETIONS_STOPPED not in node.metadata.annotations:
            log.warning("deletions go on: a person removed the annotation node=%s", self._node)
            self._events.normal(refer(NODES, node), "DeletionsResumed", "volumes are deleted again")
            await self._write(node)
        elif seen.stopped:
            await self._stop(node, seen.stopped)
        elif not seen.confirmed:
            await self._save(msgspec.structs.replace(seen, confirmed=True))

    async def _taken_back(self, seen: _Seen) -> str:
        """Return which volume has not got the claim that the file says, "" for none. Raises: ApiError."""
        if not seen.given:
            return ""
        listed = await self._listed(seen.given)
        lost = set(seen.given) - set(_given(listed))
        claims = dict(given.split(" ", 1) for given in sorted(lost))
        for volume in listed:
            if uid := claims.get(_made(volume), ""):
                name = volume.metadata.name
                return f"PersistentVolume {name} has a volume of the claim with uid {uid}, which has no volume now"
        return ""

    async def _stop(self, node: Node, why: str) -> None:
        """Say why nothing is deleted, in the Node and by an Event; a Node that says so already is left alone."""
        metrics.WENT_BACK.labels(self._node).set(1)
        if not self._is_known(node) or self._seen is None or not self._seen.stopped:
            log.error("API server went back, nothing is deleted node=%s reason=%s", self._node, why)
            await self._write(node, stopped=why)
            self._events.warning(refer(NODES, node), EVENT, _advice(self._node, why))
        elif not self._seen.confirmed:
            await self._save(msgspec.structs.replace(self._seen, confirmed=True))
        raise PreconditionError(_advice(self._node, why))

    async def _write(self, node: Node, *, volumes: Collection[str] = (), stopped: str = "") -> None:
        """Write a new mark: the file, the Node, the file. volumes: what there was before."""
        if not self._may_mark:
            return
        former = _former_nodes(self._seen, node)
        given = self._seen.given if self._seen is not None else []
        mark = secrets.token_hex(8)
        seen = _Seen(node.metadata.uid, mark, _mark(node), given=given, stopped=stopped, former_nodes=former)
        await self._save(seen)
        notes = {names.HISTORY: seen.mark, names.DELETIONS_STOPPED: stopped or None}
        try:
            await self._client.patch(NODES, self._node, {"metadata": {"annotations": notes}}, uid=node.metadata.uid)
        except ApiError as failure:
            if failure.code != _FORBIDDEN:
                raise
            self._may_mark = False  # an admission policy of an earlier version
            log.warning("cannot notice an older state of the API server node=%s error=%s", self._node, failure)
            return
        if not stopped:
            if given := [*given, *filter(_is_given, volumes)]:
                given = sorted(set(_given(await self._listed(given))))
            there = [one for one in volumes if one in given or not _is_given(one)]
            seen = msgspec.structs.replace(seen, volumes=there, given=given)
        await self._save(msgspec.structs.replace(seen, confirmed=True))
        metrics.WENT_BACK.labels(self._node).set(1 if stopped else 0)

    async def _listed(self, given: Collection[str]) -> Sequence[PersistentVolume]:
        """Return this node's PersistentVolumes, and those of these volumes that have not got its label (yet)."""
        listed = (await self._client.list(VOLUMES, labels=self._scope.selector)).items
        if set(given) <= set(_given(listed)):
            return listed
        everywhere = (await self._client.list(VOLUMES)).items
        return [v for v in everywhere if self._scope.has_volume(v.metadata) or set(given) & set(_given([v]))]

    async def _load(self, *, again: bool = False) -> None:
        if self._state is not None and (again or not self._loaded):
            self._seen = await self._threads.run(_read, self._state / FILE)
        self._loaded = True

    async def _save(self, seen: _Seen) -> None:
        if self._state is not None:
            await self._threads.run(_write, self._state / FILE, seen)
        self._seen = seen


def _marks_of(volumes: Iterable[PersistentVolume]) -> list[str]:
    """What a mark counts: the name of each PersistentVolume, with another policy than Delete; see _given()."""
    found = list(volumes)
    return [*(v.metadata.name if _goes(v) else f"{v.metadata.name}={_policy(v)}" for v in found), *_given(found)]


def _policy(volume: PersistentVolume) -> str:
    return volume.spec.persistent_volume_reclaim_policy


def _goes(volume: PersistentVolume) -> bool:
    """Whether the volume is deleted with its PersistentVolume."""
    return _policy(volume) == "Delete"


def _given(volumes: Iterable[PersistentVolume]) -> list[str]:
    """Volumes that have another claim than they were made for, each with that claim's uid."""
    refs = ((_made(volume), volume.spec.claim_ref) for volume in volumes)
    return [f"{made} {ref.uid}" for made, ref in refs if ref and ref.uid and names.volume_name(ref.uid) != made]


def _is_given(mark: str) -> bool:
    return " " in mark


def _made(volume: PersistentVolume) -> str:
    """Name of the volume, which its first PersistentVolume has too."""
    found = driver_volume(volume)
    return found[1].rpartition("/")[2] if found is not None else volume.metadata.name


def _has_handle(volume: PersistentVolume, handle: str) -> bool:
    found = driver_volume(volume)
    return found is not None and found[1] == handle


def _is_unmarked(node: Node, seen: _Seen) -> bool:
    """Return whether it is a new Node object, or has not got the file's mark yet."""
    if seen.node != node.metadata.uid:
        return node.metadata.uid not in seen.former_nodes
    return not seen.confirmed and _mark(node) == seen.former


def _former_nodes(seen: _Seen | None, node: Node) -> list[str]:
    if seen is None:
        return []
    all_of_them = dict.fromkeys((*seen.former_nodes, seen.node))
    return [uid for uid in all_of_them if uid != node.metadata.uid][-_MOST_NODES:]


def _mark(node: Node) -> str:
    return node.metadata.annotations.get(names.HISTORY, "")


def _older(node: Node, seen: _Seen) -> str:
    if seen.node != node.metadata.uid:
        return f"the Node has the uid {node.metadata.uid} again, it had {seen.node} since"
    found = f"has {_mark(node)[:_SHOWN]}" if _mark(node) else "has none"  # others may have written a long one
    return f"the Node's annotation {names.HISTORY} {found}, this node wrote {seen.mark}"


def _advice(node: str, why: str) -> str:
    return (
        f"node {node}: volumes are not deleted: the API server may be in an older state, as after a restore: {why};"
        f" look at the node's PersistentVolumes and `tonnage volumes orphans`, then run: kubectl annotate node"
        f" {node} {names.DELETIONS_STOPPED}-"
    )


def _read(file: Path) -> _Seen | None:
    """Read the file; a damaged one stops all deletions. Blocking. Raises: HostError."""
    with host_errors(f"cannot read {file}"):
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            return None
    try:
        return records.unseal(text, _Seen)
    except ValueError as damage:
        raise PreconditionError(
            f"{file} is damaged ({damage}): volumes are not deleted; look at the node's PersistentVolumes and `tonnage"
            " volumes orphans`, then remove the file"
        ) from None


def _write(file: Path, seen: _Seen) -> None:
    """Write the file, durable. Blocking. Raises: HostError."""
    with host_errors(f"cannot write {file}"):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = file.with_name(file.name + ".new")
        with open(new, "wb") as out:
            out.write(records.seal(seen))
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, file)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
