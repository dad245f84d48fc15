"""Busy reconciles are named, by the step that ends late and by the thread that sees one which never ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Generator

import pytest

from tonnage.base.observe import metrics
from tonnage.kubernetes.client.busy import BusyWatch, in_steps
from tonnage.kubernetes.client.controller import Controller


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def watch(clock: HandClock) -> BusyWatch:
    return BusyWatch(clock)


def counted(controller: str) -> float:
    return metrics.REGISTRY.get_sample_value("tonnage_reconciles_busy_total", {"controller": controller}) or 0.0


async def test_a_long_step_is_named_and_counted_once(
    clock: HandClock, watch: BusyWatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def reconcile() -> str:
        clock.move(0.9)
        await asyncio.sleep(0)
        clock.move(1.5)
        watch.check()
        return "done"

    assert await in_steps(watch, "long-step", "default/web", reconcile()) == "done"

    assert [r.getMessage() for r in caplog.records] == [
        "reconcile keeps all others waiting controller=long-step key=default/web s=1.5"
    ]
    assert counted("long-step") == 1.0


async def test_waiting_is_not_busy(clock: HandClock, watch: BusyWatch, caplog: pytest.LogCaptureFixture) -> None:
    async def reconcile() -> None:
        for _ in range(5):
            clock.move(0.9)
            await asyncio.sleep(0)

    async def others() -> None:
        clock.move(100.0)

    await asyncio.gather(in_awaitable(watch, reconcile()), others())
    assert not caplog.records


async def in_awaitable(watch: BusyWatch, work: Awaitable[None]) -> None:
    await in_steps(watch, "waiting", "key", work)


async def test_errors_and_cancellation_pass_through(watch: BusyWatch) -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ValueError("cleaned up") from None

    task = asyncio.create_task(in_awaitable(watch, fails()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="cleaned up"):
        await task


def test_the_thread_names_a_step_that_never_ends(
    clock: HandClock, watch: BusyWatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch.begin("endless", "default/web")
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        clock.move(seconds)
        if looks == 3:
            watch.end()

    watch.look(sleep)

    assert len(caplog.records) == 1
    assert "controller=endless key=default/web" in caplog.text
    assert looks == 3  # then it waits for the next step


async def test_controllers_are_measured(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real controller, with a limit that every step exceeds."""
    monkeypatch.setattr(BusyWatch, "longest", 0.0)
    caplog.set_level(logging.WARNING)
    done = asyncio.Event()

    async def reconcile(key: str) -> None:
        done.set()

    controller: Controller[str] = Controller("measured", reconcile)
    controller.enqueue("default/web")
    running = asyncio.create_task(controller.run())
    await done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert "controller=measured key=default/web" in caplog.text


class _Yields:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Generator[None, None, str]:
        yield None
        return "answer"


async def test_any_awaitable_is_measured(watch: BusyWatch) -> None:
    assert await in_steps(watch, "any", "key", _Yields()) == "answer"
