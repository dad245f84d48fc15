"""One commit for many callers."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.pools.commit import SharedCommit


class Disk:
    """Counts commits; what was written before one began is safe after it."""

    def __init__(self) -> None:
        self.written = 0
        self.safe = 0
        self.commits = 0
        self.fail = False

    async def commit(self) -> None:
        seen = self.written
        await asyncio.sleep(0.001)
        if self.fail:
            raise OSError("disk is dead")
        self.safe, self.commits = seen, self.commits + 1


async def test_many_share_one_and_none_returns_too_early() -> None:
    disk = Disk()
    commit = SharedCommit(disk.commit)

    async def caller(delay: float) -> None:
        await asyncio.sleep(delay)
        disk.written += 1
        mine = disk.written
        await commit.wait()
        assert disk.safe >= mine

    await asyncio.gather(*(caller(0.00001 * number) for number in range(200)))
    assert disk.commits < 100


async def test_one_that_runs_already_is_not_enough() -> None:
    disk = Disk()
    commit = SharedCommit(disk.commit)
    first = asyncio.ensure_future(commit.wait())
    await asyncio.sleep(0)
    disk.written = 7
    await commit.wait()
    await first
    assert (disk.safe, disk.commits) == (7, 2)


async def test_failure_reaches_everybody() -> None:
    disk = Disk()
    disk.fail = True
    commit = SharedCommit(disk.commit)
    results = await asyncio.gather(*(commit.wait() for _ in range(3)), return_exceptions=True)
    assert [str(result) for result in results] == ["disk is dead"] * 3
    disk.fail = False
    await commit.wait()
    assert disk.commits == 1


async def test_cancelled_waiter_does_not_stop_the_others() -> None:
    disk = Disk()
    commit = SharedCommit(disk.commit)
    tasks = [asyncio.ensure_future(commit.wait()) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 3
    with pytest.raises(asyncio.CancelledError):
        tasks[0].result()
