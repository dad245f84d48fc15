"""Other bounds for a pool that serves: more or less may be promised from then on, and nothing that is there goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ExhaustedError, OutOfRangeError, UnsupportedError
from tonnage.storage.pools.base.contract import Keep, PoolLimits, VolumeRequest
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fake.backend import FEATURES, FakeBackend, FakePool
from tonnage.storage.pools.image.backend import make_backend

GIB, MIB = 1 << 30, 1 << 20
KINDS: dict[str, Callable[[Path], Pool]] = {
    "memory": lambda _: FakePool("p", 100 * MIB),
    "image": lambda path: Pool("p", make_backend(path / "pool", PoolLimits(100 * MIB, sparse=True))),
}


@pytest.fixture(params=KINDS)
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Pool:
    """A pool of 100Mi."""
    return KINDS[request.param](tmp_path)


async def test_more_and_less_may_be_promised(pool: Pool) -> None:
    await pool.open()
    await pool.create(VolumeRequest("a", 80 * MIB, block=True))
    with pytest.raises((ExhaustedError, OutOfRangeError)):
        await pool.create(VolumeRequest("b", 80 * MIB, block=True))
    pool.rebound(PoolLimits(200 * MIB, sparse=True))
    assert (await pool.capacity(block=True)).free == 120 * MIB
    await pool.create(VolumeRequest("b", 80 * MIB, block=True))
    pool.rebound(PoolLimits(100 * MIB, sparse=True))
    room = await pool.capacity(block=True)
    assert (room.total, room.free, room.largest, room.used) == (100 * MIB, 0, 0, 160 * MIB)
    with pytest.raises((ExhaustedError, OutOfRangeError)):
        await pool.create(VolumeRequest("c", MIB, block=True))
    assert [v.name for v in await pool.list()] == ["a", "b"]
    await pool.delete("a")
    assert (await pool.capacity(block=True)).free == 20 * MIB
    await pool.close()


async def test_what_is_kept_free_and_overcommit_hold_at_once(tmp_path: Path) -> None:
    pool = Pool("p", make_backend(tmp_path / "pool", PoolLimits(sparse=True)))
    await pool.open()
    before = (await pool.capacity(block=True)).free
    pool.rebound(PoolLimits(sparse=True, keep=Keep(percent=99.0)))
    assert (await pool.capacity(block=True)).free < before
    pool.rebound(PoolLimits(4 * before, float("inf"), sparse=True))
    assert (await pool.capacity(block=True)).free == 4 * before
    await pool.close()


async def test_the_rate_of_erasing_changes_while_it_erases(tmp_path: Path) -> None:
    pool = Pool("p", make_backend(tmp_path / "pool", PoolLimits(GIB)), erase_rate=1)
    await pool.open()
    await pool.create(VolumeRequest("a", 4 * MIB, block=True, parameters={"erase": "zero"}))
    await pool.delete("a")
    assert [e.name for e in await pool.erasing()] == ["a"]
    pool.rebound(PoolLimits(GIB), erase_rate=0)
    assert pool._deletion._eraser is not None
    assert pool._deletion._eraser._pace.pause(GIB, 0.0) == 0.0
    await pool.close()


async def test_a_kind_that_cannot_says_so() -> None:
    class Fixed(FakeBackend):
        def rebound(self, bounds: PoolLimits) -> None:
            raise UnsupportedError("it is in an image, which was made as large as it is")

    fixed = Fixed(GIB, largest=0, features=FEATURES, directories=False, clock=RealClock(), erase_rate=0)
    with pytest.raises(UnsupportedError, match="made as large as it is"):
        Pool("p", fixed).rebound(PoolLimits(GIB), erase_rate=1)
