"""By what nodes are compared that a pod with volumes fits: how much of the published room its claims would take there.

Source: k/k volumebinding/scorer.go and KEP-4049 (Storage Capacity Scoring): for each class, what is asked as a part of
the capacity that the class has on the node, turned into a score by a shape; the mean over classes. Two differences:
claims whose classes share a pool count together, as they take the same bytes, and what is promised but not yet
published is no capacity. A volume that is there already is the better the less larger it is than asked: always.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import sqrt

Take = tuple[int, int]
"""Bytes that a pod takes, and the bytes that there are to take from."""


class Strategy(StrEnum):
    """How the node is chosen of those that fit."""

    LEAST_ALLOCATED = "least-allocated"
    """Most cpu and memory left; storage decides between equals."""
    MOST_FREE = "most-free"
    """The least part of the free storage taken: volumes spread."""
    TIGHTEST_FIT = "tightest-fit"
    """The largest part of the free storage taken: room for large volumes stays elsewhere."""
    BALANCED = "balanced"
    """The parts taken of free cpu, memory and storage most alike: none is left over without the others."""


def share(take: Take) -> float:
    """The part that is taken, 0 to 1; all of it where there is nothing."""
    taken, room = take
    return min(1.0, taken / room) if room > 0 else 1.0


def storage_score(
    strategy: Strategy, rooms: Sequence[Take], found: Sequence[Take], compute: Sequence[float]
) -> float | None:
    """0 to 100 for one node, the more the better; None where no storage is taken that could be compared.

    rooms: of each pool that volumes are made in. found: of each volume that is there already, asked and size.
    compute: the parts that the pod takes of the node's free cpu and memory.
    """
    if strategy is Strategy.LEAST_ALLOCATED or not (rooms or found):
        return None
    scores = [100.0 * share(take) for take in found]
    for taken in map(share, rooms):
        if strategy is Strategy.MOST_FREE:
            scores.append(100.0 * (1 - taken))
        elif strategy is Strategy.TIGHTEST_FIT:
            scores.append(100.0 * taken)
        else:
            scores.append(100.0 * (1 - 2 * _deviation((*compute, taken))))
    return sum(scores) / len(scores)


def _deviation(parts: Sequence[float]) -> float:
    """Standard deviation; of parts between 0 and 1 at most a half. (The module statistics costs a box megabytes.)"""
    mean = sum(parts) / len(parts)
    return sqrt(sum((part - mean) ** 2 for part in parts) / len(parts))
