"""The background half of erasing: order, rate, progress, positions written down, failures."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import HostError
from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.pools.core import eraser
from tonnage.storage.pools.core.eraser import ErasePace, Eraser, EraseRecords
from tonnage.storage.pools.core.wipe import CHUNK, EraseJob


class Files(EraseRecords):
    """Jobs over plain files, kept in memory as a pool's folder keeps them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[str, EraseJob] = {}
        self.saved: list[int] = []
        self.failing = ""

    def add(self, name: str, size: int, method: str = "zero") -> Path:
        path = self.folder / name
        path.write_bytes(os.urandom(size))
        self.kept[name] = EraseJob(name, name, method, size, reserved=size)
        return path

    def jobs(self) -> Sequence[EraseJob]:
        return list(self.kept.values())

    def path(self, job: EraseJob) -> Path | None:
        if job.key == self.failing:
            raise HostError("disk is gone")
        path = self.folder / job.key
        return path if path.exists() else None

    def save(self, job: EraseJob) -> None:
        self.saved.append(job.done)
        self.kept[job.key] = job

    def finish(self, job: EraseJob) -> None:
        (self.folder / job.key).unlink(missing_ok=True)
        self.kept.pop(job.key, None)


class Instant(RealClock):
    """A clock whose sleeps end at once and are written down, or last for ever."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.stuck = False

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.stuck:
            await asyncio.Event().wait()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def clock() -> Instant:
    return Instant()


Make = Callable[..., Eraser]


@pytest.fixture
async def make(files: Files, clock: Instant) -> AsyncIterator[Make]:
    threads, made = Threads("test"), []

    def new(rate: int = 0) -> Eraser:
        made.append(Eraser("p", "test", files, threads, clock, rate=rate))
        return made[-1]

    yield new
    for each in made:
        await each.close()
    threads.close()


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def test_one_after_the_other_and_then_no_task_is_left(files: Files, make: Make) -> None:
    one = make()
    one.wake()
    assert len(asyncio.all_tasks()) == 1, "nothing to erase, no task"
    for name in ("b", "a"):
        files.add(name, 3 * CHUNK)
    one.wake()
    one.wake()
    assert [(e.name, e.done, e.total, e.percent) for e in one.erasing()] == [
        (name, 0, 3 * CHUNK, 0) for name in ("a", "b")
    ]
    await _until(lambda: not files.jobs())
    await _until(lambda: len(asyncio.all_tasks()) == 1)
    assert list(files.folder.iterdir()) == []
    assert one.erasing() == []


async def test_the_position_is_written_down_when_it_stops_and_another_goes_on(
    files: Files, make: Make, clock: Instant
) -> None:
    path = files.add("a", 4 * CHUNK)
    with path.open("rb") as content:
        first = make(rate=1)
        clock.stuck = True
        first.wake()
        await _until(lambda: clock.slept)
        [erasure] = first.erasing()
        assert (erasure.done, erasure.percent, erasure.reserved) == (2 * CHUNK, 50, 4 * CHUNK), "one step ahead"
        await first.close()
        assert files.jobs()[0].done == 2 * CHUNK
        content.seek(0)
        old = content.read()[2 * CHUNK :]
        assert any(old)

        clock.stuck = False
        second = make()
        second.wake()
        await _until(lambda: not files.jobs())
        content.seek(0)
        assert not any(content.read()), "what was on the disk is overwritten, also where the name is gone"


async def test_positions_are_written_down_now_and_then(
    files: Files, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eraser, "CHECKPOINT", 3 * CHUNK)
    files.add("a", 8 * CHUNK)
    make().wake()
    await _until(lambda: not files.jobs())
    assert files.saved == [3 * CHUNK, 6 * CHUNK, 8 * CHUNK]


async def test_a_failing_one_stands_aside_says_why_and_is_tried_again(files: Files, make: Make) -> None:
    files.add("a", CHUNK)
    files.failing = "a"
    one = make()
    one.wake()
    await _until(lambda: one.erasing()[0].problem)
    assert one.erasing()[0].problem == "disk is gone"
    files.add("b", CHUNK)
    one.wake()
    await _until(lambda: [job.key for job in files.jobs()] == ["a"])
    await one.close()
    files.failing = ""
    again = make()
    again.wake()
    await _until(lambda: not files.jobs())


async def test_a_content_that_is_gone_ends_its_job(files: Files, make: Make) -> None:
    files.add("a", CHUNK).unlink()
    make().wake()
    await _until(lambda: not files.jobs())


async def test_closing_does_not_hang_when_the_position_cannot_be_written_down(
    files: Files, make: Make, clock: Instant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(job: EraseJob) -> None:
        raise HostError("no space for a record")

    monkeypatch.setattr(files, "save", fail)
    files.add("a", 4 * CHUNK)
    clock.stuck = True
    one = make(rate=1)
    one.wake()
    await _until(lambda: clock.slept)
    async with asyncio.timeout(60):
        await one.close()
    assert files.jobs() == [EraseJob("a", "a", "zero", 4 * CHUNK, reserved=4 * CHUNK)]


async def test_a_finished_job_is_only_removed(files: Files, make: Make) -> None:
    path = files.add("a", CHUNK)
    files.kept["a"] = msgspec.structs.replace(files.kept["a"], done=CHUNK)
    make().wake()
    await _until(lambda: not files.jobs())
    assert not path.exists()
    assert files.saved == []


def test_the_pace_holds_and_saves_nothing_up() -> None:
    pace = ErasePace(100)
    now = slept = 0.0
    for _ in range(50):
        now += 0.01  # the work itself
        pause = pace.pause(10, now)
        slept += pause
        now += pause
    assert 4.8 <= now <= 5.1, "500 bytes take 5 seconds"
    now += 3600
    assert [pace.pause(100, now) for _ in range(3)] == [pytest.approx(x) for x in (0.0, 1.0, 2.0)]
    assert ErasePace(0).pause(10**9, 0.0) == 0.0
