"""Informer: list, then watch, to mirror one kind of the API server into a Cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.tasks import Background, SharedRead
from tonnage.base.errors import ApiError, ApiGoneError, ApiUnreadableError, UnavailableError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import KubeObject, ObjectMeta, version_number
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client, Keep, Unreadable, WatchEvent

log = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)
_UNAUTHORIZED = 401
_NOT_OFFERED = (403, 404)


class Informer(Generic[T]):
    """One kind, filtered by namespace and selectors, mirrored into `cache`.

    A watch that ends is resumed from the last resourceVersion (bookmarks count); 410 Gone makes it list again; a lost
    connection is retried with back-off. A server may come back with an older state (a restored backup, another cluster
    at this address), and end its watches before as on any other day. A resumed watch would then get no events, or those
    of other objects. So each watch takes events only after a read of the server's history, also the one that follows a
    list; what is of another one is listed again. The scope may be changed while it runs.

    optional: the server may not have the kind, or not let us read it. It then counts as synced, with nothing in the
    cache, and is asked again each minute. Of several versions of the kind, it takes the newest that the server has.

    An object with a field of the wrong type is logged and counted in tonnage_unreadable_objects. The informer continues
    without it until a readable version comes.
    """

    absent_seconds = 60.0
    """Seconds after which a kind that the server does not have is asked for again."""

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        optional: bool = False,
    ) -> None:
        versions = (*kind.newer, kind.version) if optional else (kind.version,)
        self._kinds = [replace(kind, version=version) for version in versions]
        self.kind = self._kinds[0]
        """The kind, in the version that is watched."""
        self.is_served = True
        """Whether the server has the kind, as far as we know; always true where it is not optional."""
        self._optional = optional
        self.cache: Cache[T] = Cache()
        self._client = client
        self._scope = {"namespace": namespace, "labels": labels, "fields": fields}
        self._keep: Keep | None = None
        self._turn: asyncio.Timeout | None = None
        self._version = self._latest = ""
        self._synced, self._listed = asyncio.Event(), asyncio.Event()
        self._backoff = Backoff(initial=0.05, maximum=10.0)
        self._unreadable: dict[str, str] = {}  # key -> what is wrong with it
        self.failure = ""
        """Why the last list failed, "" when it did not."""
        self._lost = False  # the server was unreachable, or rejected us, since its last event
        self._unsure = False  # a watch has ended since the server's history was looked at
        self._has_listed = False  # a list has ended since then: the server may go back before the watch
        self._restored: list[Callable[[], None]] = []
        self.continues: Callable[[], Awaitable[bool]] = _always
        """Asked after each watch: whether the server's state continues the one that this process has seen.

        The server's resourceVersion does not show it: after a restore, writes pass the one seen last."""
        self.on_rewind: Callable[[], None] = lambda: None
        """Called when the server's state does not continue that of the cache, before all is listed again."""
        self.received = 0
        """Watch events received."""
        self.mine: Keep | None = None
        """The filter for this process's objects. If set, other objects are counted in `others`."""
        self.others = 0
        """Objects received, by list or watch, that are not mine: what the scoping proof counts."""

    @property
    def synced(self) -> bool:
        """Whether the first list is in the cache."""
        return self._synced.is_set()

    @property
    def version(self) -> str:
        """The resourceVersion up to which the cache is complete, "" before the first list."""
        return self._latest

    async def wait_synced(self) -> None:
        """Wait for the first list, or until the server does not have an optional kind."""
        await self._synced.wait()

    async def wait_served(self) -> None:
        """Wait for the first list, however long the server does not have the kind."""
        await self._listed.wait()

    def on_restored(self, listener: Callable[[], None]) -> None:
        """Call listener whenever the server answers again after an outage."""
        self._restored.append(listener)

    def rescope(self, *, labels: str = "", keep: Keep | None = None) -> None:
        """Watch by another label selector from now on, and filter objects by keep (None: all).

        The cache is unchanged until the next list, which then applies only the differences.
        """
        self._scope["labels"] = labels
        self._keep = keep
        self._version = ""
        if self._turn is not None and self._turn.when() is None:
            self._turn.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """Mirror until cancelled."""
        while True:
            self._turn = turn = asyncio.timeout(None)
            try:
                async with turn:
                    await self._mirror()
            except TimeoutError:
                if not turn.expired():
                    raise
                self._version = ""  # rescoped; an event of the old scope may have come in meanwhile
            finally:
                self._turn = None

    async def _mirror(self) -> None:
        """Run one list if needed, and one watch. Returns when another is due."""
        try:
            if not self._version:
                await self._has_same_history()
                await self._list()
            if not await self._watch():  # ended at once, as by a server that is stopping
                await asyncio.sleep(self._backoff.next(""))
        except ApiGoneError:
            self._version, self._unsure = "", True
        except (ApiError, UnavailableError, ConnectionError) as failure:
            if self._optional and isinstance(failure, ApiError) and failure.code in _NOT_OFFERED:
                following = self._kinds.index(self.kind) + 1
                self.kind = self._kinds[following % len(self._kinds)]
                if following == len(self._kinds):
                    await self._do_without(failure)
                self._version = ""
                return
            self._lost, self._unsure = True, bool(self._latest)
            delay = self._backoff.next("")
            self.failure = str(failure)
            level = logging.ERROR if isinstance(failure, ApiUnreadableError) else logging.DEBUG
            log.log(level, "watch lost kind=%s retry=%.2fs error=%s", self.kind.plural, delay, failure)
            if isinstance(failure, ApiError) and failure.code != _UNAUTHORIZED:
                self._version = ""  # rejected, so what we know of versions may be wrong
            await asyncio.sleep(delay)

    async def _do_without(self, failure: ApiError) -> None:
        """Count as synced without the kind, say so once, and return when to ask again."""
        if self.is_served:
            self.is_served = False
            log.info("kind not served, asked again each minute kind=%s reason=%s", self.kind.qualified, failure)
        self._change(partial(self.cache.replace, []))
        self._synced.set()
        await asyncio.sleep(self.absent_seconds)

    async def _has_same_history(self) -> bool:
        """Return whether the server's history includes what the cache has seen; a list checks its version itself."""
        if not (self._unsure or self._has_listed):
            return True
        is_same = not (self._version and self._went_back(await self._revision()))
        if is_same and self._unsure and not await self.continues():
            log.warning("API server has another history: all is listed again kind=%s", self.kind.plural)
            self.on_rewind()
            is_same = False
        self._unsure = self._has_listed = False
        if not is_same:
            self._version = ""
        return is_same

    async def _revision(self) -> str:
        return await self._client.revision(self.kind, self._scope["namespace"], fields=self._scope["fields"])

    def _went_back(self, now: str) -> bool:
        """Whether the server's version is older than a version seen before; logs that."""
        if not (now.isdecimal() and version_number(now) < version_number(self._latest)):
            return False
        log.warning(
            "API server went back: a backup was restored, or it is another cluster kind=%s seen=%s now=%s",
            *(self.kind.plural, self._latest, now),
        )
        self._latest = now
        self.on_rewind()
        return True

    async def _list(self) -> None:
        listing = await self._client.list(self.kind, **self._scope, keep=self._keep, tolerant=True)
        self._went_back(listing.resource_version)
        received = [obj.metadata for obj in listing.items] + [found.metadata for found in listing.unreadable]
        self._count(*received, others=listing.others)
        self._change(partial(self.cache.replace, listing.items, keep=self._stale(listing.unreadable)))
        for key in set(self._unreadable) - {found.metadata.key for found in listing.unreadable}:
            self._readable(key)
        self._version = self._latest = listing.resource_version
        self._has_listed = True
        self.failure = ""
        self.is_served = True
        self._listed.set()
        self._synced.set()

    def _stale(self, unreadable: Sequence[Unreadable]) -> Collection[str]:
        """Record the unreadable objects, and return the cached keys that may be theirs."""
        for found in unreadable:
            self._note(found.metadata.key, found.error)
        if any(not found.metadata.name for found in unreadable):
            return self.cache.keys()  # it may be any of those that are not in the list
        return {found.metadata.key for found in unreadable if self._is_cached(found.metadata)}

    def _is_cached(self, metadata: ObjectMeta) -> bool:
        """Whether the cache has an earlier version of the same object."""
        cached = self.cache.get(metadata.key)
        return cached is not None and metadata.uid in ("", cached.metadata.uid)

    async def _watch(self) -> bool:
        """Process events until the server ends the watch; return whether there was any."""
        any_event = False
        async with self._client.watch(
            self.kind, **self._scope, resource_version=self._version, keep=self._keep
        ) as batches:
            self._answered()
            if not await self._has_same_history():  # not before: the connection may lead to another server by then
                return True
            async for batch in batches:
                for event in batch:
                    self._take(event)
                self._backoff.forget("")
                any_event = True
        self._unsure = True
        return any_event

    def _answered(self) -> None:
        if self._lost:
            self._lost = False
            for listener in self._restored:
                listener()

    def _take(self, event: WatchEvent[T]) -> None:
        obj = event.object
        self.received += 1
        if event.type != "BOOKMARK":
            self._count(obj.metadata)
        if event.type == "UNREADABLE" and event.error is not None:
            self._note(obj.key, event.error)
            # The last readable version stays in the cache. The object exists: to remove it would make controllers
            # delete what belongs to it. A cache may be stale anyway; a delete reads live, and gets ApiUnreadable.
            if not self._is_cached(obj.metadata):
                self._change(partial(self.cache.remove, obj.key))
        elif event.type != "BOOKMARK":
            self._readable(obj.key)
            if event.type in ("DELETED", "OTHER"):
                self._change(partial(self.cache.remove, obj.key))
            else:
                self._change(partial(self.cache.put, obj))
        # It is "" where the metadata cannot be read. The watch goes on; a resumed one repeats some events.
        self._version = self._latest = obj.metadata.resource_version or self._latest

    def _change(self, change: Callable[[], None]) -> None:
        """Change the cache. A handler that fails for one object must not end the informer."""
        try:
            change()
        except Exception:
            log.exception("change not handled kind=%s", self.kind.plural)

    def _note(self, key: str, error: ApiUnreadableError) -> None:
        if self._unreadable.get(key) == str(error):
            return
        if key not in self._unreadable:
            metrics.UNREADABLE.labels(self.kind.plural).inc()
        self._unreadable[key] = str(error)
        log.error("%s; left out until it can be read", error)

    def _readable(self, key: str) -> None:
        if self._unreadable.pop(key, None) is not None:
            metrics.UNREADABLE.labels(self.kind.plural).dec()

    def _count(self, *received: ObjectMeta, others: int = 0) -> None:
        if self.mine is None:
            return
        foreign = sum(not self.mine(metadata) for metadata in received)
        self.others += others + foreign
        metrics.RECEIVED.labels(self.kind.plural, "own").inc(len(received) - foreign)
        metrics.RECEIVED.labels(self.kind.plural, "other").inc(others + foreign)


