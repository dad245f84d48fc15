"""Figures of benchmarks: goals, medians and tables."""

from __future__ import annotations

import pytest
from benchmarks.figure import Figure, render


@pytest.mark.parametrize(
    ("figure", "missed"),
    [
        (Figure("x", 5), False),
        (Figure("x", 5, at_most=5), False),
        (Figure("x", 6, at_most=5), True),
        (Figure("x", 4, at_least=5), True),
        (Figure("x", 50, other=10, at_least=5), False),
        (Figure("x", 49, other=10, at_least=5), True),
        (Figure("x", 11, other=10, at_most=1.05), True),
        (Figure("x", 5, other=0), False),
        (Figure("x", 5, other=0, at_least=2), True),
    ],
)
def test_a_goal_is_of_the_ratio_where_there_is_one(figure: Figure, missed: bool) -> None:
    assert figure.missed == missed


def test_a_table_has_a_line_for_each_figure_and_the_goal_in_the_last_columns() -> None:
    text = render(
        "case", [Figure("rate", 40, "pods/s", 10, "Go:", at_least=5), Figure("stuck", 0, at_most=0), Figure("p99", 1.5)]
    )
    rate, stuck, p99 = text.splitlines()[3:]
    assert rate.split() == ["rate", "40", "pods/s", "Go:", "10", "4", "x", "at", "least", "5", "x", "missed"]
    assert stuck.split() == ["stuck", "0", "at", "most", "0", "met"]
    assert p99.split() == ["p99", "1.5"]
