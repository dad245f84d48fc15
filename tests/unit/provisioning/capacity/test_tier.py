"""Tiers: the arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.provisioning.capacity import tier
from tonnage.provisioning.capacity.ledger import PoolCapacity
from tonnage.provisioning.capacity.tier import Notice

GIB = 1 << 30
bytes_ = st.integers(0, 1 << 50)
tiers = st.sampled_from([0] + [GIB << n for n in range(18)])


@given(largest=bytes_, have=tiers, usual=st.integers(0, 1 << 40))
def test_a_tier_is_a_power_of_two_that_holds_after_any_volume_that_it_admits(
    largest: int, have: int, usual: int
) -> None:
    chosen = tier.choose(largest, have, usual)
    assert chosen == 0 or (chosen & (chosen - 1) == 0 and 2 * chosen <= largest < tier.BEYOND * chosen)
    assert chosen == 0 or chosen >= max(tier.LOWEST, tier.FAR * usual)


@given(largest=bytes_, have=tiers)
def test_it_stays_once_chosen(largest: int, have: int) -> None:
    chosen = tier.choose(largest, have, 0)
    assert tier.choose(largest, chosen, 0) == chosen


@given(largest=st.integers(4 * GIB, 1 << 45))
def test_one_that_went_down_comes_up_again_when_the_room_has_doubled(largest: int) -> None:
    have = tier.choose(largest, 0, 0)
    lower = tier.choose(2 * have - 1, have, 0)
    assert lower in (have // 2, 0)
    if lower:
        assert tier.choose(4 * have - 1, lower, 0) == lower
        assert tier.choose(4 * have, lower, 0) == have


def test_a_pool_that_fills_with_equal_volumes_changes_its_tier_once_each_time_it_halves() -> None:
    have, writes = tier.choose(1024 * GIB, 0, 4 * GIB), 0
    for used in range(0, 1024, 4):
        chosen = tier.choose((1024 - used) * GIB, have, 4 * GIB)
        writes, have = writes + (chosen != have), chosen
    assert writes == 6, "256 volumes"
    assert have == 0, "the last few are published exactly"


@pytest.mark.parametrize("text", ["", "x", "3Gi", "0", "-1Gi", "1024Mi", "01Gi"])
def test_a_label_that_is_none_of_ours_is_no_tier(text: str) -> None:
    assert tier.of_label(text) == 0


@given(chosen=tiers.filter(bool))
def test_labels_are_read_as_they_were_written(chosen: int) -> None:
    assert tier.of_label(tier.as_label(chosen)) == chosen


def test_the_label_of_a_class_with_a_long_name_is_one() -> None:
    assert names.tier_label("tonnage-scratch") == "tier.tonnage.dev/tonnage-scratch"
    assert len(names.tier_label("a" * 200)) == len(names.TIER_PREFIX) + 63


def test_the_largest_volume_is_the_smaller_of_both() -> None:
    assert tier.largest(PoolCapacity(10, 4)) == 4
    assert tier.largest(PoolCapacity(10, None)) == 10


def test_what_is_usual_is_what_nine_of_ten_ask() -> None:
    assert tier.usual([]) == 0
    assert tier.usual([7]) == 7
    assert tier.usual([1] * 9 + [500]) == 1
    assert tier.usual([1] * 8 + [500] * 2) == 500


@given(size=st.integers(1, 1 << 50), nodes=st.frozensets(st.from_regex(r"\A[a-z0-9][a-z0-9.-]{0,20}\Z"), max_size=5))
def test_a_notice_is_read_as_it_was_written(size: int, nodes: frozenset[str]) -> None:
    notes = {key: value for key, value in tier.notes_of(Notice(size, nodes)).items() if value is not None}
    found = tier.read_notice(CSIStorageCapacity(metadata=ObjectMeta(annotations=notes)))
    assert found == (Notice(size, nodes) if nodes else Notice())
