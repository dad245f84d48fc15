"""Workload files: what is wrong is refused by name; what is drawn is what was asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tonnage.errors import Invalid
from tonnage.simulate import amounts, workload
from tonnage.simulate.arrivals import arrivals, expected
from tonnage.simulate.policy import policies
from tonnage.simulate.workload import Workload

Make = Callable[..., Workload]
GIB = 1024**3


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({"rate": "5"}, "stream s0: '5' is no rate"),
        ({"rate": "0/h"}, "the rate must be above 0"),
        ({"lifetime": "5 minutes"}, "'5 minutes' is no duration"),
        ({"lifetime": {"weibull": 1}}, "is no distribution: there are a value, uniform"),
        ({"lifetime": {"uniform": ["2h", "1h"]}}, "its least above its most"),
        ({"volumes": [{"size": "0"}]}, "'0' is no size"),
        ({"volumes": [{"size": {"choice": {"1Gi": 0}}}]}, "one is above 0"),
        ({"volumes": [{"size": {"lognormal": ["1Gi", 9]}}]}, "sigma from 0 to 5"),
        ({"day": {24: 1}}, "hours from 0 to 23"),
        ({"day": {0: 0}}, "no hour with a share above 0"),
        ({"burst": 0}, "burst must be at least 1"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"arrivals": "tidal"}, "tidal"),
    ],
)
def test_refused_by_name(make_workload: Make, stream: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        make_workload(stream)


def test_nodes_from_a_number_or_a_file(make_workload: Make, tmp_path: Path) -> None:
    made = make_workload()
    assert [node.count for node in workload.load_nodes("7", made)] == [7]
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes:\n- {count: 2, pools: {scratch: 1Ti}}\n- {pools: {scratch: 2Ti}, cpu: '64'}\n")
    assert [(n.count, n.cpu) for n in workload.load_nodes(str(file), made)] == [(2, "32"), (1, "64")]
    file.write_text("nodes: [{pools: {fast: 1Ti}}]")
    with pytest.raises(Invalid, match="no node has a pool scratch"):
        workload.load_nodes(str(file), made)
    with pytest.raises(Invalid, match="count and pods must be at least 1"):
        workload.load_nodes("0", made)


def test_policies_by_name() -> None:
    assert [p.name for p in policies(["most-free,untracked", "most-free"])] == ["most-free", "untracked"]
    assert [p.name for p in policies([])] == ["least-allocated"]
    with pytest.raises(Invalid, match="there is no policy 'best'; there are least-allocated"):
        policies(["best"])


@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("90s", 90), ("1h30m", 5400), ("2d", 172800)])
def test_durations(text: str, seconds: float) -> None:
    assert amounts.duration(text) == seconds


def test_distributions_draw_what_was_asked() -> None:
    random = Random(1)
    draw = amounts.distribution({"lognormal": ["10Gi", 1.0, "20Gi"]}, amounts.size)
    drawn = sorted(draw(random) for _ in range(2001))
    assert drawn[-1] == 20 * GIB
    assert drawn[1000] == pytest.approx(10 * GIB, rel=0.1)
    draw = amounts.distribution({"choice": {"1Gi": 3, "2Gi": 1}}, amounts.size)
    assert sum(draw(random) == GIB for _ in range(2000)) == pytest.approx(1500, rel=0.1)


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
