"""Notes of creations that gave up: a file for each volume whose caller has the answer that there is none.

The work of such a call goes on, and may make the volume when its disk answers again. This process deletes it then. If
it was killed before, the note is the next one's proof that no one ever got the volume. So a note is durable before the
answer, and durably gone before the volume is handed over after all. It is not in the pool, which hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tonnage.base.errors import HostError, UnavailableError, host_errors
from tonnage.storage.pools.base.threads import Threads

log = logging.getLogger(__name__)
T = TypeVar("T")
FOLDER = "given-up"
"""Folder of the driver's state that has the notes, one folder for each pool."""
PATIENCE = 5.0
"""Seconds after which a caller no longer waits for the notes: their disk may hang as well."""


class _All:
    """In place of a set of names, where it is not known: any may be in it."""

    def __contains__(self, name: str) -> bool:
        """Perhaps."""
        return True

    def add(self, name: str) -> None:
        """It is in it."""

    def discard(self, name: str) -> None:
        """Others may still be in it."""


class GivenUp:
    """The notes of one pool. Without a folder, there are none."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._files: NoteFiles | None = None
        self.noted: set[str] | _All = set()
        """Volumes that may have a note."""
        self._threads = Threads(f"{pool}-notes", 1)  # so that a note is removed after it was written
        self._under_way = set[asyncio.Future[Any]]()

    def keep_in(self, state: Path) -> None:
        """Keep the notes in the driver's own directory."""
        self._files, self.noted = NoteFiles(state, self._pool), _All()

    async def names(self) -> list[str]:
        """The volumes with a note that an earlier process left. Raises: HostError, UnavailableError."""
        if self._files is None:
            return []
        found = await self._run(self._files.names)
        self.noted = set(found)
        return found

    async def add(self, name: str) -> None:
        """Note a volume; durable. A note that cannot be written is logged. Idempotent."""
        if self._files is None:
            return
        self.noted.add(name)  # first: it may be written although no caller waits for it
        try:
            await self._run(partial(self._files.add, name))
        except (HostError, UnavailableError) as failure:
            log.warning("creation that gave up is not noted pool=%s volume=%s error=%s", self._pool, name, failure)

    async def remove(self, name: str) -> None:
        """Remove the note of a volume, if there may be one; durable. Raises: HostError, UnavailableError."""
        if self._files is not None and name in self.noted:
            await self._run(partial(self._files.remove, name))
            self.noted.discard(name)

    async def _run(self, work: Callable[[], T]) -> T:
        task = asyncio.ensure_future(self._threads.run(work))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait([task], timeout=PATIENCE)
        if not task.done():
            raise UnavailableError(
                f"pool {self._pool!r}: the driver's state folder has not answered for {PATIENCE:.0f} s"
            )
        return task.result()

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """End the thread. Waits for no disk that hangs."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=PATIENCE)
        self._threads.close()


class NoteFiles:
    """The files of the notes. state: the driver's own directory. All methods block, and raise HostError."""

    def __init__(self, state: Path, pool: str) -> None:
        self._state, self._folder = state, state / FOLDER / pool

    def names(self) -> list[str]:
        """The volumes with a note."""
        with host_errors(f"cannot read the notes in {self._folder}"), suppress(FileNotFoundError):
            return sorted(os.listdir(self._folder))
        return []

    def add(self, name: str) -> None:
        """Note a volume; durable. Idempotent."""
        with host_errors(f"cannot note that the creation of volume {name} gave up"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / name).touch(mode=0o600)
            for folder in (self._folder, self._folder.parent, self._state):
                _sync(folder)

    def remove(self, name: str) -> None:
        """Remove the note of a volume; durable. Idempotent."""
        with host_errors(f"cannot remove the note about volume {name}"), suppress(FileNotFoundError):
            (self._folder / name).unlink(missing_ok=True)
            _sync(self._folder)  # also where it was gone: a killed process may not have done this


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
