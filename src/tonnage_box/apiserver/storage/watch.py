"""Watches: selection of watchers for each change, and fan-out.

A change costs only those watchers that may want it. Each watcher is indexed by the most selective equality that it
asks for (name, field, label, namespace), and looked up by the object's values. An event is encoded once for all
watchers of one shape. Large fan-outs run in slices, so that the event loop stays responsive. A watcher that does not
read is dropped; the slowest are dropped when all together buffer too much. Their clients list again.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from tonnage.base.observe import metrics
from tonnage.kubernetes.api.selectors import EVERYTHING, Selector
from tonnage.kubernetes.client.transport import JSON
from tonnage_box.apiserver.storage.store import EventType, Store, StoredObject, StoreEvent

log = logging.getLogger(__name__)
SLICE = 256
"""Watchers, or objects, that are looked at in one turn of the loop."""
WORK_BYTES = 128 << 10
"""Bytes of objects that are rendered in one turn of the loop, other than as they are stored; one of them at least."""
BUFFER_BYTES = 16 << 20
BUFFER_EVENTS = 16_384
BUFFERS_BYTES = 64 << 20
"""What all watchers hold together."""
CHUNK_BYTES = 64 << 10
BOOKMARK_SECONDS = 60.0

Render = Callable[[StoredObject, int], bytes]
_encode = msgspec.json.Encoder().encode


def render_json(record: StoredObject, revision: int) -> bytes:
    """The object as it is stored, or with a newer revision where that differs (selector watches)."""
    if record.revision == revision:
        return record.data
    obj = record.decode()
    obj["metadata"]["resourceVersion"] = str(revision)
    return _encode(obj)


def line(kind: str, body: bytes) -> bytes:
    """One event of a watch in JSON: a line."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


@dataclass(frozen=True)
class Shape:
    """Encoding of objects. name: identifies the shape; render: makes the bytes of one object; event: of a change.

    cost: how often an object's encoding takes the time that a match takes.
    """

    name: Hashable = "json"
    render: Render = render_json
    event: Callable[[str, bytes], bytes] = line
    content_type: str = JSON
    cost: int = 1


@dataclass(frozen=True)
class Filter:
    """Which objects of a collection are asked for; None for all namespaces."""

    collection: str
    namespace: str | None = None
    labels: Selector = EVERYTHING
    fields: Selector = EVERYTHING

    @functools.cached_property
    def cost(self) -> int:
        """Cost of matching an object: 1 for fewer than 16 requirements, 2 for fewer than 32 ..."""
        return 1 + (len(self.labels.requirements) + len(self.fields.requirements)) // 16

    def selects(self, record: StoredObject) -> bool:
        """Whether the object is one of them."""
        if self.namespace is not None and record.key.namespace != self.namespace:
            return False
        if self.labels and not self.labels.matches(record.labels):
            return False
        return not self.fields or self.fields.matches(_Fields(record))

    def change(self, event: StoreEvent) -> tuple[EventType, StoredObject] | None:
        """The event type for a watcher of this filter, with the object to show."""
        if not self.labels and not self.fields:
            wanted = self.namespace is None or event.record.key.namespace == self.namespace
            return (event.type, event.record) if wanted else None
        before = event.before is not None and self.selects(event.before)
        if event.type == "DELETED":
            return ("DELETED", event.record) if before else None
        if self.selects(event.record):
            return ("MODIFIED" if before else "ADDED", event.record)
        return ("DELETED", event.before) if before and event.before is not None else None

    def file(self) -> tuple[str, ...]:
        """The most selective equality, by which the watcher is indexed."""
        for word, selector in (("field", self.fields), ("label", self.labels)):
            for requirement in selector.requirements:
                if requirement.operator == "In" and len(requirement.values) == 1:
                    return (word, requirement.key, requirement.values[0])
        return ("namespace", self.namespace) if self.namespace is not None else ("all",)


