"""Counters of a run, and what they amount to."""

from __future__ import annotations

import pytest

from tonnage_box.simulate.tally import WATCHERS, Series, Tally, conclude


@pytest.fixture
def tally() -> Tally:
    """Four pods of five were placed, on half of 200 bytes."""
    tally = Tally(arrived=5, placed=4, created=4)
    tally.waits.extend([0.0, 1.0, 2.0, 3.0])
    tally.stranded.extend([0.25, 0.75])
    tally.writes["claims"] = 10
    for change in (100, -60):
        tally.hold(change)
    return tally


def test_result(tally: Tally) -> None:
    result = conclude("some", tally, total_bytes=200)
    assert (result.policy, result.pods, result.placed, result.waiting, result.volumes) == ("some", 5, 4, 1, 4)
    assert (result.queue_p50, result.queue_p99, result.queue_max) == (2.0, 3.0, 3.0)
    assert (result.stranded_mean, result.stranded_peak, result.peak_allocation) == (0.5, 0.75, 0.5)
    assert (result.api_writes_per_pod, result.watch_messages_per_pod) == (2.0, 2.0 * WATCHERS["claims"])
    assert not result.counted
    counted = conclude("some", tally, total_bytes=200, messages={"pods": 15})
    assert (counted.watch_messages_per_pod, counted.counted) == (3.0, True)


def test_an_empty_run_divides_by_nothing() -> None:
    result = conclude("none", Tally(), total_bytes=0)
    assert (result.pods, result.queue_max, result.stranded_peak, result.peak_allocation) == (0, 0.0, 0.0, 0.0)


def test_series(tally: Tally) -> None:
    series = Series()
    series.sample(0.5, tally, total_bytes=200)
    series.finish(tally, hours=4.0)
    assert (series.hours, series.waiting, series.held) == ([0.5], [1], [0.2])
    assert (series.stranded_hours, series.stranded) == ([2.0, 4.0], [0.25, 0.75])
    assert series.queueing[3.0] == 0.0
    assert series.queueing[0.0] == 0.75
