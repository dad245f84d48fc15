"""Virtual time: an event loop whose sleeps take no time, and a clock that follows it."""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopClock:
    """A clock that follows the running loop; with a VirtualLoop it is a virtual one.

    `epoch` is time() at the loop's time 0.
    """

    def __init__(self, epoch: float = 1_800_000_000.0) -> None:
        self.epoch = epoch

    def time(self) -> float:
        """Seconds since the epoch, by the loop."""
        return self.epoch + self.monotonic()

    def monotonic(self) -> float:
        """The loop's own time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait by the loop's time."""
        await asyncio.sleep(seconds)


_PATIENCE, _CHANCE = 2.0, 0.001
"""Real seconds for which the time waits for work in threads. Then the work counts as waiting for the time, and
has a short chance to end at each step of it."""


_TURNS_PER_SECOND = 5000.0
"""Of a loop whose turns take a while, on average."""


class _InstantSelector(selectors.DefaultSelector):
    """A selector that polls sockets without waiting; an idle wait advances the loop's time instead.

    While threads work for the loop, it waits for them: else a minute passes before a thread under load has begun.
    """

    def __init__(self, slowness: random.Random | None) -> None:
        super().__init__()
        self.now = 0.0
        self._slowness = slowness
        self.working: dict[object, bool] = {}
        """Work in threads, and whether it may end without the time going on."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._slowness is None:
            return self._select(timeout)
        ready = self._select(timeout)
        self.now += self._slowness.expovariate(_TURNS_PER_SECOND)
        self._slowness.shuffle(ready)
        return ready

    def _select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # nothing is scheduled: only a socket or a thread can wake the loop
            return super().select(None)
        if self.working:
            if ready := super().select(_PATIENCE if any(self.working.values()) else _CHANCE):
                return ready
            self.working.update(dict.fromkeys(self.working, False))
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose sleeps take no time. What it runs in threads takes none either, up to 2 real seconds."""

    def __init__(self, slowness: random.Random | None = None) -> None:
        """Make a loop at time 0.

        slowness: each turn takes a while that it chooses, and sockets are ready in any order, as on a real machine.
        """
        self._instant = _InstantSelector(slowness)
        super().__init__(self._instant)

    def hold(self) -> Callable[[], object]:
        """Let the time wait until the returned function is called, in the loop; at most 2 real seconds. Idempotent."""
        key, working = object(), self._instant.working
        working[key] = True
        return lambda: working.pop(key, None)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # typeshed: Unpack
        """As of any loop. The time waits for the thread's work, also when nothing awaits it any more."""
        release, begun, ended = self.hold(), threading.Event(), threading.Event()

        def run() -> T:
            begun.set()
            try:
                return func(*args)
            finally:
                ended.set()
                with suppress(RuntimeError):  # the loop was closed meanwhile
                    self.call_soon_threadsafe(forget, None)

        def forget(_: object) -> None:
            """Forget it once nothing more comes of it: its result has been set, or it was canceled and has ended."""
            if work.done() and (ended.is_set() or not begun.is_set()):
                release()

        work = super().run_in_executor(executor, run)
        work.add_done_callback(forget)
        return work

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._instant.now

    def advance(self, seconds: float) -> None:
        """Advance the time now, as if the running code had taken so long."""
        self._instant.now += seconds
