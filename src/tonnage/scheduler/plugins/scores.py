"""Scores: picks the best of the nodes that fit.

Source: k/k noderesources (LeastAllocated), nodeaffinity, tainttoleration with their default weights; preferences come
first. Among equals, the node wins whose existing PVs exceed the request least, so that a small claim does not use a
large disk; then the node with most published capacity, so that volumes spread.

If a storage strategy is set, its score replaces LeastAllocated for pods with storage, and LeastAllocated decides
between equals. Preferences have the same weight against either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tonnage.api.taints import tolerates
from tonnage.scheduler.framework.nodes import Columns
from tonnage.scheduler.framework.pod_info import CPU, MEMORY, Ask
from tonnage.scheduler.plugins.storage_scoring import share

_AFFINITY_WEIGHT, _TAINT_WEIGHT = 2, 3
Storage = Callable[[int], int] | Callable[[int], tuple[int, int]]
StorageScore = Callable[[int], float | None]


def best(
    slots: Sequence[int],
    ask: Ask,
    columns: Columns,
    storage: Storage,
    storage_score: StorageScore | None = None,
    neighbours: Iterable[tuple[Sequence[int], int]] = (),
) -> int:
    """Return the index of the best node.

    Among equals by score, the highest storage decides, then the first. slots is not empty. storage_score: 0 to 100,
    decides before cpu and memory; None, or returning None: only they decide. neighbours: more scores of 0 to 100, with
    their weights.
    """
    if len(slots) == 1:
        return slots[0]
    by_storage = _by_storage(slots, storage_score)
    scores = by_storage or least_allocated(slots, ask, columns)
    if ask.preferred:
        _add(scores, _preferred(slots, ask, columns), _AFFINITY_WEIGHT)
    if any(map(columns.soft_taints.__getitem__, slots)):
        _add(scores, _untainted(slots, ask, columns), _TAINT_WEIGHT)
    for more, weight in neighbours:
        for index, score in enumerate(more):
            scores[index] += weight * score
    leaders = _leaders(slots, scores)
    if by_storage and len(leaders) > 1:
        leaders = _leaders(leaders, least_allocated(leaders, ask, columns))
    return max(leaders, key=storage) if len(leaders) > 1 else leaders[0]


def _leaders(slots: Sequence[int], scores: Sequence[float]) -> list[int]:
    top = max(scores)
    return [slot for slot, score in zip(slots, scores, strict=True) if score == top]


def _by_storage(slots: Sequence[int], score: StorageScore | None) -> list[float]:
    """Return storage scores, [] if there is nothing to compare."""
    found = [score(slot) for slot in slots] if score is not None else []
    return [one for one in found if one is not None] if None not in found else []


def least_allocated(slots: Sequence[int], ask: Ask, columns: Columns) -> list[float]:
    """Return 0 to 100 for each node: the free part of cpu and memory."""
    all_cpu, all_memory = columns.allocatable[CPU], columns.allocatable[MEMORY]
    used_cpu, used_memory = columns.scored_cpu, columns.scored_memory
    cpu, memory = ask.demand.scored
    scores: list[float] = []
    for slot in slots:  # without max(), which costs as much as all the rest
        left, has = 0, all_cpu[slot]
        rest = has - used_cpu[slot] - cpu
        if rest > 0 and has > 0:
            left = rest * 100 // has
        has = all_memory[slot]
        rest = has - used_memory[slot] - memory
        if rest > 0 and has > 0:
            left += rest * 100 // has
        scores.append(left // 2)
    return scores


def compute_shares(ask: Ask, columns: Columns) -> Callable[[int], tuple[float, ...]]:
    """Return a function: used parts of a node's free cpu and memory.

    Of the resources that the node has.
    """
    has = (columns.allocatable[CPU], columns.allocatable[MEMORY])
    used = (columns.scored_cpu, columns.scored_memory)

    def shares(slot: int) -> tuple[float, ...]:
        return tuple(
            share((asked, all_[slot] - taken[slot]))
            for all_, taken, asked in zip(has, used, ask.demand.scored, strict=True)
            if all_[slot] > 0
        )

    return shares


def _add(scores: list[float], more: list[int], weight: int) -> None:
    """Add raw scores, scaled to a maximum of 100."""
    top = max(more)
    if top > 0:
        for index, score in enumerate(more):
            scores[index] += weight * (score * 100 // top)


def _preferred(slots: Sequence[int], ask: Ask, columns: Columns) -> list[int]:
    """Return the weights of node affinity terms that match."""
    labels, node_names = columns.labels, columns.names
    return [
        sum(weight for weight, matches in ask.preferred if matches(labels[slot], node_names[slot])) for slot in slots
    ]


def _untainted(slots: Sequence[int], ask: Ask, columns: Columns) -> list[int]:
    """Return scores: higher with fewer PreferNoSchedule taints not tolerated."""
    counts = [sum(not tolerates(ask.tolerations, t) for t in columns.soft_taints[slot]) for slot in slots]
    top = max(counts)
    return [top - count for count in counts]
