"""One measured figure and what was promised of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """value in unit. at_most or at_least is the target; neither: told for information."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    def text(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:,.0f} {self.unit}" if value >= 100 else f"{value:.3g} {self.unit}"

    def wanted(self) -> str:
        """The target in words."""
        if self.at_most is not None:
            return f"at most {self.at_most:g} {self.unit}"
        return f"at least {self.at_least:g} {self.unit}" if self.at_least is not None else ""

    def met(self, value: float) -> bool | None:
        """Whether a value meets the target; None without one."""
        if self.at_most is not None:
            return value <= self.at_most
        return value >= self.at_least if self.at_least is not None else None
