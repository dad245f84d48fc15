"""Locks by key, and background tasks."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.aio.tasks import Background, KeyedLocks, SharedRead


async def test_locks_by_key_exclude_and_are_dropped() -> None:
    locks, order = KeyedLocks(), []

    async def work(name: str) -> None:
        async with locks.hold("k"):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(work("a"), work("b"))

    assert order == ["a in", "a out", "b in", "b out"]
    assert not locks.held("k")


async def test_background_logs_failures_and_cancels_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Background("test")

    async def fail() -> None:
        raise ValueError("boom")

    tasks.start(fail(), "failing")
    endless = tasks.start(asyncio.sleep(3600))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await tasks.close()

    assert "failing" in caplog.text
    assert endless.cancelled()


@pytest.mark.virtual_time
async def test_who_asks_at_the_same_moment_shares_a_read_that_begins_later() -> None:
    begun: list[float] = []
    clock = asyncio.get_running_loop().time

    async def read() -> float:
        begun.append(clock())
        await asyncio.sleep(10)
        return begun[-1]

    shared = SharedRead(read, moment=0.5)

    async def ask(after: float) -> tuple[float, float]:
        await asyncio.sleep(after)
        asked = clock()
        return asked, await shared.get()

    found = await asyncio.gather(*(ask(after) for after in (0.0, 0.1, 0.4, 0.6, 5.0, 5.2, 11.0)))
    assert all(asked <= read_at for asked, read_at in found)
    assert len(begun) == 4


@pytest.mark.virtual_time
async def test_a_shared_read_that_fails_fails_for_all_and_is_done_again() -> None:
    answers: list[Exception | int] = [OSError("no answer"), 7]

    async def read() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = SharedRead(read, moment=0.5)
    failed = await asyncio.gather(shared.get(), shared.get(), return_exceptions=True)
    assert [str(failure) for failure in failed] == ["no answer", "no answer"]
    first, second = asyncio.create_task(shared.get()), asyncio.create_task(shared.get())
    await asyncio.sleep(0.1)
    first.cancel()  # the other one still gets its answer
    assert await second == 7
    assert first.cancelled()
