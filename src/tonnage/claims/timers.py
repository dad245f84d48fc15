"""Since when things wait: for controllers that give others a moment before they act or speak. Sans-I/O."""

from __future__ import annotations

from collections.abc import Hashable

from tonnage.aio.clock import Clock


class Waits:
    """Remembers for each key when it was first asked about, and what was last said of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Hashable, float] = {}
        self._said: dict[Hashable, tuple[str, float]] = {}

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._since.keys() | self._said.keys())

    def left(self, key: Hashable, seconds: float) -> float:
        """How much of a wait of that many seconds is left; it begins with the first call. 0 when it is over."""
        if seconds <= 0:
            return 0.0
        now = self._clock.monotonic()
        return max(0.0, self._since.setdefault(key, now) + seconds - now)

    def news(self, key: Hashable, text: str, *, pause: float = 0.0) -> bool:
        """Whether text differs from what was last said of key, `pause` seconds ago at least; it then counts as said."""
        now, last = self._clock.monotonic(), self._said.get(key)
        if last is not None and (last[0] == text or now - last[1] < pause):
            return False
        self._said[key] = text, now
        return True

    def has_said(self, key: Hashable) -> bool:
        """Whether anything was said of key."""
        return key in self._said

    def over(self, key: Hashable) -> None:
        """Forget key. May be repeated."""
        self._since.pop(key, None)
        self._said.pop(key, None)