class _Fields(Mapping[str, str]):
    """Name, namespace and the kind's own fields as one mapping."""

    __slots__ = ("_record",)

    def __init__(self, record: StoredObject) -> None:
        self._record = record

    def __getitem__(self, key: str) -> str:
        if key == "metadata.name":
            return self._record.key.name
        if key == "metadata.namespace":
            return self._record.key.namespace
        return self._record.fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("metadata.name", "metadata.namespace", *self._record.fields))

    def __len__(self) -> int:
        return 2 + len(self._record.fields)


class Buffers:
    """Bytes that wait in all watchers: a line that many wait for is in memory, and counts, once."""

    ENTRY = 128
    """Bytes of a place in a watcher's queue."""

    def __init__(
        self, full: Callable[[], None] = lambda: None, *, limit: int = BUFFERS_BYTES, events: int = BUFFER_EVENTS
    ) -> None:
        """full is called when there are more than limit bytes. events: lines that may wait in one watcher."""
        self.total = 0
        self.limit, self.events = limit, events
        self._full = full
        self._waiting: dict[int, int] = {}  # by id(): each counting watcher holds a reference to the line

    def add(self, data: bytes) -> None:
        """One more watcher holds data."""
        others = self._waiting.get(id(data), 0)
        self._waiting[id(data)] = others + 1
        self.total += self.ENTRY + (0 if others else len(data))
        if self.total > self.limit:
            self._full()

    def remove(self, data: bytes) -> None:
        """One watcher less holds data."""
        others = self._waiting.pop(id(data)) - 1
        if others:
            self._waiting[id(data)] = others
        self.total -= self.ENTRY + (0 if others else len(data))


