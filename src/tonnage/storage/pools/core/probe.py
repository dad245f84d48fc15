"""Whether a pool can write: a pool whose disk is dead or read-only offers no capacity until a write succeeds again.

It is tried when a creation has failed, and now and then while somebody asks for the capacity. While it fails, the pool
tries by itself, less and less often. Disks that such a write does not reach are asked while a call waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ExhaustedError, TonnageError, UnavailableError

PoolFault = Callable[[str, str], None]
"""Called with the name of a pool and why it cannot write, "" when it can again."""
log = logging.getLogger(__name__)
EVERY = 60.0
"""Seconds between two tries while the pool can write, if somebody asks for its capacity."""
PATIENCE = 20.0
"""Seconds after which a write that has not ended counts as failed: the disk hangs."""
_SOONEST, _LATEST = 1.0, 60.0
_LEAVE = 1.0  # seconds


class DiskHangsError(UnavailableError):
    """A call has given up, as a write to its pool does not end. What it began may still be done."""


class WriteProbe:
    """Tries to write to one pool.

    write: makes something and removes it. changed: called when the fault appears, changes, or is gone.
    """

    def __init__(self, name: str, write: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self.fault = ""
        """Why the pool cannot write, "" while it can."""
        self.changed: Callable[[], None] = lambda: None
        self._name, self._write, self._clock = name, write, clock
        self._tried = clock.monotonic()
        self._try: asyncio.Task[None] | None = None
        self._verdict: asyncio.Task[None] | None = None
        self._is_hung = False
        self._background = Background(f"probe {name}")
        self._recovery: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raises: ExhaustedError while the pool cannot write: another node may have capacity."""
        if self.fault:
            raise ExhaustedError(
                f"pool {self._name!r} makes no volumes: it cannot write: {self.fault}; look at its disk (dmesg)"
            )

    async def run_if_due(self) -> None:
        """Try to write, if the last try is long ago."""
        if not self.fault and self._clock.monotonic() >= self._tried + EVERY:
            await self.run()

    async def run(self) -> None:
        """Try to write; callers at the same time share the try, and one that hangs is not begun again.

        A caller that is cancelled, because its own time is over, leaves the try to its end.
        """
        if self.hangs:
            return
        if self._try is None or self._try.done():
            self._try = self._background.start(self._write_once())
        if self._verdict is None or self._verdict.done():
            self._verdict = self._background.start(self._judge(self._try))
        await asyncio.wait([self._verdict])

    async def retry(self) -> None:
        """Try again at once while the pool cannot write, by a write that begins now; not while a write hangs."""
        is_late = self._try is not None and not self._try.done()
        if self.fault and not self.hangs:
            await self.run()
        if is_late and self.fault and not self.hangs:  # the try that was under way says nothing of now
            await self.run()

    @property
    def hangs(self) -> bool:
        """Whether a write is under way since longer than the patience."""
        return self._is_hung and self._try is not None and not self._try.done()

    async def _judge(self, write: asyncio.Task[None]) -> None:
        done, _ = await asyncio.wait([write], timeout=PATIENCE)
        if not done:
            self._is_hung = True
            self._set(f"a write has not ended for {PATIENCE:.0f} s")

    async def _write_once(self) -> None:
        try:
            await self._write()
        except TonnageError as failure:
            fault = str(failure)
        else:
            fault = ""
        self._is_hung = False
        self._set(fault)
        self._tried = self._clock.monotonic()

    def _set(self, fault: str) -> None:
        if fault == self.fault:
            return
        was, self.fault = self.fault, fault
        if fault:
            log.error("pool cannot write, it offers no capacity pool=%s error=%s", self._name, fault)
        else:
            log.warning("pool can write again pool=%s", self._name)
        self.changed()
        if fault and not was:
            self._recovery = self._background.start(self._recover())

    async def _recover(self) -> None:
        backoff = Backoff(initial=_SOONEST, maximum=_LATEST)
        while self.fault:
            await self._clock.sleep(backoff.next(""))
            await self.run()

    async def close(self) -> None:
        """Try no more. Waits for no write that hangs. Idempotent."""
        closing = asyncio.ensure_future(self._background.close())
        await asyncio.wait([closing], timeout=_LEAVE if self.hangs else None)


class DiskProbe:
    """Waits for an answer of each disk of one pool.

    devices: returns them, without I/O. wait: returns when a disk has answered.
    """

    def __init__(
        self, name: str, devices: Callable[[], Sequence[Path]], wait: Callable[[Path], Awaitable[None]]
    ) -> None:
        self._devices, self._wait = devices, wait
        self._asked: dict[Path, asyncio.Task[None]] = {}
        self._hung: set[Path] = set()
        self._background = Background(f"disks {name}")

    @property
    def fault(self) -> str:
        """Which disks do not answer, "" while all do."""
        named = ", ".join(map(str, sorted(self._hung)))
        return named and f"{named} has not answered for {PATIENCE:.0f} s"

    async def run(self) -> None:
        """Ask each disk; callers at the same time share that, and one that hangs is not asked again."""
        for device in self._devices():
            if device not in self._asked:
                self._asked[device] = self._background.start(self._ask(device))
        asked = {task: device for device, task in self._asked.items() if device not in self._hung}
        if asked:
            _, late = await asyncio.wait(asked, timeout=PATIENCE)
            for device in {asked[task] for task in late} - self._hung:
                self._hung.add(device)
                log.error("disk does not answer device=%s", device)

    async def _ask(self, device: Path) -> None:
        try:
            await self._wait(device)
        finally:
            del self._asked[device]
            self._hung.discard(device)

    async def close(self) -> None:
        """Ask no more. Waits for no disk that hangs. Idempotent."""
        closing = asyncio.ensure_future(self._background.close())
        await asyncio.wait([closing], timeout=_LEAVE)
