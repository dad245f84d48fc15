"""One commit for many callers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from tonnage.storage.pools.base.threads import SharedCommit, Threads


class Disk:
    """Counts commits; what was written before one began is safe after it."""

    def __init__(self) -> None:
        self.written = 0
        self.safe = 0
        self.commits = 0
        self.fail = False
        self.threads = list[int]()
        self.pause = threading.Event()
        self.pause.set()

    def write(self) -> int:
        self.written += 1
        self.threads.append(threading.get_ident())
        return self.written

    def commit(self) -> None:
        self.threads.append(threading.get_ident())
        seen = self.written
        time.sleep(0.001)
        self.pause.wait()
        if self.fail:
            raise OSError("disk is dead")
        self.safe, self.commits = seen, self.commits + 1


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def commit(disk: Disk) -> Iterator[SharedCommit]:
    threads = Threads("t", workers=8)
    yield SharedCommit(disk.commit, threads)
    threads.close()


async def test_many_share_one_and_none_returns_too_early(disk: Disk, commit: SharedCommit) -> None:
    async def caller() -> None:
        mine = await commit.after(disk.write)
        assert disk.safe >= mine

    await asyncio.gather(*(caller() for _ in range(200)))
    assert disk.written == 200
    assert disk.commits < 100


async def test_waiters_share_one(disk: Disk, commit: SharedCommit) -> None:
    async def caller(delay: float) -> None:
        await asyncio.sleep(delay)
        mine = disk.write()
        await commit.wait()
        assert disk.safe >= mine

    await asyncio.gather(*(caller(0.00001 * number) for number in range(200)))
    assert disk.commits < 100


async def test_who_is_alone_commits_in_the_same_thread(disk: Disk, commit: SharedCommit) -> None:
    assert await commit.after(disk.write) == 1
    assert (disk.safe, disk.commits) == (1, 1)
    assert len(disk.threads) == 2
    assert len(set(disk.threads)) == 1


async def test_who_comes_during_the_commit_of_one_alone_gets_a_later_one(disk: Disk, commit: SharedCommit) -> None:
    disk.pause.clear()
    first = asyncio.ensure_future(commit.after(disk.write))
    while len(disk.threads) < 2:
        await asyncio.sleep(0.001)
    others = [asyncio.ensure_future(commit.after(disk.write)) for _ in range(3)]
    while disk.written < 4:
        await asyncio.sleep(0.001)
    disk.pause.set()
    await asyncio.gather(first, *others)
    assert disk.safe == 4
    assert disk.commits > 1


async def test_failed_work_commits_nothing(disk: Disk, commit: SharedCommit) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await commit.after(int, "x")
    assert disk.commits == 0
    assert await commit.after(disk.write) == 1
    assert disk.commits == 1


async def test_one_that_runs_already_is_not_enough(disk: Disk, commit: SharedCommit) -> None:
    disk.pause.clear()
    first = asyncio.ensure_future(commit.wait())
    while not disk.threads:
        await asyncio.sleep(0.001)
    disk.write()
    second = asyncio.ensure_future(commit.wait())
    await asyncio.sleep(0)
    disk.pause.set()
    await asyncio.gather(first, second)
    assert (disk.safe, disk.commits) == (1, 2)


async def test_failure_reaches_everybody(disk: Disk, commit: SharedCommit) -> None:
    disk.fail = True
    calls = (*(commit.wait() for _ in range(3)), commit.after(disk.write))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(result) for result in results] == ["disk is dead"] * 4
    disk.fail = False
    await commit.wait()
    assert (disk.safe, disk.commits) == (1, 1)


async def test_cancelled_waiter_does_not_stop_the_others(disk: Disk, commit: SharedCommit) -> None:
    tasks = [asyncio.ensure_future(commit.wait()) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 3
