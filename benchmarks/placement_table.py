"""One row of a benchmark's table: a value, what stands beside it from the same run, and what was promised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HEADINGS = ("", "measured", "beside it", "ratio", "goal", "")


@dataclass(frozen=True)
class Row:
    """value in unit. other: what the ratio is to, and other_name whose that is; without it there is no ratio.

    at_most and at_least are the goal: of the ratio where there is one, else of the value; neither: for information.
    """

    what: str
    value: float
    unit: str = ""
    other: float | None = None
    other_name: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the other value it is; None where there is nothing to compare with."""
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
        """As the table shows it, in the order of HEADINGS."""
        ratio = "" if self.ratio is None else f"{_text(self.ratio)} x"
        beside = "" if self.other is None else f"{self.other_name} {_text(self.other)}".strip()
        return self.what, f"{_text(self.value)} {self.unit}".strip(), beside, ratio, self._goal(), self._verdict()

    def _goal(self) -> str:
        unit = " x" if self.other is not None else f" {self.unit}" if self.unit else ""
        if self.at_most is not None:
            return f"at most {self.at_most:g}{unit}"
        return f"at least {self.at_least:g}{unit}" if self.at_least is not None else ""

    def _verdict(self) -> str:
        return "missed" if self.missed else "met" if self._goal() else ""


def render(title: str, rows: Iterable[Row]) -> str:
    """The rows of one case as a table."""
    cells = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in cells]
    return "\n".join([f"\n{title}", *(f"  {line}" for line in lines)])


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
