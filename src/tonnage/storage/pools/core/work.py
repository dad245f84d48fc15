"""PoolWork: runs what a pool does, in threads of its own, and gives up on what hangs with the pool's disk.

All parts of a pool share one: its back end, its locks, its threads and its probe. Work whose caller has given up goes
on, with its locks and without a caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import KeyedLocks
from tonnage.host import device
from tonnage.storage.pools.base.threads import SharedCommit, Threads
from tonnage.storage.pools.core.backend import Backend
from tonnage.storage.pools.core.probe import EVERY, DiskHangsError, DiskProbe, WriteProbe

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
SLOW = 5.0
"""Seconds after which work that has not ended makes the pool try to write, and close() no longer waits for it."""
_STUCK = 3
"""Calls that have given up and still hang, after which no more are tried: one less than the pool's threads."""
_RELEASES = 2  # threads


class PoolPart(Protocol):
    """A part of a pool."""

    @property
    def work(self) -> PoolWork:
        """What it shares with the other parts."""


T = TypeVar("T", bound=PoolPart)
Call = Callable[Concatenate[T, P], Coroutine[Any, Any, R]]


def uses_disk(method: Call[T, P, R]) -> Call[T, P, R]:
    """Decorator of a method whose work may hang with the pool's disk.

    The call gives up then. While the disk hangs, calls of other volumes are tried as long as a few are stuck only:
    repeated calls must not fill the pool's threads. Raises: DiskHangsError.
    """

    @wraps(method)
    async def call(part: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        part.work.check_stuck()
        return await part.work.watched(method(part, *args, **kwargs))

    return call


def gives_up(method: Call[T, P, R]) -> Call[T, P, R]:
    """As uses_disk(), for calls by which pods end: they are always tried."""

    @wraps(method)
    async def call(part: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await part.work.watched(method(part, *args, **kwargs))

    return call


class PoolWork:
    """The work of one pool. backend: open or not; it has its name already."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend, self.clock = backend, clock
        self.locks = KeyedLocks()
        self.threads = Threads(backend.name)
        self.probe_thread = Threads(f"{backend.name}-probe", 1)
        """Of its own: long copies in all others are no fault of the disk."""
        self.release_threads = Threads(f"{backend.name}-release", _RELEASES)
        """Of their own: pods end although all others are stuck."""
        self.probe = WriteProbe(backend.name, self.probe_write, clock)
        self.disks = DiskProbe(backend.name, backend.devices, self._wait_for_disk)
        self._commit = SharedCommit(backend.commit, self.threads) if backend.shares_commit else None
        self._under_way: set[asyncio.Task[Any]] = set()
        """Work that uses the disk, also that whose caller has given up."""
        self._stuck: set[asyncio.Task[Any]] = set()
        """Work whose caller has given up."""

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the back end in a thread, or here where it never blocks."""
        if self.backend.is_instant:
            return work(*args, **kwargs)
        return await self.threads.run(work, *args, **kwargs)

    async def release(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As run(), for work of pods that end and of those that look."""
        if self.backend.is_instant:
            return work(*args, **kwargs)
        return await self.release_threads.run(work, *args, **kwargs)

    async def run_and_commit(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As run(); what was done is durable when this returns."""
        if self._commit is None:
            return await self.run(work, *args, **kwargs)
        return await self._commit.after(work, *args, **kwargs)

    async def commit(self) -> None:
        """Make durable what was done to the back end by others."""
        if self._commit is not None:
            await self._commit.wait()

    async def probe_write(self) -> None:
        """Write something and remove it. Raises: HostError, UnavailableError."""
        if self.backend.is_instant:
            self.backend.probe()
        else:
            await self.probe_thread.run(self.backend.probe)

    async def _wait_for_disk(self, path: Path) -> None:
        threads = Threads(f"{self.backend.name}-disk", 1)  # of its own: each disk may hang
        try:
            await threads.run(device.wait_for, path)
        finally:
            threads.close()

    @property
    def _fault(self) -> str:
        return self.probe.fault or self.disks.fault

    def _hang(self) -> DiskHangsError:
        return DiskHangsError(f"pool {self.backend.name!r} does not answer: {self._fault}; look at its disk (dmesg)")

    def check_stuck(self) -> None:
        """Raises: DiskHangsError while as many calls hang as may."""
        if len(self._stuck) >= _STUCK:
            raise self._hang()

    async def watched(self, work: Coroutine[Any, Any, R]) -> R:
        """Do work of the pool and return its result. A caller that is cancelled still waits for the end.

        But for none on a pool that cannot write, or of which a disk does not answer: the work may hang with it. It goes
        on then, with its locks and without a caller. Raises: DiskHangsError then.
        """
        if self.backend.is_instant:
            return await work
        task, pause = asyncio.ensure_future(work), SLOW
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        stopped: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task], timeout=pause)
                if not task.done():
                    await self.probe.run()
                    await self.disks.run()
                    pause = EVERY
            except asyncio.CancelledError as stop:
                stopped = stop
                task.cancel()
            if not task.done() and self._fault:
                self._leave(task)
                break
        if task.done() and not task.cancelled():
            task.exception()  # known, also when it ended while we are cancelled
        if stopped is not None:
            raise stopped
        if not task.done():
            raise self._hang()
        return task.result()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._stuck.add(task)
        task.cancel()  # what is begun in a thread ends there; what waits for a lock ends now
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._stuck.discard(task)
        if not task.cancelled():
            task.exception()
        log.warning("a call that was given up has ended pool=%s", self.backend.name)

    @property
    def may_hang(self) -> bool:
        """Whether close() may have to wait for work that hangs."""
        return self.probe.hangs or bool(self.disks.fault or self._under_way)

    async def close(self) -> None:
        """Wait for all work, close the back end and end the threads."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self.run(self.backend.close)
        for threads in (self.threads, self.release_threads, self.probe_thread):
            threads.close()
