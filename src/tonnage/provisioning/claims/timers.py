"""Waiting times by key, to delay an action or an Event. Sans-I/O."""

from __future__ import annotations

from collections.abc import Hashable

from tonnage.base.aio.clock import Clock


class Waits:
    """First query and last reported text of each key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}
        self._said: dict[Hashable, tuple[str, float]] = {}

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._since.keys() | self._said.keys())

    def left(self, key: Hashable, seconds: float) -> float:
        """Return the rest of a wait in seconds; it begins with the first call.

        0 when it is over.
        """
        if seconds <= 0:
            return 0.0
        now = self._clock.monotonic()
        return max(0.0, self._since.setdefault(key, now) + seconds - now)

    def news(self, key: Hashable, text: str, *, pause: float = 0.0) -> bool:
        """Return whether text must be reported, and record it as reported.

        True if it differs from the last one, and that is `pause` seconds old.
        """
        now, last = self._clock.monotonic(), self._said.get(key)
        if last is not None and (last[0] == text or now - last[1] < pause):
            return False
        self._said[key] = text, now
        return True

    def has_said(self, key: Hashable) -> bool:
        """Return whether anything was reported of key."""
        return key in self._said

    def over(self, key: Hashable) -> None:
        """Forget key. Idempotent."""
        self._since.pop(key, None)
        self._said.pop(key, None)
