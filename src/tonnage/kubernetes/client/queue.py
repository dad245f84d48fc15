"""The work queue: de-duplicated keys, one worker per key, delays and rate limits. No I/O.

The invariant (client-go workqueue): a key is in `waiting` at most once. A key added while it is being worked on is
marked dirty and waits again when that work is done. So nothing is lost and nothing runs twice at once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from tonnage.base.aio.backoff import Backoff

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys to work on. Times are seconds of any one monotonic clock, passed by the caller."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.backoff = backoff or Backoff()
        self._waiting: deque[K] = deque()
        self._queued: set[K] = set()  # in _waiting
        self._working: set[K] = set()  # handed out by get()
        self._dirty: set[K] = set()  # added again while in _working
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}  # the earliest time of each delayed key; older heap entries are void
        self._failed: set[K] = set()  # wait for their back-off
        self._count = 0

    def __len__(self) -> int:
        """Number of keys that wait for a worker now."""
        return len(self._waiting)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of keys in each state, for people."""
        return {"waiting": len(self._waiting), "working": len(self._working), "delayed": len(self._due)}

    @property
    def idle(self) -> bool:
        """Whether nothing waits, is delayed or is worked on."""
        return not (self._waiting or self._working or self._due)

    def add(self, key: K) -> None:
        """Add key."""
        if key in self._working:
            self._dirty.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._waiting.append(key)

    def add_at(self, key: K, when: float) -> None:
        """Add key at a time; of several times the earliest counts."""
        if self._due.get(key, when + 1) <= when:
            return
        self._due[key] = when
        self._count += 1
        heapq.heappush(self._later, (when, self._count, key))

    def add_limited(self, key: K, now: float) -> float:
        """Add key after its next back-off delay; returns that delay in seconds."""
        delay = self.backoff.next(key)
        self.add_at(key, now + delay)
        self._failed.add(key)
        return delay

    def retry_now(self, now: float) -> None:
        """End all back-off delays now: the cause of the failures may be gone."""
        for key in self._failed & self._due.keys():
            self.forget(key)
            self.add_at(key, now)
        self._failed.clear()

    def forget(self, key: K) -> None:
        """Reset the back-off of key."""
        self.backoff.forget(key)
        self._failed.discard(key)

    def next_due(self) -> float | None:
        """When the next delayed key is due, or None."""
        while self._later and self._due.get(self._later[0][2]) != self._later[0][0]:
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def advance(self, now: float) -> None:
        """Move keys with an expired delay to those that wait."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, key = heapq.heappop(self._later)
            del self._due[key]
            self.add(key)

    def get(self) -> K | None:
        """Take a key to work on, or None. done(key) must follow."""
        if not self._waiting:
            return None
        key = self._waiting.popleft()
        self._queued.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """End the work on key, successful or not."""
        self._working.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
