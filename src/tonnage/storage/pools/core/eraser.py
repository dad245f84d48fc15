"""Erases the contents of a pool's deleted volumes in the background, one by one, at a limited rate.

A kind of pool provides EraseRecords, which store and finish its jobs. It calls wake() after open() and after each
delete() that made a job, erasing() for progress, and close() before it closes itself. The work runs in the pool's
threads, CHUNK bytes at a time. Without jobs there is no task and no timer.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ExhaustedError, TonnageError
from tonnage.base.observe import metrics
from tonnage.storage.pools.base.contract import Erasure
from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.pools.core.wipe import EraseJob, EraseRecords, Wiper

__all__ = ["CHECKPOINT", "RATE", "ErasePace", "EraseRecords", "Eraser"]
log = logging.getLogger(__name__)
RATE = 100 * 1024**2
"""Default bytes per second to overwrite: what a hard disk can do in addition to its load."""
CHECKPOINT = 256 * 1024**2
"""Bytes between two saved positions: the maximum that a kill makes us repeat."""
_SHORTEST = 0.01  # seconds: a shorter wait is made up for by the next


class ErasePace:
    """Waiting times that limit work to `rate` bytes per second, 0 for unlimited. Unused rate is not saved."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._due = float("-inf")

    def change(self, rate: int) -> None:
        """Set another rate."""
        self._rate = rate

    def pause(self, count: int, now: float) -> float:
        """Seconds to wait after `count` bytes were done at `now`."""
        if not self._rate:
            return 0.0
        seconds = count / self._rate
        self._due = max(self._due, now - seconds) + seconds
        return early if (early := self._due - now) >= _SHORTEST else 0.0


class Eraser:
    """Erases the jobs of one pool.

    rate: bytes overwritten per second, 0 for unlimited; discarded bytes do not count. pool, kind: labels of the
    metrics. random: returns that many random bytes. freed: called when the bytes of a job are free.
    """

    def __init__(  # noqa: PLR0913  # what pools of each kind hand in
        self,
        pool: str,
        kind: str,
        records: EraseRecords,
        threads: Threads,
        clock: Clock,
        *,
        rate: int = RATE,
        random: Callable[[int], bytes] = os.urandom,
        freed: Callable[[], None] = lambda: None,
    ) -> None:
        self._freed = freed
        self._pool, self._records, self._threads, self._clock = pool, records, threads, clock
        self._pace, self._random = ErasePace(rate), random
        self._background = Background(f"erase {pool}")
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._now: EraseJob | None = None
        self._problems: dict[str, str] = {}
        self._retry: dict[str, float] = {}
        self._backoff = Backoff(initial=5.0, maximum=600.0)
        self._erased = metrics.POOL_ERASED.labels(pool, kind)

    def wake(self) -> None:
        """Start work if there are jobs. Call it in the event loop. Idempotent."""
        self._woken.set()
        if (self._task is None or self._task.done()) and self._records.jobs():
            self._task = self._background.start(self._work())

    def change_rate(self, rate: int | None) -> None:
        """Set another rate, None for the default."""
        self._pace.change(RATE if rate is None else rate)

    def erasing(self) -> Sequence[Erasure]:
        """Progress of all jobs, sorted by volume name."""
        now = self._now
        found = [now if now is not None and job.key == now.key else job for job in self._records.jobs()]
        return sorted((job.erasure(self._problems.get(job.key, "")) for job in found), key=lambda e: e.name)

    async def close(self) -> None:
        """Stop and save the position. Idempotent; wake() continues."""
        await self._background.close()

    async def _work(self) -> None:
        while jobs := self._records.jobs():
            self._woken.clear()
            job = min(jobs, key=lambda job: self._retry.get(job.key, float("-inf")))
            if (wait := self._retry.get(job.key, float("-inf")) - self._clock.monotonic()) > 0:
                await self._rest(wait)
                continue
            try:
                await self._erase(job)
            except TonnageError as failure:
                wait = self._backoff.next(job.key)
                self._problems[job.key], self._retry[job.key] = str(failure), self._clock.monotonic() + wait
                log.error("cannot erase pool=%s volume=%s retry=%.0fs error=%s", self._pool, job.name, wait, failure)
                continue
            self._problems.pop(job.key, None)
            self._retry.pop(job.key, None)
            self._backoff.forget(job.key)
            log.info("erased pool=%s volume=%s method=%s bytes=%d", self._pool, job.name, job.method, job.length)
            self._freed()

    async def _rest(self, seconds: float) -> None:
        """Wait until a failed job is due again, or another one is added."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _erase(self, job: EraseJob) -> None:
        """Erase one job to its end. Raises: HostError, UnavailableError."""
        path = None if job.is_done else await self._threads.run(self._records.path, job)
        if path is not None:
            wiper = Wiper(job, path, random=self._random)
            try:
                await self._wipe(wiper)
            except BaseException:  # what comes is the failure or the end; the position is worth keeping if it can be
                with suppress(TonnageError):
                    await self._threads.run(self._save, wiper)
                raise
            else:
                await self._threads.run(self._save, wiper)
            finally:
                self._now = None
            job = wiper.job
        await self._threads.run(self._records.finish, job)

    def _save(self, wiper: Wiper) -> None:
        try:
            self._checkpoint(wiper)
        finally:
            wiper.close()

    async def _wipe(self, wiper: Wiper) -> None:
        saved = wiper.job
        while not wiper.job.is_done:
            before = wiper.job.done
            written = await self._threads.run(wiper.step)
            self._now = wiper.job
            self._erased.inc(wiper.job.done - before)
            if wiper.job.done - saved.done >= CHECKPOINT or wiper.job.method != saved.method:
                await self._threads.run(self._checkpoint, wiper)
                saved = wiper.job
            if (pause := self._pace.pause(written, self._clock.monotonic())) > 0:
                await self._clock.sleep(pause)

    def _checkpoint(self, wiper: Wiper) -> None:
        wiper.sync()
        try:
            self._records.save(wiper.job)
        except (
            ExhaustedError
        ) as failure:  # the end of this job may be what frees bytes; only a restart would repeat work
            log.warning("position not written down pool=%s volume=%s error=%s", self._pool, wiper.job.name, failure)
