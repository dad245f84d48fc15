"""What a driver tells its agent, for tests that listen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tonnage.csi.driver.hooks import NoHooks


class Heard(NoHooks):
    """told: what did not fit, and why. changed: called when the capacity changed."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.told: list[tuple[Mapping[str, str], str]] = []
        self._changed = changed

    def capacity_changed(self) -> None:
        """Call changed."""
        self._changed()

    def unfit(self, context: Mapping[str, str], why: str) -> None:
        """Remember it."""
        self.told.append((context, why))
