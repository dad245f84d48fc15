"""How much of a pool a volume may take: what its class leaves to others, and what is kept for inline volumes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import ExhaustedError, OutOfRangeError
from tonnage.storage.pools.base import reservation
from tonnage.storage.pools.base.contract import INLINE, Capacity, PoolVolume, VolumeRequest
from tonnage.storage.pools.base.reservation import Reserve, reserve
from tonnage.storage.pools.fake.backend import FakePool

GI = 1024**3
POOL = "p"
BYTES = st.integers(0, 2**62)
MADE_INLINE = {INLINE: "true"}


@given(BYTES, BYTES, BYTES, st.sampled_from([1, 4096, 4 * 1024**2]))
def test_a_reserve_never_leaves_more(total: int, used: int, kept: int, step: int) -> None:
    free = max(0, total - used)
    all_of_it = Capacity(total, free, free // step * step, step, used)
    left = reservation.left(all_of_it, Reserve(kept), step=step)
    assert left.free == max(0, free - kept)
    assert left.largest <= min(all_of_it.largest, left.free)
    assert left.largest % step == 0
    assert (left.smallest, left.used) == (all_of_it.smallest, all_of_it.used)
    assert kept or left == all_of_it


def test_what_is_largest_for_other_reasons_stays_so() -> None:
    free = Capacity(total=10 * GI, free=8 * GI, largest=2 * GI, smallest=1, used=2 * GI)
    assert reservation.left(free, Reserve(GI)).largest == 2 * GI
    assert reservation.left(free, Reserve(7 * GI)).largest == GI


def test_nothing_fits_that_would_be_too_small() -> None:
    free = Capacity(total=GI, free=GI, largest=GI, smallest=300 << 20, used=0)
    assert reservation.left(free, Reserve(800 << 20)).largest == 0
    assert reservation.left(free, Reserve(GI - (300 << 20))).largest == 300 << 20


def test_messages_tell_of_the_reserve() -> None:
    six = Reserve(6 * GI)
    free = reservation.left(Capacity(10 * GI, 8 * GI, 8 * GI, 1, 2 * GI), six)
    with pytest.raises(
        ExhaustedError, match=r"at most 2Gi for one volume, excluding the 6Gi .* \(2Gi of 10Gi reserved\)"
    ):
        reservation.check_fits(POOL, "v", 3 * GI, free, six)
    with pytest.raises(OutOfRangeError, match="holds 4Gi at most, excluding the 6Gi that the class leaves to others"):
        reservation.check_fits(POOL, "v", 5 * GI, free, six)
    with pytest.raises(ExhaustedError, match=r"has 2Gi free, excluding the 6Gi .* \(2Gi of 10Gi reserved\)"):
        reservation.check_more(POOL, PoolVolume("v", GI), 4 * GI, free, six)
    with pytest.raises(OutOfRangeError, match="holds 4Gi at most, excluding the 6Gi"):
        reservation.check_more(POOL, PoolVolume("v", GI), 5 * GI, free, six)


def test_messages_tell_of_what_is_kept_for_inline_volumes() -> None:
    kept = reserve(3 * GI, [PoolVolume("i", GI, owner=MADE_INLINE), PoolVolume("v", GI)], of_class=GI)
    assert (kept.now, kept.ever) == (3 * GI, 4 * GI)
    free = reservation.left(Capacity(10 * GI, 8 * GI, 8 * GI, 1, 2 * GI), kept)
    assert (free.total, free.free) == (6 * GI, 5 * GI)
    both = "excluding the 1Gi that the class leaves to others and the {} that are reserved for inline volumes"
    with pytest.raises(ExhaustedError, match=both.format("2Gi")):
        reservation.check_fits(POOL, "v", 6 * GI, free, kept)
    with pytest.raises(OutOfRangeError, match=both.format("3Gi")):
        reservation.check_fits(POOL, "v", 7 * GI, free, kept)


_STEPS = st.lists(st.tuples(st.sampled_from(["claim", "inline", "gone"]), st.integers(1, 6)), max_size=30)


@given(_STEPS, st.integers(0, 12))
async def test_claims_never_take_what_is_kept_and_inline_volumes_may_have_all_that_is_free(
    steps: list[tuple[str, int]], budget: int
) -> None:
    pool = FakePool("p", 12, directories=False)
    pool.backend.inline = budget
    have: dict[str, tuple[bool, int]] = {}
    for number, (what, size) in enumerate(steps):
        inline_has = sum(size for inline, size in have.values() if inline)
        free = 12 - sum(size for _, size in have.values())
        for_claims = max(0, free - max(0, budget - inline_has))
        assert (await pool.capacity_for({})).free == for_claims
        assert (await pool.capacity_for({}, inline=True)).free == (await pool.overall()).free == free
        if what == "gone":
            if have:
                name = list(have)[size % len(have)]
                await pool.delete(name)
                del have[name]
            continue
        inline, name = what == "inline", f"v{number}"
        try:
            await pool.create(VolumeRequest(name, size, owner=MADE_INLINE if inline else {}))
        except (ExhaustedError, OutOfRangeError):
            assert size > (free if inline else for_claims)
        else:
            assert size <= (free if inline else for_claims)
            have[name] = (inline, size)


async def test_snapshots_and_growth_leave_what_is_kept_too() -> None:
    pool = FakePool("p", 10 * GI, directories=False)
    pool.backend.inline = 4 * GI
    await pool.create(VolumeRequest("v", 4 * GI))
    with pytest.raises(ExhaustedError, match="4Gi that are reserved for inline volumes"):
        await pool.snapshots.create("s", "v")
    with pytest.raises(
        OutOfRangeError, match="holds 6Gi at most, excluding the 4Gi that are reserved for inline volumes"
    ):
        await pool.growth.expand("v", 7 * GI)
    assert (await pool.growth.expand("v", 6 * GI)).size == 6 * GI
    await pool.create(VolumeRequest("i", 4 * GI, owner=MADE_INLINE))
