"""Object store in memory, and what stores on disk share with it.

Objects are stored as encoded JSON bytes; labels and fields for list and watch are extracted once. One revision counter
serves all collections. Readers see exactly the answered writes: a store on disk shows a write only when it is durable.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from tonnage.base.errors import ApiGoneError, ExhaustedError

log = logging.getLogger(__name__)
Obj = dict[str, Any]
EventType = Literal["ADDED", "MODIFIED", "DELETED"]
Extract = Callable[[str, Obj], Mapping[str, str]]
OBJECT_BYTES = 1 << 10
"""What an object counts besides its data: its places in memory."""
_SLIGHTLY = 1 << 10

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_NONE: Mapping[str, str] = {}


class ObjectKey(NamedTuple):
    """Key of an object: collection (Resource.collection), namespace ("" for none), name."""

    collection: str
    namespace: str
    name: str


@dataclass(frozen=True)
class StoreLimits:
    """Bytes that a store holds."""

    objects: int = 512 << 20
    """Of all objects. etcd has a quota too: 2 GiB, and what does not fit is answered `database space exceeded`."""
    margin: int = 32 << 20
    """Beyond `objects`, for updates that make an object hardly larger: the status of what is there goes on."""
    history: int = 8 << 20
    """Of the changes of one collection."""


class StaleError(Exception):
    """Conflict: the object changed after the revision that the write is based on."""


class StoredObject:
    """One object at one revision. Immutable."""

    __slots__ = ("_extract", "_fields", "_labels", "data", "key", "revision")

    def __init__(self, key: ObjectKey, revision: int, data: bytes, extract: Extract, obj: Obj | None = None) -> None:
        self.key = key
        self.revision = revision
        self.data = data
        self._extract = extract
        self._labels: Mapping[str, str] | None = None
        self._fields: Mapping[str, str] | None = None
        if obj is not None:
            self._index(obj)

    def _index(self, obj: Obj) -> None:
        self._labels = obj["metadata"].get("labels") or _NONE
        self._fields = self._extract(self.key.collection, obj) or _NONE

    def decode(self) -> Obj:
        """The object as a dict of your own."""
        return _decode(self.data)

    @property
    def labels(self) -> Mapping[str, str]:
        """metadata.labels."""
        if self._labels is None:
            self._index(self.decode())
        assert self._labels is not None
        return self._labels

    @property
    def fields(self) -> Mapping[str, str]:
        """Values of the kind's selectable fields, besides name and namespace."""
        if self._fields is None:
            self._index(self.decode())
        assert self._fields is not None
        return self._fields


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """One change. record: of a DELETED the last state, with the revision of the deletion."""

    type: EventType
    record: StoredObject
    before: StoredObject | None


Listener = Callable[[StoreEvent], None]
"""Called with each change, in order of revisions, when the change is visible."""


class History:
    """The latest changes of one collection, limited in bytes."""

    def __init__(self, floor: int, limit: int) -> None:
        self.floor, self._limit = floor, limit
        self.last = 0
        self._bytes = 0
        self._events: deque[StoreEvent] = deque()

    def append(self, event: StoreEvent) -> None:
        """Keep one more change, forget the oldest ones beyond the limit."""
        self._events.append(event)
        self.last = event.record.revision
        self._bytes += len(event.record.data)
        while self._bytes > self._limit:
            gone = self._events.popleft()
            self.floor = gone.record.revision
            self._bytes -= len(gone.record.data)

    def since(self, revision: int) -> list[StoreEvent]:
        """Changes newer than revision. Raises: ApiGoneError."""
        if revision < self.floor:
            raise ApiGoneError(f"too old resource version: {revision} ({self.floor + 1})")
        found = []
        for event in reversed(self._events):
            if event.record.revision <= revision:
                break
            found.append(event)
        found.reverse()
        return found


