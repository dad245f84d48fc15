"""Work that nothing waits for: it makes way for other work while the event loop is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
LONGEST = 1.0
"""Seconds for which an item waits at most."""
_PAUSE, _LATE, _IN_TIME = 0.01, 0.002, 5
"""The loop is free when so many timers of _PAUSE seconds, one after the other, are at most _LATE late each."""


class Deferred(Generic[T]):
    """Passes items on, each once and in their order, when the event loop is free, and after LONGEST at the latest.

    So a burst of work is done before what is only reported of it.
    """

    def __init__(self, pass_on: Callable[[T], None]) -> None:
        self._pass_on = pass_on
        self._items: dict[T, None] = {}
        self._added = asyncio.Event()

    def add(self, item: T) -> None:
        """Pass the item on later; no second time while it waits. Returns at once."""
        self._items.setdefault(item)
        self._added.set()

    async def run(self) -> None:
        """Pass items on until cancelled. May be called again: it begins with those that still wait."""
        while True:
            await self._added.wait()
            await _free()
            self._added.clear()
            items, self._items = self._items, {}
            for item in items:
                self._pass_on(item)


async def _free() -> None:
    """Return when the event loop is free, or after LONGEST seconds."""
    loop = asyncio.get_running_loop()
    end, in_time = loop.time() + LONGEST, 0
    while in_time < _IN_TIME and (due := loop.time() + _PAUSE) < end:
        await asyncio.sleep(_PAUSE)
        in_time = in_time + 1 if loop.time() <= due + _LATE else 0
