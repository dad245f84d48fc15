"""Storage capacity scoring of nodes that a pod with volumes fits.

Source: k/k volumebinding/scorer.go and KEP-4049 (Storage Capacity Scoring). For each class, the requested part of the
node's capacity is turned into a score by a shape; the result is the mean over classes. Two differences: claims whose
classes share a pool count together, since they use the same bytes, and reserved capacity does not count. An existing PV
always scores higher the less it exceeds the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import sqrt

Take = tuple[int, int]
"""Bytes that a pod uses, and the bytes of the pool."""


Shares = Callable[[int], Sequence[float]]
"""Returns the used parts of a node's free cpu and memory, by node index."""


class ScoringStrategy(StrEnum):
    """Scoring strategy of the scheduler."""

    LEAST_ALLOCATED = "least-allocated"
    """Most free cpu and memory; storage decides between equals."""
    MOST_FREE = "most-free"
    """Smallest part of the free storage used: volumes spread."""
    TIGHTEST_FIT = "tightest-fit"
    """Largest part of the free storage used: other nodes keep capacity for large volumes."""
    BALANCED = "balanced"
    """Most equal parts of cpu, memory and storage used: none is left over without the others."""


def share(take: Take) -> float:
    """Return the used part, 0 to 1; 1 where the pool has nothing."""
    taken, available = take
    return min(1.0, taken / available) if available > 0 else 1.0


def storage_score(
    strategy: ScoringStrategy, pools: Sequence[Take], found: Sequence[Take], compute: Sequence[float]
) -> float | None:
    """Return 0 to 100 for one node, higher is better; None without storage.

    pools: of each pool for new volumes. found: requested bytes and size of each existing PV. compute: used parts of the
    node's free cpu and memory.
    """
    if strategy is ScoringStrategy.LEAST_ALLOCATED or not (pools or found):
        return None
    scores = [100.0 * share(take) for take in found]
    for taken in map(share, pools):
        if strategy is ScoringStrategy.MOST_FREE:
            scores.append(100.0 * (1 - taken))
        elif strategy is ScoringStrategy.TIGHTEST_FIT:
            scores.append(100.0 * taken)
        else:
            scores.append(100.0 * (1 - 2 * _deviation((*compute, taken))))
    return sum(scores) / len(scores)


def _deviation(parts: Sequence[float]) -> float:
    """Return the standard deviation; at most 0.5 for parts between 0 and 1.

    The statistics module would cost a box megabytes.
    """
    mean = sum(parts) / len(parts)
    return sqrt(sum((part - mean) ** 2 for part in parts) / len(parts))
