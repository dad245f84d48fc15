"""One figure of a benchmark: a value, the value of a peer in the same run, and the goal. Used by all benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

HEADINGS = ("", "measured", "peer", "ratio", "goal", "")


@dataclass(frozen=True)
class Figure:
    """A value in unit. other: what the ratio is to, by the name other_name; without it there is no ratio.

    at_most and at_least are the goal: of the ratio where there is one, else of the value. Neither: for information.
    """

    name: str
    value: float
    unit: str = ""
    other: float | None = None
    other_name: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ratio(self) -> float | None:
        """Value divided by the peer's; None where there is nothing to compare with."""
        return self.value / self.other if self.other else None

    @property
    def missed(self) -> bool:
        """Whether the goal was not reached."""
        measured = self.value if self.other is None else self.ratio
        if measured is None:
            return self.at_most is not None or self.at_least is not None
        return (self.at_most is not None and measured > self.at_most) or (
            self.at_least is not None and measured < self.at_least
        )

    def cells(self) -> Sequence[str]:
        """The cells of its line in a table, in the order of HEADINGS."""
        ratio = "" if self.ratio is None else f"{_text(self.ratio)} x"
        peer = "" if self.other is None else f"{self.other_name} {_text(self.other)}".strip()
        return self.name, f"{_text(self.value)} {self.unit}".strip(), peer, ratio, self._goal(), self._verdict()

    def _goal(self) -> str:
        unit = " x" if self.other is not None else f" {self.unit}" if self.unit else ""
        if self.at_most is not None:
            return f"at most {self.at_most:g}{unit}"
        return f"at least {self.at_least:g}{unit}" if self.at_least is not None else ""

    def _verdict(self) -> str:
        return "missed" if self.missed else "met" if self._goal() else ""


def medians(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The figures of several runs as one: medians of values and of peers' values.

    Raises:
        ValueError: the runs differ in their figures.
    """
    found = []
    for figures in zip(*runs, strict=True):
        if len({(figure.name, figure.unit) for figure in figures}) > 1:
            raise ValueError(f"{figures[0].name}: another figure in another run")
        others = [figure.other for figure in figures if figure.other is not None]
        value = statistics.median(figure.value for figure in figures)
        found.append(replace(figures[0], value=value, other=statistics.median(others) if others else None))
    return found


def render(title: str, figures: Iterable[Figure]) -> str:
    """The figures of one benchmark as a table for a terminal."""
    cells = [HEADINGS, *(figure.cells() for figure in figures)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in cells]
    return "\n".join([f"\n{title}", *(f"  {line}" for line in lines)])


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
