"""Blocking work in threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tonnage.pools.threads import Threads


async def test_result_and_failure() -> None:
    threads = Threads("t")
    assert await threads.run(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.run(int, "x")
    threads.close()
    threads.close()
    assert await threads.run(int, "8") == 8
    threads.close()


async def test_cancelled_call_waits_for_its_work() -> None:
    threads, begun, go, done = Threads("t"), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait()
        done.set()

    task = asyncio.ensure_future(threads.run(work))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.001)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
    threads.close()
