"""Assumed claims: capacity that claims have on nodes and that is not yet in the published numbers. Sans-I/O.

A published number includes a claim when the object's observed claim version reaches the resourceVersion of the write
that set selected-node; where an object has no such version, when the claim is bound. Each object of a node is compared
on its own, as they are written one after the other. An assumed claim is forgotten when the claim is rescheduled or
gone, or a moment after it was bound.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tonnage.aio.clock import Clock

_SETTLING_SECONDS = 2.0
"""How long after its binding a promise may still wait to be counted: the same number published again says nothing."""


@dataclass
class AssumedClaim:
    """`size` bytes in a room of a node ("": any room of it). version: resourceVersion of the write that sent it."""

    node: str
    room: str
    size: int
    version: int = sys.maxsize
    bound_at: float | None = None


class Promises:
    """Promises by the uid of their claims, summed by node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_claim: dict[str, AssumedClaim] = {}
        self._by_node: dict[str, dict[str, AssumedClaim]] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_claim)

    def __contains__(self, uid: str) -> bool:
        """Whether the claim has one."""
        return uid in self._by_claim

    def book(self, uid: str, promise: AssumedClaim) -> None:
        """Promise; the write that sends the claim may still be under way."""
        self.drop(uid)
        self._by_claim[uid] = promise
        self._by_node.setdefault(promise.node, {})[uid] = promise

    def written(self, uid: str, version: int) -> None:
        """The claim was sent by the write with that resourceVersion."""
        if uid in self._by_claim:
            self._by_claim[uid].version = version

    def bound(self, uid: str) -> None:
        """The claim has its volume. May be repeated."""
        promise = self._by_claim.get(uid)
        if promise is not None and promise.bound_at is None:
            promise.bound_at = self._clock.monotonic()

    def returned(self, uid: str, version: int) -> None:
        """The claim is with no node as of that resourceVersion; older news than our own write say nothing."""
        promise = self._by_claim.get(uid)
        if promise is not None and version > promise.version:
            self.drop(uid)

    def drop(self, uid: str) -> None:
        """Forget the claim. May be repeated."""
        promise = self._by_claim.pop(uid, None)
        if promise is not None:
            on_node = self._by_node[promise.node]
            del on_node[uid]
            if not on_node:
                del self._by_node[promise.node]

    def open(self, node: str, room: str, counted: int | None) -> int:
        """Bytes promised in that room ("": in any) which a number that counts so far does not include."""
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