class Store:
    """Objects in memory, without persistence. A store on disk serves its reads from here.

    All methods belong to one event loop; reads never wait.
    """

    def __init__(self, fields: Extract, limits: StoreLimits | None = None) -> None:
        self._extract = fields
        self.limits = limits or StoreLimits()
        self._revision = self._floor = self._assigned = 1
        self._objects: dict[str, dict[str, dict[str, StoredObject]]] = {}
        self._histories = defaultdict[str, History](lambda: History(self._floor, self.limits.history))
        self._listeners: list[Listener] = []
        self.size = 0
        """Bytes of all visible objects; each counts OBJECT_BYTES more than its data."""

    @property
    def revision(self) -> int:
        """Revision of the newest visible change."""
        return self._revision

    def get(self, key: ObjectKey) -> StoredObject | None:
        """The visible object, or None."""
        collection, namespace, name = key
        try:
            return self._objects[collection][namespace].get(name)
        except KeyError:
            return None

    def records(self, collection: str, namespace: str | None = None) -> list[StoredObject]:
        """Visible objects of a collection (or of one namespace of it), by namespace and name."""
        spaces = self._objects.get(collection, {})
        chosen = sorted(spaces) if namespace is None else (namespace,)
        return [records[name] for space in chosen if (records := spaces.get(space)) for name in sorted(records)]

    def count(self, collection: str) -> int:
        """Number of objects in a collection."""
        return sum(map(len, self._objects.get(collection, {}).values()))

    def collections(self) -> Iterable[str]:
        """Names of the collections that ever held an object."""
        return sorted(self._objects)

    def changed(self, collection: str) -> int:
        """Revision of the newest change of a collection (since the start)."""
        history = self._histories.get(collection)
        return max(history.last, self._floor) if history else self._floor

    def since(self, collection: str, revision: int) -> list[StoreEvent]:
        """Changes newer than revision, oldest first. Raises: ApiGoneError when some of them are compacted."""
        return self._histories[collection].since(revision)

    def listen(self, listener: Listener) -> None:
        """Call listener for every change from now on."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Load what is there. Raises: BusyError, PreconditionError, UnavailableError."""

    async def stop(self) -> None:
        """Finish running writes and release all resources. Idempotent."""

    async def put(self, key: ObjectKey, obj: Obj, expected: int) -> StoredObject:
        """Create (expected 0) or replace obj, which is at revision expected; sets its metadata.resourceVersion.

        Returns when the write is durable. Raises: StaleError, and ExhaustedError or UnavailableError (more than
        the limit; disk full, read-only, broken); then nothing has been changed and the write may be repeated.
        """
        return await self._write(key, obj, expected, removed=False)

    async def remove(self, key: ObjectKey, last: Obj, expected: int) -> StoredObject:
        """Delete the object at revision expected; last is the state that watchers are shown. Raises: as put."""
        return await self._write(key, last, expected, removed=True)

    async def _write(self, key: ObjectKey, obj: Obj, expected: int, *, removed: bool) -> StoredObject:
        self._check(key, expected)
        record = self._stamp(key, obj)
        self._check_space(record, obj, removed=removed)
        self._apply(record, removed=removed)
        return record

    def _check(self, key: ObjectKey, expected: int) -> None:
        current = self.get(key)
        if (current.revision if current else 0) != expected:
            raise StaleError(f"{'/'.join(filter(None, key))} has changed meanwhile")

    def _check_space(self, record: StoredObject, obj: Obj, *, removed: bool) -> None:
        """Raises: ExhaustedError for a write that would make the store too large. All that deletes passes."""
        before = self.get(record.key)
        growth = _weight(record) - _weight(before)
        if removed or growth <= 0 or self.size + growth <= self.limits.objects:
            return
        if before is not None:
            if growth <= _SLIGHTLY and self.size + growth <= self.limits.objects + self.limits.margin:
                return
            if growth <= _SLIGHTLY and "deletionTimestamp" in obj["metadata"] and _is_living(before):
                return  # marked for deletion: what has finalizers cannot go otherwise
        raise ExhaustedError(
            f"the store is full: it has {self.size} bytes of objects, {self.limits.objects} at most: "
            "delete some and try again"
        )

    def _stamp(self, key: ObjectKey, obj: Obj) -> StoredObject:
        """Give obj the next revision and encode it."""
        self._assigned += 1
        obj["metadata"]["resourceVersion"] = str(self._assigned)
        return StoredObject(key, self._assigned, _encode(obj), self._extract, obj)

    def _apply(self, record: StoredObject, *, removed: bool) -> None:
        """Make a write visible and notify listeners."""
        collection, namespace, name = record.key
        space = self._objects.setdefault(collection, {}).setdefault(namespace, {})
        before = space.get(name)
        if removed:
            space.pop(name, None)
            if not space:
                del self._objects[collection][namespace]
        else:
            space[name] = record
        self.size += (0 if removed else _weight(record)) - _weight(before)
        self._revision = record.revision
        event = StoreEvent("DELETED" if removed else "MODIFIED" if before else "ADDED", record, before)
        self._histories[collection].append(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # the write is done, and those behind it must go on
                log.exception("listener failed key=%s revision=%d", "/".join(record.key), record.revision)

    def _load(self, records: Iterable[StoredObject], revision: int) -> None:
        """Start with these records; older revisions are compacted."""
        for record in records:
            collection, namespace, name = record.key
            self._objects.setdefault(collection, {}).setdefault(namespace, {})[name] = record
            self.size += _weight(record)
        self._revision = self._floor = self._assigned = max(revision, 1)


def _weight(record: StoredObject | None) -> int:
    """What an object counts of a store's limit."""
    return len(record.data) + OBJECT_BYTES if record is not None else 0


def _is_living(record: StoredObject) -> bool:
    return "deletionTimestamp" not in record.decode()["metadata"]