async def _always() -> bool:
    return True


class RewoundError(Exception):
    """The API server's state does not continue the one that was seen."""


class Informers:
    """Informers shared by the controllers of a process: one for each kind and scope.

    continues: see Informer.continues.
    """

    def __init__(self, client: Client, continues: Callable[[], Awaitable[bool]] = _always) -> None:
        self.client = client
        self._continues = SharedRead[None, bool](lambda _: continues())
        self._rewound = asyncio.Event()
        self._informers: dict[tuple[str, str, str, str], Informer[Any]] = {}
        self._tasks: Background | None = None

    def of(
        self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "", optional: bool = False
    ) -> Informer[T]:
        """The informer of that kind and scope, created on first use, and started if the others run.

        optional: see Informer; as the first caller says.
        """
        key = (kind.api_version + kind.plural, namespace, labels, fields)
        if key not in self._informers:
            informer = Informer(self.client, kind, namespace=namespace, labels=labels, fields=fields, optional=optional)
            informer.on_rewind = self._rewound.set
            informer.continues = partial(self._continues.get, None)
            self._informers[key] = informer
            if self._tasks is not None:
                self._tasks.start(informer.run(), f"informer {kind.plural}")
        return self._informers[key]

    def all(self) -> list[Informer[Any]]:
        """Every informer so far."""
        return list(self._informers.values())

    def start(self) -> None:
        """Run all. May be repeated."""
        if self._tasks is None:
            self._tasks = Background("informers")
            for informer in self._informers.values():
                self._tasks.start(informer.run(), f"informer {informer.kind.plural}")

    def unsynced(self) -> list[str]:
        """The informers that have not listed yet, each with the reason if there is one."""
        waiting = [informer for informer in self._informers.values() if not informer.synced]
        return [f"{i.kind.plural} is not synced" + (f": {i.failure}" if i.failure else "") for i in waiting]

    async def end_when_rewound(self) -> None:
        """Raise RewoundError once the API server's state does not continue the one that was seen.

        No observed object is valid then: the owner of these informers starts anew, as after a kill.
        """
        await self._rewound.wait()
        raise RewoundError

    async def wait_synced(self) -> None:
        """Wait until every informer has listed once."""
        for informer in self.all():
            await informer.wait_synced()

    async def close(self) -> None:
        """Stop all."""
        if self._tasks is not None:
            await self._tasks.close()
            self._tasks = None
