"""A fake pool on a disk that hangs: what waits for it can neither be ended nor be cancelled (D state)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.simulate.virtual_time import LoopClock


class HangingPool(FakePool):
    """Writes of the probe and creations hang while `goes` is not set; with `slow` not set, creations only take long."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size, directories=False, clock=LoopClock())
        self.backend.is_instant = False
        self.goes, self.slow = asyncio.Event(), asyncio.Event()
        self.goes.set()
        self.slow.set()
        self.waiting = 0
        """Work that hangs now, but for the probe."""
        self.hung: Callable[[Any], bool] = lambda work: work in (self.volumes._create, self.backend.probe)
        """Which work hangs."""
        self.work.threads = self.work.release_threads = self.work.probe_thread = _HangingThreads(self)

    def awaited(self, work: Any) -> asyncio.Event | None:
        """What work waits for now."""
        if not self.goes.is_set() and self.hung(work):
            return self.goes
        return self.slow if work == self.volumes._create and not self.slow.is_set() else None


class _HangingThreads(Threads):
    """All threads of a pool: without limit, in the event loop."""

    def __init__(self, pool: HangingPool) -> None:
        super().__init__(pool.name)
        self._pool = pool

    async def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        stopped: asyncio.CancelledError | None = None
        while (event := self._pool.awaited(work)) is not None:
            is_probe = work == self._pool.backend.probe
            self._pool.waiting += not is_probe
            try:
                await event.wait()
            except asyncio.CancelledError as stop:
                stopped = stop
            finally:
                self._pool.waiting -= not is_probe
        result = work(*args, **kwargs)
        if stopped is not None:
            raise stopped
        return result
