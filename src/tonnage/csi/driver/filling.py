"""Filling of new volumes with their content, while CreateVolume is repeated; nothing shows a volume before its end.

The record says `filling` from its first write on, and `filled` once the content is durable. CreateVolume is answered
then. Until then it is answered ABORTED with the progress, which asks the caller to repeat it. A volume that a killed
process left `filling` is emptied and filled again. One whose content can never succeed is deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tonnage.base.errors import (
    AlreadyExistsError,
    BusyError,
    InvalidError,
    PreconditionError,
    TonnageError,
    host_errors,
)
from tonnage.base.observe import metrics
from tonnage.host import mount, nofollow
from tonnage.storage.content.access import ContentAccess, Progress, StoppedError, is_final
from tonnage.storage.content.spec import ContentSpec, encode, form_of
from tonnage.storage.pools.base.contract import PoolVolume
from tonnage.storage.pools.base.record import CONTENT, FILLED, FILLING
from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.pools.core.pool import Pool

log = logging.getLogger(__name__)
FOLDER = "filling"
"""Folder of the driver's state in which volumes are staged while they are filled."""
PATIENCE = 5.0
"""Seconds for which a CreateVolume waits, less than callers wait for an answer."""
_AT_ONCE = 4
_IMAGE = ".image"


def mark_of(content: ContentSpec) -> dict[str, str]:
    """What the owner record of a new volume says about its content."""
    return {CONTENT: FILLING + _digest(content)}


def _digest(content: ContentSpec) -> str:
    return hashlib.sha256(encode(content).encode()).hexdigest()[:32]


def check(content: ContentSpec, *, block: bool) -> None:
    """Raises: InvalidError for raw block."""
    if block:
        raise InvalidError(
            f"{content}: a raw block volume has no file system to fill: claim one with volumeMode Filesystem"
        )


def check_empty(volume: PoolVolume) -> None:
    """Raises: AlreadyExistsError for a volume whose content is not complete, requested without one."""
    if volume.owner.get(CONTENT, "").startswith(FILLING):
        raise AlreadyExistsError(
            f"volume {volume.name} exists and its content is not complete, requested without content: delete the claim"
            " and make it again"
        )


def check_filled(volume: PoolVolume) -> None:
    """Raises: PreconditionError for a volume whose content is not complete."""
    if is_filling(volume):
        raise PreconditionError(f"volume {volume.name} is being filled with its content: repeat CreateVolume first")


def is_filling(volume: PoolVolume) -> bool:
    """Whether the content of a volume is not complete."""
    return volume.owner.get(CONTENT, "").startswith(FILLING)


@dataclass(frozen=True)
class Filling:
    """A volume to fill. place: the folder where it is staged meanwhile."""

    pool: Pool
    volume: PoolVolume
    content: ContentSpec
    access: ContentAccess
    secrets: Mapping[str, str] = field(repr=False)
    place: Path


@dataclass
class _Running:
    digest: str
    progress: Progress
    task: asyncio.Task[PoolVolume]


