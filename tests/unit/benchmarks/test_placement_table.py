"""What a row of the placement benchmark's table says, and when its goal is missed."""

from __future__ import annotations

import pytest
from benchmarks.placement_table import Row, render


@pytest.mark.parametrize(
    ("row", "missed"),
    [
        (Row("x", 5), False),
        (Row("x", 5, at_most=5), False),
        (Row("x", 6, at_most=5), True),
        (Row("x", 4, at_least=5), True),
        (Row("x", 50, other=10, at_least=5), False),
        (Row("x", 49, other=10, at_least=5), True),
        (Row("x", 11, other=10, at_most=1.05), True),
        (Row("x", 5, other=0), False),
        (Row("x", 5, other=0, at_least=2), True),
    ],
)
def test_a_goal_is_of_the_ratio_where_there_is_one(row: Row, missed: bool) -> None:
    assert row.missed == missed


def test_a_table_has_a_line_for_each_row_and_the_goal_in_the_last_columns() -> None:
    text = render(
        "case", [Row("rate", 40, "pods/s", 10, "Go:", at_least=5), Row("stuck", 0, at_most=0), Row("p99", 1.5)]
    )
    rate, stuck, p99 = text.splitlines()[3:]
    assert rate.split() == ["rate", "40", "pods/s", "Go:", "10", "4", "x", "at", "least", "5", "x", "missed"]
    assert stuck.split() == ["stuck", "0", "at", "most", "0", "met"]
    assert p99.split() == ["p99", "1.5"]
