"""Waiting in tests: for what other tasks bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT = 60.0
"""Seconds; far above what anything takes, so that it only ends what hangs."""


Eventually = Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]
"""The type of eventually(), for fixtures."""


async def eventually(question: Callable[[], Awaitable[T]], limit: float = LIMIT) -> T:
    """Ask until the answer is true, and return it. limit: seconds.

    Raises:
        TimeoutError: it was not true in time.
    """
    async with asyncio.timeout(limit):
        while not (answer := await question()):  # noqa: ASYNC110  # a question may be about anything
            await asyncio.sleep(0.001)
        return answer
