"""Locks by key, and background tasks."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.aio.tasks import Background, KeyedLocks


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
