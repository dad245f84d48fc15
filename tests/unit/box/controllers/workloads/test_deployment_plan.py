"""Rolling updates in numbers: a Deployment as it goes from one template to the next, whatever happens between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tonnage_box.controllers.workloads.deployment_plan import RollingLimits, Size, new_size, old_sizes, proportional

_SHARE = st.integers(0, 12) | st.integers(0, 100).map("{}%".format)


@given(desired=st.integers(0, 20), surge=_SHARE, unavailable=_SHARE)
def test_bounds_always_leave_a_way(desired: int, surge: int | str, unavailable: int | str) -> None:
    bounds = RollingLimits.of(desired, surge, unavailable)
    assert bounds.surge + bounds.unavailable > 0 or desired == 0
    assert 0 <= bounds.unavailable <= desired


def test_percentages_are_rounded_up_above_and_down_below() -> None:
    assert RollingLimits.of(5, "25%", "25%") == RollingLimits(5, 2, 1)
    assert RollingLimits.of(1, "25%", "25%") == RollingLimits(1, 1, 0)
    assert RollingLimits.of(3, 0, "10%") == RollingLimits(3, 0, 1)


class World:
    """ReplicaSets that do as they are told; pods become available and sick as the test says."""

    def __init__(self, wanted: list[int], available: list[int]) -> None:
        self.wanted, self.available = wanted, [min(a, w) for a, w in zip(available, wanted, strict=True)]

    def sizes(self) -> list[Size]:
        return [Size(f"rs{n}", w, a) for n, (w, a) in enumerate(zip(self.wanted, self.available, strict=True))]

    def step(self, bounds: RollingLimits) -> bool:
        """One look of the controller; whether it did anything."""
        *olds, new = self.sizes()
        size = new_size(bounds, new, olds)
        if size != new.wanted:
            self.scale(len(olds), size)
            return True
        sizes = old_sizes(bounds, new, olds)
        for n, old in enumerate(olds):
            if old.name in sizes:
                self.scale(n, sizes[old.name])
        return bool(sizes)

    def scale(self, n: int, size: int) -> None:
        self.wanted[n] = size
        self.available[n] = min(self.available[n], size)  # those not ready go first


@given(st.data())
def test_never_more_than_the_surge_and_never_fewer_than_may_be_missing(data: st.DataObject) -> None:
    """From any mixture of old sets within the bounds, with pods that get well and sick in any order, it ends well."""
    bounds = RollingLimits.of(
        data.draw(st.integers(1, 12), "desired"), data.draw(_SHARE, "surge"), data.draw(_SHARE, "missing")
    )
    most, least = bounds.desired + bounds.surge, bounds.desired - bounds.unavailable
    parts = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3), "olds")
    while sum(parts) > most:
        parts[parts.index(max(parts))] -= 1
    world = World([*parts, 0], [data.draw(st.integers(0, p), "available") for p in parts] + [0])

    for _ in range(200):
        before = sum(world.available)
        total = sum(world.wanted)
        moved = world.step(bounds)
        assert sum(world.wanted) <= max(most, total)
        assert sum(world.available) >= min(before, least)
        event = data.draw(st.sampled_from(["well", "well", "well", "sick", "wait"]), "event")
        candidates = [n for n, (w, a) in enumerate(zip(world.wanted, world.available, strict=True)) if a < w]
        if event == "well" and candidates:
            world.available[candidates[-1]] += 1
        elif event == "sick" and any(world.available):
            world.available[max(range(len(parts) + 1), key=lambda n: world.available[n])] -= 1
        elif not moved and not candidates:
            break
    for _ in range(200):  # nothing falls sick any more
        if not world.step(bounds):
            if world.available == world.wanted:
                break
            world.available = list(world.wanted)
    assert world.wanted == [0] * len(parts) + [bounds.desired]


@given(
    sizes=st.lists(st.integers(1, 10), min_size=2, max_size=4),
    desired=st.integers(0, 40),
    surge=_SHARE,
    before=st.integers(1, 40),
)
def test_sharing_a_change_gives_out_exactly_what_there_is(
    sizes: list[int], desired: int, surge: int | str, before: int
) -> None:
    bounds = RollingLimits.of(desired, surge, 1)
    sets = [Size(f"rs{n}", size, size, before) for n, size in enumerate(sizes)]
    result = proportional(bounds, sets, sum(sizes))
    assert set(result) == {one.name for one in sets}
    assert all(size >= 0 for size in result.values())
    if desired == 0:
        assert sum(result.values()) == 0
    elif desired + bounds.surge >= sum(sizes):
        assert sum(result.values()) == desired + bounds.surge
    else:
        assert sum(result.values()) <= sum(sizes)


def test_each_gets_its_share() -> None:
    """The example of the documentation: 10 with surge 3, 8 old and 5 new, scaled to 15."""
    sets = [Size("old", 8, 8, 13), Size("new", 5, 0, 13)]
    assert proportional(RollingLimits(15, 3, 2), sets, 13) == {"old": 11, "new": 7}
