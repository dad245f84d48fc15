"""Locks by key, and background tasks."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.base.aio.tasks import Background, KeyedLocks, SharedRead


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
async def test_who_asks_while_a_read_runs_shares_the_next() -> None:
    begun: list[tuple[str, float]] = []
    clock = asyncio.get_running_loop().time

    async def read(key: str) -> float:
        at = clock()
        begun.append((key, at))
        await asyncio.sleep(10)
        return at

    shared = SharedRead(read)

    async def ask(after: float, key: str) -> tuple[float, float]:
        await asyncio.sleep(after)
        asked = clock()
        return asked, await shared.get(key)

    moments = [(0.0, "a"), (0.0, "a"), (0.1, "a"), (5.0, "a"), (5.0, "b"), (9.9, "a"), (10.1, "a"), (31.0, "a")]
    found = await asyncio.gather(*(ask(*moment) for moment in moments))
    assert all(asked <= read_at for asked, read_at in found)
    since = [(key, round(at - begun[0][1])) for key, at in begun]
    assert since == [("a", 0), ("b", 5), ("a", 20), ("a", 40)]


@pytest.mark.virtual_time
async def test_a_shared_read_that_fails_fails_for_all_and_is_done_again() -> None:
    answers: list[Exception | int] = [OSError("no answer"), 7]

    async def read(key: str) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = SharedRead(read)
    failed = await asyncio.gather(shared.get("a"), shared.get("a"), return_exceptions=True)
    assert [str(failure) for failure in failed] == ["no answer", "no answer"]
    first, second = asyncio.create_task(shared.get("a")), asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0)
    first.cancel()  # the other one still gets its answer
    assert await second == 7
    assert first.cancelled()