class Fillings:
    """The fillings of drivers that share their pools. A few run at once, the others wait."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._running: dict[str, _Running] = {}
        self._threads = Threads("fill", _AT_ONCE)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._queued: set[str] = set()
        self._patience = patience

    async def settle(self, name: str, content: ContentSpec) -> None:
        """End the filling of a volume that an earlier call began; without one it is no work.

        To be awaited before the volume is created: a filling that fails for good deletes its volume, and would leave
        one behind that is made after that. A filling with another content than this is stopped. Raises: BusyError with
        the progress while it goes on, and once what it failed with.
        """
        running = self._running.get(name)
        if running is None:
            return
        if running.digest != _digest(content):
            await self._stop(name)
            return
        await self._wait(name, running)

    async def finish(self, filling: Filling) -> PoolVolume:
        """Fill a volume that is settled; return it once that is done, perhaps by an earlier call.

        Raises: BusyError with the progress while it goes on, AlreadyExistsError for a volume with another content or
        none, and what fill() raises.
        """
        volume, wanted = filling.volume, _digest(filling.content)
        state = volume.owner.get(CONTENT, "")
        if state == FILLED + wanted:
            return volume
        if state.startswith(FILLED):  # perhaps it is used already: nothing is emptied
            raise AlreadyExistsError(
                f"volume {volume.name} is filled already, with another content than {filling.content}: its Content was"
                " changed meanwhile; undo that, or delete the claim and make it again"
            )
        if not state:
            raise AlreadyExistsError(f"volume {volume.name} exists without content, requested {filling.content}")
        progress = Progress(str(filling.content))
        task = asyncio.create_task(self._fill(filling, progress), name=f"fill {volume.name}")
        task.add_done_callback(_seen)
        self._running[volume.name] = _Running(wanted, progress, task)
        return await self._wait(volume.name, self._running[volume.name])

    async def _wait(self, name: str, running: _Running) -> PoolVolume:
        await asyncio.wait([running.task], timeout=self._patience)
        if not running.task.done():
            raise BusyError(f"volume {name} is being filled: {running.progress}")
        if self._running.get(name) is running:
            del self._running[name]
        if running.task.cancelled():  # while it was queued
            raise StoppedError(f"volume {name}: its filling was stopped")
        return running.task.result()

    async def _fill(self, filling: Filling, progress: Progress) -> PoolVolume:
        name, form = filling.volume.name, form_of(filling.content)
        try:
            if filling.volume.owner.get(CONTENT) != FILLING + _digest(filling.content):
                await filling.pool.annotate(name, mark_of(filling.content))
            async with self._slot(name):
                await self._fill_staged(filling, progress)
            volume = await filling.pool.annotate(name, {CONTENT: FILLED + _digest(filling.content)})
        except TonnageError as failure:
            log.warning("volume not filled volume=%s content=%s error=%s", name, filling.content, failure)
            metrics.FILLED.labels(form, "failed").inc()
            if is_final(failure):
                await filling.pool.delete(name)
            raise
        log.info("volume filled volume=%s content=%s bytes=%d", name, filling.content, progress.done)
        metrics.FILLED.labels(form, "filled").inc()
        metrics.FILLED_BYTES.labels(form).inc(progress.done)
        return volume

    @asynccontextmanager
    async def _slot(self, name: str) -> AsyncIterator[None]:
        """Wait in the queue. Only there a filling may be cancelled: nothing is staged, and no thread works."""
        self._queued.add(name)
        try:
            await self._slots.acquire()
        finally:
            self._queued.discard(name)
        try:
            yield
        finally:
            self._slots.release()

    async def _fill_staged(self, filling: Filling, progress: Progress) -> None:
        place = _real(filling.place)
        with host_errors(f"cannot make {place}"):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(place, 0o700)
        await filling.pool.stage(filling.volume.name, place, fills=True)
        try:
            await self._threads.run(_fill, filling, place, progress)
        finally:
            await _unstage(filling.pool, filling.volume.name, place)

    async def abandon(self, pool: Pool, name: str, place: Path) -> None:
        """Stop the filling of a volume that is to be deleted, and unstage it. Idempotent."""
        await self._stop(name)
        place = _real(place)
        if mount.is_mount(place) or os.path.lexists(place):
            await _unstage(pool, name, place)

    async def _stop(self, name: str) -> None:
        running = self._running.pop(name, None)
        if running is not None:
            running.progress.halt()
            if name in self._queued:
                running.task.cancel()
            await asyncio.wait([running.task])

    async def close(self) -> None:
        """Stop all; the volumes are filled again later. Idempotent."""
        for running in self._running.values():
            running.progress.halt()
        for name in list(self._running):
            await self._stop(name)
        self._threads.close()


def _seen(task: asyncio.Task[PoolVolume]) -> None:
    """Keep asyncio from reporting a failure that no call asked for any more: it is logged."""
    if not task.cancelled():
        task.exception()


def _real(place: Path) -> Path:
    return Path(os.path.realpath(place.parent)) / place.name  # mounts follow no symlink


def _fill(filling: Filling, place: Path, progress: Progress) -> None:
    """Fill a staged volume, in a thread."""
    from tonnage.storage.content.fill import Target, fill  # most drivers never fill one

    work = place.with_name(place.name + _IMAGE)
    with nofollow.opened(place, os.O_RDONLY | os.O_DIRECTORY) as root:
        fill(filling.content, Target(root, filling.volume.size, work), filling.access, filling.secrets, progress)


async def _unstage(pool: Pool, name: str, place: Path) -> None:
    await pool.unstage(name, place)
    with suppress(OSError):
        os.rmdir(place)
