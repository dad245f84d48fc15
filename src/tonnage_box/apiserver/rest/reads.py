"""REST verbs get, list and watch."""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import ApiError, ApiGoneError, FieldCause
from tonnage_box.apiserver.request import errors
from tonnage_box.apiserver.request.negotiate import MAX_INSIDE, run_in_thread_if_large
from tonnage_box.apiserver.request.options import ListOptions
from tonnage_box.apiserver.request.routes import RequestPath
from tonnage_box.apiserver.rest import output
from tonnage_box.apiserver.rest.output import Representation
from tonnage_box.apiserver.storage.store import Store, StoredObject
from tonnage_box.apiserver.storage.watch import Filter, Hub, Watcher, encode_change

_SNAPSHOTS_SURE = 8
_SNAPSHOTS = 64
_SNAPSHOT_RECORDS = 50_000
_SNAPSHOT_SECONDS = 300.0
_MAX_AHEAD_SECONDS = 3.0
_OBJECTS = 64
_OBJECT = MAX_INSIDE // _OBJECTS
"""What an object of a list counts for, besides its bytes: no more than 64 are worked on in the event loop."""
_AS_STORED = MAX_INSIDE // 256
"""The same for one whose bytes are only copied."""

_Place = tuple[str, str | None, int]
"""Collection, namespace, revision."""


class _Token(msgspec.Struct, array_like=True):
    """Content of a continue token: the list's revision and the last object sent."""

    revision: int
    namespace: str
    name: str


@dataclass
class _Snapshot:
    """A list at one revision, for its remaining pages."""

    revision: int
    records: list[StoredObject]
    readers: int = 0
    timer: asyncio.TimerHandle | None = None


