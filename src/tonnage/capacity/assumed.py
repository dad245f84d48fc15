"""Assumed claims, not yet included in published capacity. Sans-I/O.

Published capacity includes a claim when the object's observed claim version reaches the resourceVersion of the write
that set selected-node. Objects without that annotation include it when the claim is bound. Each object of a node is
compared by itself, since they are written one after the other. An assumed claim is forgotten when it is rescheduled or
gone, or shortly after it was bound.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tonnage.aio.clock import Clock

_SETTLING_SECONDS = 2.0
"""Seconds that a bound claim stays assumed.

Its published number may be the same as before, so no event shows that it is included."""


@dataclass
class AssumedClaim:
    """`size` bytes in a pool of a node ("": any pool of it).

    version: resourceVersion of the write that set selected-node.
    """

    node: str
    room: str
    size: int
    version: int = sys.maxsize
    bound_at: float | None = None


class Promises:
    """Assumed claims by uid, summed by node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_claim: dict[str, AssumedClaim] = {}
        self._by_node: dict[str, dict[str, AssumedClaim]] = {}

    def __len__(self) -> int:
        """Return how many claims are assumed."""
        return len(self._by_claim)

    def __contains__(self, uid: str) -> bool:
        """Return whether the claim is assumed."""
        return uid in self._by_claim

    def book(self, uid: str, promise: AssumedClaim) -> None:
        """Assume a claim; the write of selected-node may still be under way."""
        self.drop(uid)
        self._by_claim[uid] = promise
        self._by_node.setdefault(promise.node, {})[uid] = promise

    def written(self, uid: str, version: int) -> None:
        """Record the resourceVersion of the write of selected-node."""
        if uid in self._by_claim:
            self._by_claim[uid].version = version

    def bound(self, uid: str) -> None:
        """Record that the claim has its volume. Idempotent."""
        promise = self._by_claim.get(uid)
        if promise is not None and promise.bound_at is None:
            promise.bound_at = self._clock.monotonic()

    def returned(self, uid: str, version: int) -> None:
        """Record that the claim has no node as of that resourceVersion.

        A version older than our own write is ignored.
        """
        promise = self._by_claim.get(uid)
        if promise is not None and version > promise.version:
            self.drop(uid)

    def drop(self, uid: str) -> None:
        """Forget the claim. Idempotent."""
        promise = self._by_claim.pop(uid, None)
        if promise is not None:
            on_node = self._by_node[promise.node]
            del on_node[uid]
            if not on_node:
                del self._by_node[promise.node]

    def open(self, node: str, room: str, counted: int | None) -> int:
        """Return assumed bytes that a pool's published number does not include.

        room "": of any pool. counted: the observed claim version of the number.
        """
        total = 0
        for uid, promise in list(self._by_node.get(node, {}).items()):
            if room and promise.room not in ("", room):
                continue
            if self._is_settled(promise, counted):
                self.drop(uid)
            elif counted is None or counted < promise.version:
                total += promise.size
        return total

    def _is_settled(self, promise: AssumedClaim, counted: int | None) -> bool:
        if promise.bound_at is None:
            return False
        return counted is None or self._clock.monotonic() - promise.bound_at > _SETTLING_SECONDS
