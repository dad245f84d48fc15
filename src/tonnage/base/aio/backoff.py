"""Exponential back-off: of what fails, and of writes that somebody undoes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Exponential delays for each key: initial * factor**n seconds, at most maximum."""

    initial: float = 0.005
    maximum: float = 60.0
    factor: float = 2.0
    _failures: dict[Hashable, int] = field(default_factory=dict)

    def next(self, key: Hashable) -> float:
        """Count one more failure of key and return the seconds to wait."""
        n = self._failures.get(key, 0)
        self._failures[key] = n + 1
        return min(self.initial * self.factor ** min(n, 60), self.maximum)

    def forget(self, key: Hashable) -> None:
        """Reset key. Idempotent."""
        self._failures.pop(key, None)


_QUIET = 4
"""A write that is due again only after so many of its pauses was not undone: it starts anew."""


class Rewrites:
    """Pauses between writes of the same to the same object, each twice the one before: another program may undo it.

    The first is made at once. Times are seconds of any one monotonic clock, passed by the caller.
    """

    def __init__(self, initial: float = 1.0, maximum: float = 300.0) -> None:
        self._initial, self._maximum = initial, maximum
        self._made: dict[Hashable, tuple[float, float]] = {}  # key -> when, and the pause after it; by time

    def __len__(self) -> int:
        """How many writes are remembered."""
        return len(self._made)

    def left(self, key: Hashable, now: float) -> float:
        """Return the seconds until that write may be made again, 0 for now. key: the object, and what is written."""
        when, pause = self._made.get(key, (now, 0.0))
        return max(0.0, when + pause - now)

    def made(self, key: Hashable, now: float) -> None:
        """Record that it was made."""
        when, pause = self._made.pop(key, (now, 0.0))
        undone = pause and now - when <= _QUIET * pause
        self._made[key] = now, min(2 * pause, self._maximum) if undone else self._initial
        for old, (when, pause) in list(self._made.items()):
            if now - when <= _QUIET * pause:
                break
            del self._made[old]