class Watcher:
    """One open watch: a bounded buffer of lines that its reader empties."""

    def __init__(self, wanted: Filter, shape: Shape, after: int, *, bookmark: Callable[[int], bytes] | None) -> None:
        self.filter = wanted
        self.shape = shape
        self.after = after
        self.seen = after
        self.bookmark = bookmark
        self.dropped = False
        self.buffers = Buffers()
        self._lines: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._taken: tuple[int, bytes] | None = None
        self._closed = False
        self._beginning: Iterator[bytes] = iter(())
        self._waiter: asyncio.Future[None] | None = None
        self.on_drop: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing more will be buffered."""
        return self._closed

    @property
    def waits_from(self) -> int | None:
        """The revision of the oldest line that its reader has not done with, None if it lacks nothing."""
        if self._taken is not None:
            return self._taken[0]
        return self._lines[0][0] if self._lines else None

    def push(self, data: bytes, revision: int) -> None:
        """Buffer a line; drops the watcher when too much waits."""
        if self._closed:
            return
        self._lines.append((revision, data))
        self.buffers.add(data)
        self._bytes += len(data)
        self.seen = revision
        if (self._bytes > BUFFER_BYTES and len(self._lines) > 1) or len(self._lines) > self.buffers.events:
            self.drop()
        self._wake()

    def begin(self, lines: Iterator[bytes]) -> None:
        """Set the initial events of the watch, of any size; they are encoded as the reader takes them."""
        self._beginning = lines

    def close_after(self, seconds: float) -> None:
        """End the watch after a time."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self) -> None:
        """End the watch: the reader gets what is buffered, then the end. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def release(self) -> None:
        """Drop all that waits: its reader is gone. Idempotent."""
        self._beginning = iter(())
        self._return()
        while self._lines:
            self.buffers.remove(self._lines.popleft()[1])
        self._bytes = 0

    def drop(self) -> None:
        """End the watch at once: its reader does not keep up."""
        self.dropped = True
        self.release()
        metrics.API_WATCHERS_DROPPED.inc()
        self.close()
        if self.on_drop is not None:
            self.on_drop()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _take_beginning(self) -> bytes:
        """Some lines of the beginning; b"" at its end. Those that are not wanted are empty: they take time too."""
        while True:
            taken, size = [], 0
            for data in itertools.islice(self._beginning, -(-SLICE // (self.filter.cost * self.shape.cost))):
                taken.append(data)
                size += len(data)
                if size > CHUNK_BYTES:
                    break
            if size or not taken:
                return b"".join(taken)
            await asyncio.sleep(0)

    def _take(self) -> tuple[int, bytes]:
        """The oldest lines, together some CHUNK_BYTES."""
        (revision, chunk), more = self._lines.popleft(), []
        size = len(chunk)
        self.buffers.remove(chunk)
        while self._lines and size + len(self._lines[0][1]) <= CHUNK_BYTES:
            _, data = self._lines.popleft()
            self.buffers.remove(data)
            size += len(data)
            more.append(data)
        self._bytes -= size
        return revision, b"".join((chunk, *more)) if more else chunk

    def _return(self) -> None:
        """The reader has done with the last chunk."""
        if self._taken is not None:
            self.buffers.remove(self._taken[1])
            self._taken = None

    def _hand_out(self, revision: int, chunk: bytes) -> bytes:
        """Count a chunk until its reader comes for the next one: then it has been sent."""
        self._taken = (revision, chunk)
        self.buffers.add(chunk)
        return chunk

    async def read(self) -> bytes:
        """The next lines as one chunk; waits while there is nothing. b"" at the end."""
        self._return()
        if first := await self._take_beginning():
            return self._hand_out(self.after, first)
        while not self._lines:
            if self._closed:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._hand_out(*self._take())


@dataclass
class _Shelf:
    """Index of the watchers of one collection."""

    files: dict[tuple[str, ...], dict[Watcher, None]] = field(default_factory=dict)
    keys: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """How many watchers ask for a value of a label or field."""

    def add(self, watcher: Watcher) -> None:
        place = watcher.filter.file()
        self.files.setdefault(place, {})[watcher] = None
        if len(place) == 3:
            self.keys[place[:2]] += 1

    def discard(self, watcher: Watcher) -> None:
        place = watcher.filter.file()
        if watcher not in self.files.get(place, ()):
            return
        del self.files[place][watcher]
        if not self.files[place]:
            del self.files[place]
        if len(place) == 3:
            self.keys -= Counter([place[:2]])

    def candidates(self, event: StoreEvent) -> list[Watcher]:
        """Watchers that may want the event, each once."""
        places: dict[tuple[str, ...], None] = {("all",): None, ("namespace", event.record.key.namespace): None}
        for record in (event.record, event.before):
            if record is None:
                continue
            for word, key in self.keys:
                if (value := (record.labels if word == "label" else _Fields(record)).get(key)) is not None:
                    places[word, key, value] = None
        return [watcher for place in places if place in self.files for watcher in self.files[place]]


class Hub:
    """All open watches of a store. examined: how many watchers events were compared with.

    bookmark_seconds: between two bookmarks of a quiet watch.
    """

    def __init__(self, store: Store, *, bookmark_seconds: float = BOOKMARK_SECONDS) -> None:
        self.bookmark_seconds = bookmark_seconds
        self._store = store
        self._shelves: dict[str, _Shelf] = {}
        self._watchers: dict[Watcher, None] = {}
        self.buffers = Buffers(self._drop_slowest)
        self._backlog: deque[tuple[StoreEvent, Iterator[Watcher], dict[Hashable, bytes]]] = deque()
        self._budget = SLICE
        """Watchers that events can still be held against in this turn of the loop."""
        self._turning = False
        self._bookmarks: asyncio.TimerHandle | None = None
        self._stopped = False
        self.examined = 0
        store.listen(self._publish)

    def __len__(self) -> int:
        return len(self._watchers)

    def open(self, watcher: Watcher) -> None:
        """Send it every change that is newer than its `after`; after close_all it ends with what it begins with."""
        if self._stopped:
            watcher.close()
            return
        watcher.buffers = self.buffers
        self._shelves.setdefault(watcher.filter.collection, _Shelf()).add(watcher)
        self._watchers[watcher] = None
        metrics.API_WATCHERS.set(len(self._watchers))
        if watcher.bookmark is not None and self._bookmarks is None:
            self._arm()

    def close(self, watcher: Watcher) -> None:
        """Close a watch whose reader is gone. Idempotent."""
        watcher.close()
        watcher.release()
        self._remove(watcher)

    def _remove(self, watcher: Watcher) -> None:
        if (shelf := self._shelves.get(watcher.filter.collection)) is not None:
            shelf.discard(watcher)
        self._watchers.pop(watcher, None)
        metrics.API_WATCHERS.set(len(self._watchers))

    def close_all(self) -> None:
        """End all watches and reject new ones (the server stops)."""
        self._stopped = True
        for watcher in list(self._watchers):
            watcher.close()
            self._remove(watcher)
        if self._bookmarks is not None:
            self._bookmarks.cancel()
            self._bookmarks = None

    def _publish(self, event: StoreEvent) -> None:
        shelf = self._shelves.get(event.record.key.collection)
        if shelf is None or not shelf.files:
            return
        watchers = shelf.candidates(event)
        if not watchers:
            return
        self._backlog.append((event, iter(watchers), {}))
        if len(self._backlog) == 1:
            self._pump()

    def _pump(self) -> None:
        """Deliver what one turn of the loop has time for, however many events it has brought."""
        while self._backlog:
            event, watchers, lines = self._backlog[0]
            while self._budget > 0 and (watcher := next(watchers, None)) is not None:
                made = len(lines)
                self._deliver(watcher, event, lines)
                self._budget -= watcher.filter.cost
                if len(lines) > made and watcher.shape.render is not render_json:
                    self._budget -= SLICE * len(event.record.data) // WORK_BYTES
            if self._budget <= 0:
                break
            self._backlog.popleft()
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Continue with the work that the last turn of the loop had no time for."""
        self._turning, self._budget = False, SLICE
        if self._backlog:
            self._pump()

    def _deliver(self, watcher: Watcher, event: StoreEvent, lines: dict[Hashable, bytes]) -> None:
        self.examined += 1
        if watcher.closed or event.record.revision <= watcher.after:
            return
        try:
            data = encode_change(watcher, event, lines)
        except Exception:  # the object cannot be encoded in this shape: the client must read again
            log.exception("watch failed collection=%s shape=%s", watcher.filter.collection, watcher.shape.name)
            watcher.close()
            self._remove(watcher)
            return
        if data is not None:
            watcher.push(data, event.record.revision)
            metrics.API_WATCH_EVENTS.inc()

    def _drop_slowest(self) -> None:
        """Drop the slowest watchers until a quarter of the limit is free, so that this does not run for each event."""
        lagging = [(since, n, w) for n, w in enumerate(self._watchers) if (since := w.waits_from) is not None]
        for _, _, watcher in sorted(lagging):
            if self.buffers.total <= self.buffers.limit * 3 // 4:
                return
            watcher.drop()

    def _arm(self) -> None:
        self._bookmarks = asyncio.get_running_loop().call_later(self.bookmark_seconds, self._send_bookmarks)

    def _send_bookmarks(self) -> None:
        """Send bookmarks to quiet watchers, a slice in each turn of the loop."""
        self._bookmarks = None
        wanting = [w for w in self._watchers if w.bookmark is not None]
        if wanting:
            self._mark(iter(wanting))
            self._arm()

    def _mark(self, watchers: Iterator[Watcher]) -> None:
        if self._backlog:  # what is still to be delivered is older than a bookmark would be
            return
        revision = self._store.revision
        for watcher in itertools.islice(watchers, SLICE):
            if watcher.seen < revision and watcher.bookmark is not None:
                watcher.push(watcher.bookmark(revision), revision)
        rest = next(watchers, None)
        if rest is not None:
            asyncio.get_running_loop().call_soon(self._mark, itertools.chain((rest,), watchers))


def encode_change(watcher: Watcher, event: StoreEvent, lines: dict[Hashable, bytes]) -> bytes | None:
    """The line that the watcher gets for the event, or None; lines holds those already made for other watchers."""
    change = watcher.filter.change(event)
    if change is None:
        return None
    kind, record = change
    key = (watcher.shape.name, kind)
    if key not in lines:
        lines[key] = watcher.shape.event(kind, watcher.shape.render(record, event.record.revision))
    return lines[key]
