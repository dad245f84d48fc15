"""Waiting in tests: for what other tasks bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tonnage.csi.errors import Code, CsiError

T = TypeVar("T")
LIMIT = 60.0
"""Seconds; far above what anything takes, so that it only ends what hangs."""


Eventually = Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]
"""The type of eventually(), for fixtures."""


async def eventually(question: Callable[[], Awaitable[T]], limit: float = LIMIT) -> T:
    """Ask until the answer is true, and return it. limit: seconds.

    It asks after a fiftieth of the time that has passed: a minute costs 400 questions, also where the clock jumps.

    Raises:
        TimeoutError: it was not true in time.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.timeout(limit):
        while not (answer := await question()):  # noqa: ASYNC110  # a question may be about anything
            await asyncio.sleep(max(0.001, (loop.time() - begun) / 50))
        return answer


async def wait_until_served(socket: Path, *, timeout: float) -> None:
    """Wait until a server answers at socket. Raises: CsiError UNAVAILABLE after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(str(socket))
        except OSError as failure:
            if loop.time() >= end:
                why = failure.strerror or str(failure)
                raise CsiError(Code.UNAVAILABLE, f"socket {socket}: no server answers: {why}") from None
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return
