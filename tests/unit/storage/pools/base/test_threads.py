"""Blocking work in threads."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import time

import pytest

from tonnage.base.errors import HostError
from tonnage.storage.pools.base.threads import Threads
from tonnage_box.testing.clock import run_virtual


async def test_result_and_failure() -> None:
    threads = Threads("t")
    assert await threads.run(int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.run(int, "x")
    threads.close()
    threads.close()
    assert await threads.run(int, "8") == 8
    threads.close()


def test_virtual_time_stands_still_meanwhile() -> None:
    async def main() -> float:
        threads = Threads("t")
        async with asyncio.timeout(3600):
            await threads.run(time.sleep, 0.2)
        threads.close()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


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


async def test_call_that_waits_for_a_thread_outlasts_a_cancellation_too() -> None:
    threads, go, done = Threads("t", workers=1), threading.Event(), threading.Event()
    first = asyncio.ensure_future(threads.run(go.wait))
    second = asyncio.ensure_future(threads.run(done.set))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0.001)
    assert not second.done()
    go.set()
    assert await first
    with pytest.raises(asyncio.CancelledError):
        await second
    assert done.is_set()
    threads.close()


async def test_failure_of_a_cancelled_call_is_not_told() -> None:
    threads, begun, go = Threads("t"), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait()
        raise ValueError("nobody hears this")

    task = asyncio.ensure_future(threads.run(work))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    threads.close()


def test_work_may_end_after_its_loop(caplog: pytest.LogCaptureFixture) -> None:
    threads, go, done = Threads("t", workers=1), threading.Event(), threading.Event()
    tasks = list[asyncio.Task[None]]()

    def work() -> None:
        go.wait()
        done.set()

    async def begin() -> None:
        tasks.append(asyncio.ensure_future(threads.run(work)))
        await asyncio.sleep(0.001)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    # Nothing can end this task any more. Else asyncio would log that whenever its garbage is collected, in another test.
    tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]
    go.set()
    assert asyncio.run(threads.run(int)) == 0  # the one thread is free again
    assert done.is_set()
    tasks.clear()
    gc.collect()
    assert not [entry for entry in caplog.records if entry.name in ("concurrent.futures", "asyncio")]
    threads.close()


async def test_an_error_of_the_machine_is_told_as_one() -> None:
    threads = Threads("t")

    def work() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(HostError, match="Input/output error"):
        await threads.run(work)
    threads.close()