class Reads:
    """Answers reads from the store; changes nothing."""

    def __init__(self, store: Store, hub: Hub, clock: Clock) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock
        self._snapshots: OrderedDict[_Place, _Snapshot] = OrderedDict()

    def now(self) -> datetime:
        """The time, for the ages in tables."""
        return datetime.fromtimestamp(self._clock.time(), UTC)

    async def shown(self, view: Representation, record: StoredObject) -> bytes:
        """One object, in JSON."""
        shape = output.json_shape(view, self.now)
        render, size = shape.render, len(record.data) if view.pretty or shape is not output.AS_STORED else 0

        def body() -> bytes:
            plain = render(record, record.revision)
            return output.prettied(plain) if view.pretty else plain

        return await run_in_thread_if_large(size, body)

    # list

    async def selected(self, place: RequestPath, options: ListOptions) -> list[StoredObject]:
        """All objects that the options select."""
        wanted = Filter(place.resource.collection, place.namespace, options.labels, options.fields)
        return await _select(wanted, self._store.records(wanted.collection, wanted.namespace))

    async def rendered(self, view: Representation, records: list[StoredObject], meta: dict[str, object]) -> bytes:
        """A list of these objects, encoded."""
        weight = _AS_STORED * len(records)
        if view.pretty or not view.is_as_stored:
            weight = sum(_OBJECT + len(record.data) for record in records[: _OBJECTS + 1])
        return await run_in_thread_if_large(weight, output.render_list, view, records, meta, self.now())

    async def page(self, place: RequestPath, options: ListOptions, view: Representation) -> bytes:
        """A list, encoded. Raises: 400, 410 and 504 (a resourceVersion that is not there yet)."""
        wanted = Filter(place.resource.collection, place.namespace, options.labels, options.fields)
        if options.continue_token:
            snapshot, after = self._continued(wanted, options)
        else:
            snapshot, after = await self._fresh(wanted, options), None
        pool = snapshot.records
        if after is not None:
            pool = [r for r in pool if (r.key.namespace, r.key.name) > after]
        records = await _select(wanted, pool)
        meta: dict[str, object] = {"resourceVersion": str(snapshot.revision)}
        if options.limit and len(records) > options.limit:
            rest = len(records) - options.limit
            records = records[: options.limit]
            meta["continue"] = self._token(wanted, snapshot, records[-1], begins=after is None)
            if not options.labels and not options.fields:
                meta["remainingItemCount"] = rest
        elif after is not None:
            self._read_to_the_end((wanted.collection, wanted.namespace, snapshot.revision), snapshot)
        return await self.rendered(view, records, meta)

    async def _fresh(self, wanted: Filter, options: ListOptions) -> _Snapshot:
        asked = int(options.resource_version or 0)
        await self._reach(asked)
        if options.match == "Exact" and self._store.changed(wanted.collection) > asked:
            cached = self._snapshots.get((wanted.collection, wanted.namespace, asked))
            if cached is None:
                raise ApiGoneError(f"The resourceVersion for the provided list is too old: {asked}")
            return cached
        revision = asked if options.match == "Exact" else self._store.revision
        return _Snapshot(revision, self._store.records(wanted.collection, wanted.namespace))

    async def _reach(self, revision: int) -> None:
        """Wait a moment for a revision of the future, then raise a 504 as Kubernetes does."""
        waited = 0.0
        while revision > self._store.revision:
            if waited >= _MAX_AHEAD_SECONDS:
                raise _too_large(revision, self._store.revision)
            await self._clock.sleep(0.1)
            waited += 0.1

    def _token(self, wanted: Filter, snapshot: _Snapshot, last: StoredObject, *, begins: bool) -> str:
        place = (wanted.collection, wanted.namespace, snapshot.revision)
        cached = self._snapshots.setdefault(place, snapshot)  # readers of one revision share it
        if cached.timer is None:
            cached.timer = asyncio.get_running_loop().call_later(_SNAPSHOT_SECONDS, self._forget, place)
        cached.readers += begins or not cached.readers
        self._snapshots.move_to_end(place)
        self._evict()
        token = _Token(snapshot.revision, last.key.namespace, last.key.name)
        return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")

    def _evict(self) -> None:
        """Drop the oldest snapshots: the limit allows many small lists or few large ones."""
        cached = self._snapshots
        total = sum(len(snapshot.records) for snapshot in cached.values())
        while len(cached) > _SNAPSHOTS_SURE and (len(cached) > _SNAPSHOTS or total > _SNAPSHOT_RECORDS):
            place = next(iter(cached))
            total -= len(cached[place].records)
            self._forget(place)

    def _read_to_the_end(self, place: _Place, snapshot: _Snapshot) -> None:
        """Drop the snapshot's history of changes when its last reader has finished."""
        snapshot.readers -= 1
        if snapshot.readers <= 0 and self._snapshots.get(place) is snapshot:
            self._forget(place)

    def _forget(self, place: _Place) -> None:
        snapshot = self._snapshots.pop(place, None)
        if snapshot is not None and snapshot.timer is not None:
            snapshot.timer.cancel()

    def _continued(self, wanted: Filter, options: ListOptions) -> tuple[_Snapshot, tuple[str, str]]:
        text = options.continue_token
        try:
            token = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
        except (binascii.Error, ValueError):
            raise errors.bad_request("continue key is not valid: it must come from the list before") from None
        if options.resource_version not in ("", "0"):
            raise errors.bad_request("specifying resource version is not allowed when using continue")
        snapshot = self._snapshots.get((wanted.collection, wanted.namespace, token.revision))
        if snapshot is None:
            if self._store.changed(wanted.collection) > token.revision or token.revision > self._store.revision:
                raise ApiGoneError(
                    "The provided continue parameter is too old to display a consistent list result. "
                    "You must start a new list without the continue parameter."
                )
            snapshot = _Snapshot(token.revision, self._store.records(wanted.collection, wanted.namespace))
        return snapshot, (token.namespace, token.name)

    # watch

    def watch(self, place: RequestPath, options: ListOptions, view: Representation) -> Watcher:
        """Open a watch; end it with Hub.close. Raises: ApiGoneError for compacted revisions."""
        wanted = Filter(place.resource.collection, place.namespace, options.labels, options.fields)
        watcher = Watcher(wanted, output.shape(view, self.now), self._store.revision, bookmark=None)
        if options.bookmarks:
            watcher.bookmark = lambda revision: output.bookmark(view, revision, initial=False)
        watcher.begin(self._beginning(watcher, options, view))
        self._hub.open(watcher)
        if options.timeout:
            watcher.close_after(options.timeout)
        return watcher

    def _beginning(self, watcher: Watcher, options: ListOptions, view: Representation) -> Iterator[bytes]:
        """The lines that a watch starts with: synthetic ADDED, or what has happened since its revision.

        What they are is decided now, only their encoding waits for the reader.
        """
        wanted, shape, revision = watcher.filter, watcher.shape, self._store.revision
        asked = int(options.resource_version or 0)
        if asked > revision:
            raise _too_large(asked, revision)
        lines: Iterator[bytes] = iter(())
        if options.initial_events or (not asked and options.initial_events is None):
            records = self._store.records(wanted.collection, wanted.namespace)
            lines = (shape.event("ADDED", shape.render(r, r.revision)) if wanted.selects(r) else b"" for r in records)
        elif asked:
            events = self._store.since(wanted.collection, asked)
            lines = (encode_change(watcher, e, {}) or b"" for e in events)
        if options.initial_events and options.bookmarks:
            lines = itertools.chain(lines, (output.bookmark(view, revision, initial=True),))
        return lines


def _too_large(asked: int, current: int) -> ApiError:
    return ApiError(
        f"Too large resource version: {asked}, current: {current}",
        code=504,
        reason="Timeout",
        causes=[FieldCause("", "Too large resource version", "ResourceVersionTooLarge")],
        retry_after=1,
    )


async def _select(wanted: Filter, records: list[StoredObject]) -> list[StoredObject]:
    if not wanted.labels and not wanted.fields:
        return records
    weight = _OBJECT * len(records) * (1 + len(wanted.labels.requirements) + len(wanted.fields.requirements))
    return await run_in_thread_if_large(weight, lambda: [record for record in records if wanted.selects(record)])
