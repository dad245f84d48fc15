"""Fit of all claims of a pod on a node; a class may have several pools.

Pure. Each claim goes to the pool with most free bytes: fast, and exact where each class has one pool. Where that fails
although there is a choice, all choices are tried, up to a limit for pods with many claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tonnage.provisioning.capacity.published import NO_BOUND, PublishedCapacity

Offers = Mapping[str, tuple[PublishedCapacity, ...]]
Needs = Sequence[tuple[str, int]]
MOST_CLAIMS = 8
MOST_STEPS = 2000
"""Maximum choices for one pod on one node: less than a millisecond."""


def allot(offers: Offers, wanted: Needs) -> list[tuple[int, int]] | None:
    """Find capacity for all claims in a node's offers, or return None.

    wanted: (class, bytes), largest first. Returns for each used pool its bytes used, and its free bytes before.
    """
    chosen = _choose(offers, wanted)
    if chosen is None:
        return None
    taken: dict[object, int] = {}
    pools: dict[object, int] = {}
    for offer, (_, size) in zip(chosen, wanted, strict=True):
        taken[offer.pool_key] = taken.get(offer.pool_key, 0) + size
        pools[offer.pool_key] = min(offer.left, pools.get(offer.pool_key, NO_BOUND))
    return [(size, pools[pool_key]) for pool_key, size in taken.items()]


def fit_together(offers: Offers, wanted: Needs) -> bool:
    """Return whether all claims fit a node's offers.

    wanted: (class, bytes), largest first.
    """
    return _choose(offers, wanted) is not None


def _choose(offers: Offers, wanted: Needs) -> list[PublishedCapacity] | None:
    """Return an offer for each claim, or None."""
    chosen = _greedy(offers, wanted)
    return _Search(offers, wanted).run() if chosen is None else chosen


def _greedy(offers: Offers, wanted: Needs) -> list[PublishedCapacity] | None:
    taken: dict[object, int] = {}
    chosen = []
    for storage_class, size in wanted:
        best: PublishedCapacity | None = None
        most = -1
        for offer in offers.get(storage_class, ()):
            left = offer.left - taken.get(offer.pool_key, 0)
            if size <= offer.largest and size <= left > most:
                best, most = offer, left
        if best is None:
            return None
        taken[best.pool_key] = taken.get(best.pool_key, 0) + size
        chosen.append(best)
    return chosen


class _Search:
    """Tries the choices in order, up to a limit."""

    def __init__(self, offers: Offers, wanted: Needs) -> None:
        self._wanted = wanted
        self._choices = [offers.get(storage_class, ()) for storage_class, _ in wanted]
        self._taken: dict[object, int] = {}
        self._chosen: list[int] = []
        self._steps = 0

    def run(self) -> list[PublishedCapacity] | None:
        """Return an offer for each claim, or None."""
        is_choice = any(len(choice) > 1 for choice in self._choices)
        if not is_choice or len(self._wanted) > MOST_CLAIMS or not self._remaining_fit():
            return None
        return [choice[n] for choice, n in zip(self._choices, self._chosen, strict=True)]

    def _remaining_fit(self) -> bool:
        """Return whether the remaining claims fit besides the chosen ones."""
        at = len(self._chosen)
        if at == len(self._wanted):
            return True
        size = self._wanted[at][1]
        # Of equal claims, the second need not try what the first has tried.
        first = self._chosen[-1] if at and self._wanted[at - 1] == self._wanted[at] else 0
        for n, offer in enumerate(self._choices[at][first:], first):
            if size > offer.largest or size > offer.left - self._taken.get(offer.pool_key, 0):
                continue
            self._steps += 1
            if self._steps > MOST_STEPS:
                return False
            self._taken[offer.pool_key] = self._taken.get(offer.pool_key, 0) + size
            self._chosen.append(n)
            if self._remaining_fit():
                return True
            self._chosen.pop()
            self._taken[offer.pool_key] -= size
        return False
