"""Exponential back-off."""

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
