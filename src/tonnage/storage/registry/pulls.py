"""The pulls of one process from one origin: one for each digest, joined by later calls, outliving those that wait.

A caller waits for a limited time and then gets the progress. Each resolves the image with its own credentials, so only
those who may pull an image join its pull.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tonnage.base.errors import TonnageError, UnavailableError
from tonnage.base.observe import metrics
from tonnage.storage.content.access import Progress, stoppable
from tonnage.storage.images.manifest import Platform
from tonnage.storage.images.reference import ImageReference
from tonnage.storage.images.store import ImageStore
from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.registry.pull import pull
from tonnage.storage.registry.remote import ImageClient, ImageOrigin, RemoteImage

Key = TypeVar("Key")
log = logging.getLogger(__name__)
PATIENCE = 90.0
"""Seconds for which a call waits: a fill ends after 100, a call of the kubelet after 120."""
_AT_ONCE = 4


@dataclass(frozen=True)
class PulledImage:
    """An image that is in the store. name: there. report: what was pulled, for people; "" for nothing."""

    name: str
    report: str = ""


@dataclass
class _Pull:
    name: str
    progress: Progress
    task: asyncio.Task[str]


@dataclass
class _Asking:
    client: ImageClient
    task: asyncio.Task[RemoteImage]


class ImagePulls:
    """Pulls images into one store, a few at once."""

    def __init__(
        self, store: ImageStore, origin: ImageOrigin, patience: float = PATIENCE, *, is_remote: bool = True
    ) -> None:
        self._store, self._origin, self._patience, self.is_remote = store, origin, patience, is_remote
        self._running: dict[str, _Pull] = {}
        self._resolving: dict[tuple[ImageReference, Platform, Hashable], _Asking] = {}
        self._threads, self._resolvers = Threads("pull", _AT_ONCE), Threads("resolve", _AT_ONCE)

    def allows(self, image: ImageReference) -> bool:
        """Whether an image may be pulled from here."""
        return self._origin.allows(image)

    async def pull(self, image: ImageReference, platform: Platform, secrets: Mapping[str, str]) -> PulledImage:
        """Pull an image, if it is not there in this version.

        Raises: UnavailableError with the progress while it goes on, and what resolving and pulling raise.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._patience
        client, remote = await self._resolve(image, platform, self._origin.login(image, secrets))
        while True:
            running = self._running.get(remote.digest) or self._start(client, remote)
            await asyncio.wait([running.task], timeout=max(ends - loop.time(), 0.0))
            if not running.task.done():
                raise UnavailableError(f"pulling {image}: {running.progress}; it goes on, and is asked for again")
            report = running.task.result()
            if running.name == remote.name:
                return PulledImage(remote.name, report)

    async def _resolve(
        self, image: ImageReference, platform: Platform, found: Hashable
    ) -> tuple[ImageClient, RemoteImage]:
        """Ask the origin for an image; a call with the same credentials joins one that waits for its answer."""
        key = (image, platform, found)
        if (asking := self._resolving.get(key)) is None:
            client = self._origin.client(image, found)
            task = asyncio.create_task(self._ask(client, platform), name=f"resolve {image}")
            asking = self._resolving[key] = _Asking(client, task)
            task.add_done_callback(lambda ended: self._end(self._resolving, key, ended))
        await asyncio.wait([asking.task], timeout=self._patience)
        if not asking.task.done():
            raise UnavailableError(f"image {image}: its {self._origin.name} has not answered yet; it is asked again")
        return asking.client, asking.task.result()

    async def _ask(self, client: ImageClient, platform: Platform) -> RemoteImage:
        try:
            with stoppable(client.progress):
                return await self._resolvers.run(client.resolve, platform)
        except TonnageError as failure:
            self._count(_code(failure))
            raise

    def _start(self, client: ImageClient, remote: RemoteImage) -> _Pull:
        task = asyncio.create_task(self._pull(client, remote), name=f"pull {remote.digest}")
        running = self._running[remote.digest] = _Pull(remote.name, client.progress, task)
        task.add_done_callback(lambda ended: self._end(self._running, remote.digest, ended))
        return running

    def _end(self, among: dict[Key, Any], key: Key, task: asyncio.Task[Any]) -> None:
        del among[key]
        if not task.cancelled():
            task.exception()  # logged; perhaps no call waits any more

    async def _pull(self, client: ImageClient, remote: RemoteImage) -> str:
        begun = time.monotonic()
        try:
            with stoppable(client.progress):
                found = await self._threads.run(pull, client, remote, self._store)
        except TonnageError as failure:
            log.warning("image not pulled image=%s error=%s", remote.name, failure)
            self._count(_code(failure))
            raise
        if found.missing is None:
            return ""
        seconds, count = time.monotonic() - begun, client.progress.done
        log.info("image pulled image=%s digest=%s bytes=%d seconds=%.1f", remote.name, remote.digest, count, seconds)
        self._count("pulled")
        metrics.IMAGE_PULL_BYTES.inc(count)
        metrics.IMAGE_PULL_SECONDS.observe(seconds)
        await self._threads.run(self._measure)
        layers = len(remote.manifest.layers)
        here = f"{layers - found.missing} of {layers} layers were here"
        where = f"{self._origin.name}: {remote.digest}, {count} bytes in {seconds:.1f} s, {here}"
        return f"image {remote.name} pulled from {where}"

    def _count(self, code: str) -> None:
        metrics.IMAGE_PULLS.labels(self._origin.name, code).inc()

    def _measure(self) -> None:
        with suppress(TonnageError):  # a damaged record, which `images list` reports
            layers, size, unused = self._store.sizes()
            metrics.IMAGE_LAYERS.set(layers)
            metrics.IMAGE_BYTES.labels("used").set(size - unused)
            metrics.IMAGE_BYTES.labels("unreferenced").set(unused)

    async def close(self) -> None:
        """Stop all; the pulls are continued by later calls. Idempotent."""
        asking, running = list(self._resolving.values()), list(self._running.values())
        for progress in [*(one.client.progress for one in asking), *(one.progress for one in running)]:
            progress.halt()
        if asking or running:
            await asyncio.wait([*(one.task for one in asking), *(one.task for one in running)])
        self._threads.close()
        self._resolvers.close()


def _code(failure: TonnageError) -> str:
    """A label for an error, as `unavailable`."""
    return type(failure).__name__.removesuffix("Error").lower()
