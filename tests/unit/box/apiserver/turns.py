"""How much grows in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def turned(work: Any, count: Callable[[], int]) -> int:
    """Do the work; the most by which the count grew in one turn of the loop."""
    most, before, done = 0, count(), False

    async def turn() -> None:
        nonlocal most, before
        while not done:
            await asyncio.sleep(0)
            now = count()
            most, before = max(most, now - before), now

    turning = asyncio.ensure_future(turn())
    await asyncio.sleep(0)
    await work
    done = True
    await turning
    return most
