"""Amounts of a workload file: what is drawn is what was asked."""

from __future__ import annotations

from random import Random

import pytest

from tonnage_box.simulate.workload import amounts

GIB = 1024**3


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


def test_rates_and_sizes() -> None:
    assert [amounts.rate(text) for text in ("2/s", "30/m", "1800/h")] == [2.0, 0.5, 0.5]
    assert amounts.size("1.5Gi") == 1.5 * GIB
