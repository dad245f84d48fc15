"""List, then watch for ever: keeps a Cache equal to what the API server has."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Generic, TypeVar

from tonnage.aio.backoff import Backoff
from tonnage.aio.tasks import Background
from tonnage.api.kinds import Kind
from tonnage.api.meta import KubeObject
from tonnage.errors import ApiError, ApiGone, Unavailable
from tonnage.kube.cache import Cache
from tonnage.kube.client import Client, WatchEvent

log = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)


class Informer(Generic[T]):
    """One kind, narrowed by namespace and selectors, mirrored into `cache`.

    A watch that ends is resumed from the last resourceVersion seen (bookmarks count); 410 Gone makes it list again;
    a lost connection is retried with growing waits.
    """

    def __init__(
        self, client: Client, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> None:
        self.kind = kind
        self.cache: Cache[T] = Cache()
        self._client = client
        self._scope = {"namespace": namespace, "labels": labels, "fields": fields}
        self._version = ""
        self._synced = asyncio.Event()
        self._backoff = Backoff(initial=0.05, maximum=10.0)
        self.received = 0
        """Watch events received: what the scoping proof counts."""

    @property
    def synced(self) -> bool:
        """Whether the first list is in the cache."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait for the first list."""
        await self._synced.wait()

    async def run(self) -> None:
        """Mirror until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                if not await self._watch():  # ended at once, as by a server that is stopping
                    await asyncio.sleep(self._backoff.next(""))
            except ApiGone:
                self._version = ""
            except (ApiError, Unavailable, ConnectionError) as failure:
                delay = self._backoff.next("")
                log.debug("watch lost kind=%s retry=%.2fs error=%s", self.kind.plural, delay, failure)
                if isinstance(failure, ApiError):  # refused, so what we know of versions may be wrong
                    self._version = ""
                await asyncio.sleep(delay)

    async def _list(self) -> None:
        listing = await self._client.list(self.kind, **self._scope)
        self.cache.replace(listing.items)
        self._version = listing.resource_version
        self._synced.set()

    async def _watch(self) -> bool:
        """Take in events until the server ends the watch; whether there was any."""
        any_event = False
        async with self._client.watch(self.kind, **self._scope, resource_version=self._version) as batches:
            async for batch in batches:
                for event in batch:
                    self._take(event)
                self._backoff.forget("")
                any_event = True
        return any_event

    def _take(self, event: WatchEvent[T]) -> None:
        obj = event.object
        self.received += 1
        if event.type == "DELETED":
            self.cache.remove(obj.key)
        elif event.type != "BOOKMARK":
            self.cache.put(obj)
        self._version = obj.metadata.resource_version


class Informers:
    """Informers shared by the controllers of a process: one for each kind and scope."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._informers: dict[tuple[str, str, str, str], Informer[Any]] = {}
        self._tasks: Background | None = None

    def of(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> Informer[T]:
        """The informer of that kind and scope; made, and started if others run, when first asked for."""
        key = (kind.api_version + kind.plural, namespace, labels, fields)
        if key not in self._informers:
            informer = Informer(self.client, kind, namespace=namespace, labels=labels, fields=fields)
            self._informers[key] = informer
            if self._tasks is not None:
                self._tasks.start(informer.run(), f"informer {kind.plural}")
        return self._informers[key]

    def start(self) -> None:
        """Run all. May be repeated."""
        if self._tasks is None:
            self._tasks = Background("informers")
            for informer in self._informers.values():
                self._tasks.start(informer.run(), f"informer {informer.kind.plural}")

    async def wait_synced(self) -> None:
        """Wait until every informer has listed once."""
        for informer in list(self._informers.values()):
            await informer.wait_synced()

    async def close(self) -> None:
        """Stop all."""
        if self._tasks is not None:
            await self._tasks.close()
            self._tasks = None
