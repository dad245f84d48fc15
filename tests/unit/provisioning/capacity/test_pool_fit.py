"""All claims of a pod find room together whenever there is a way."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.provisioning.capacity.pool_fit import MOST_CLAIMS, allot, fit_together
from tonnage.provisioning.capacity.published import PublishedCapacity

CLASSES = ("a", "b")


def offer(
    name: str, storage_class: str, capacity: int, *, pool: str = "", maximum: int | None = None
) -> PublishedCapacity:
    nothing: Any = None
    most = capacity if maximum is None else maximum
    return PublishedCapacity(name, storage_class, nothing, nothing, pool, capacity, most, counted=0)


def by_class(*offers: PublishedCapacity) -> dict[str, tuple[PublishedCapacity, ...]]:
    return {name: tuple(o for o in offers if o.storage_class == name) for name in CLASSES}


def test_where_the_largest_room_first_would_be_wrong() -> None:
    offers = by_class(offer("one", "a", 10), offer("two", "a", 6))
    assert fit_together(offers, [("a", 6), ("a", 5), ("a", 5)])
    assert sorted(allot(offers, [("a", 6), ("a", 5), ("a", 5)]) or ()) == [(6, 6), (10, 10)]
    assert not fit_together(offers, [("a", 9), ("a", 4), ("a", 3)])


def test_who_wants_nothing_has_it() -> None:
    assert fit_together({}, [])
    assert allot({}, []) == []


def test_a_class_that_has_one_room_only_gets_it() -> None:
    offers = by_class(offer("1", "a", 8, pool="x"), offer("2", "a", 6, pool="y"), offer("3", "b", 8, pool="x"))
    assert sorted(allot(offers, [("a", 6), ("b", 5)]) or ()) == [(5, 8), (6, 6)]


ROOMS = st.lists(
    st.tuples(st.sampled_from(CLASSES), st.integers(0, 12), st.sampled_from(("", "x", "y")), st.integers(1, 12)),
    max_size=5,
)
WANTED = st.lists(st.tuples(st.sampled_from(CLASSES), st.integers(1, 8)), min_size=1, max_size=4)


@given(ROOMS, WANTED)
def test_it_finds_a_way_if_there_is_one(rooms: list[tuple[str, int, str, int]], wanted: list[tuple[str, int]]) -> None:
    pools = {pool: size for _, size, pool, _ in rooms if pool}  # offers of one pool tell the same numbers
    found = [offer(str(n), c, pools.get(p, size), pool=p, maximum=m) for n, (c, size, p, m) in enumerate(rooms)]
    offers = by_class(*found)
    needs = sorted(wanted, key=lambda need: -need[1])
    assert fit_together(offers, needs) is _by_trying_all(offers, needs)
    taken = allot(offers, needs)
    assert (taken is not None) is fit_together(offers, needs)
    if taken is not None:
        assert sum(size for size, _ in taken) == sum(size for _, size in needs)
        assert all(size <= left for size, left in taken)


def _by_trying_all(offers: dict[str, tuple[PublishedCapacity, ...]], needs: list[tuple[str, int]]) -> bool:
    for chosen in product(*(offers[name] for name, _ in needs)):
        taken: dict[object, int] = {}
        for one, (_, size) in zip(chosen, needs, strict=True):
            taken[one.pool_key] = taken.get(one.pool_key, 0) + size
        fits = all(size <= one.largest for one, (_, size) in zip(chosen, needs, strict=True))
        if fits and all(taken[one.pool_key] <= one.left for one in chosen):
            return True
    return False


@pytest.mark.parametrize("claims", [MOST_CLAIMS, MOST_CLAIMS + 1, 64])
def test_it_ends_where_there_is_much_to_try(claims: int) -> None:
    offers = by_class(*(offer(str(n), "a", 99) for n in range(8)))
    assert not fit_together(offers, [("a", 50 + n) for n in reversed(range(claims))][: claims + 1] + [("a", 49)] * 9)
    assert fit_together(offers, [("a", 99)] * 8)
