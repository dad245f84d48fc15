"""The status of a pool: what is reserved, and problems in words."""

from __future__ import annotations

from tonnage.base.errors import HostError, UnavailableError
from tonnage.storage.pools.base.contract import INLINE, VolumeCondition, VolumeRequest
from tonnage.storage.pools.core import status
from tonnage.storage.pools.fake.backend import FakePool


async def test_status_of_a_pool() -> None:
    pool = FakePool("p", 1000)
    await pool.create(VolumeRequest("a", 100))
    await pool.create(VolumeRequest("i", 50, owner={INLINE: "true"}))
    await pool.snapshots.create("s", "a")
    found = await status.read(pool)
    assert (found.reserved, found.inline_reserved, found.problem, found.abnormal) == (250, 50, "", {})
    assert found.capacity is not None
    assert found.capacity.free == 750


async def test_problems_are_returned() -> None:
    class Sick(FakePool):
        async def condition(self, name: str, path: object = None) -> VolumeCondition:
            if name == "b":
                raise HostError("it was deleted meanwhile")
            return VolumeCondition(abnormal=True, message="it is cut off")

    pool = Sick("p", 1000)
    await pool.create(VolumeRequest("a", 100))
    await pool.create(VolumeRequest("b", 100))
    assert (await status.read(pool)).abnormal == {"a": "it is cut off", "b": "it was deleted meanwhile"}

    class Gone(FakePool):
        async def overall(self) -> None:  # type: ignore[override]
            raise UnavailableError("its disk is gone")

    assert (await status.read(Gone("p", 1))).problem == "its disk is gone"
