"""Two commits side by side: which figures are compared, and how much worse one may be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from benchmarks.compare import compare
from benchmarks.figure import Figure


def runs(values: Sequence[float], unit: str = "ms") -> Sequence[Sequence[Figure]]:
    return [[Figure("cost", value, unit), Figure("only here", value)] for value in values]


@pytest.mark.parametrize(
    ("after", "before", "unit", "missed"),
    [
        ((10.4, 10.4, 10.4), (10, 10, 10), "ms", False),
        ((10.6, 10.6, 10.6), (10, 10, 10), "ms", True),
        ((10.6, 10.6, 10.6), (9, 10, 11), "ms", False),
        ((11.2, 11.2, 11.2), (9, 10, 11), "ms", True),
        ((9.6, 9.6, 9.6), (10, 10, 10), "pods/s", False),
        ((9.4, 9.4, 9.4), (10, 10, 10), "pods/s", True),
        ((10.6, 10.6, 10.6), (10, 10, 10), "pods/s", False),
        ((10.6,), (10,), "ms", True),
    ],
)
def test_what_is_worse_by_more_than_it_may(
    after: Sequence[float], before: Sequence[float], unit: str, missed: bool
) -> None:
    there = [[run[0]] for run in runs(before, unit)]
    (figure,) = compare(runs(after, unit), there)
    assert figure.missed == missed
    assert ("runs differ by" in figure.name) == (len(set(before)) > 1)


def test_a_figure_that_a_run_lacks_is_left_out() -> None:
    here = [*runs((1, 1)), []]
    assert not list(compare(here, runs((1, 1, 1))))
