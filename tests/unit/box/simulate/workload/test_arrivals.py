"""Arrivals: shaped by the day, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tonnage_box.simulate.workload.arrivals import arrivals, expected, fitted
from tonnage_box.simulate.workload.workload import Workload

Make = Callable[..., Workload]


def test_the_day_shapes_the_rate(make_workload: Make) -> None:
    made = make_workload({"day": {0: 0, 6: 1, 18: 0.5}, "rate": "100/h"}, duration="24h")
    hours = [0] * 24
    for arrival in arrivals(made.streams[0], 86400.0, seed=3):
        hours[int(arrival.time // 3600)] += 1
    assert sum(hours[:6]) == 0
    assert sum(hours[6:18]) == pytest.approx(1200, rel=0.1)
    assert sum(hours[18:]) == pytest.approx(300, rel=0.2)
    assert expected(made) == pytest.approx(1500)


def test_a_stream_does_not_depend_on_others(make_workload: Make) -> None:
    one, two = make_workload({"name": "a"}), make_workload({"name": "b"}, {"name": "a"})
    assert list(arrivals(one.streams[0], 3600, seed=1)) == list(arrivals(two.streams[1], 3600, seed=1))
    assert list(arrivals(one.streams[0], 3600, seed=1)) != list(arrivals(one.streams[0], 3600, seed=2))


def test_as_many_pods_as_asked(make_workload: Make) -> None:
    made = make_workload({"rate": "600/h"}, {"rate": "60/h", "restarts": 1})
    scale, counts = fitted(made, 300, seed=4)
    drawn = [len(list(arrivals(s, 3600.0, seed=4, scale=scale))) for s in made.streams]
    assert counts[0] + 2 * counts[1] == 300
    assert all(count <= there for count, there in zip(counts, drawn, strict=True))
