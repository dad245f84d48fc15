"""Counts matching pods per topology domain, updated incrementally.

A domain is a value of a node label. The first query for a group of pods iterates over all kinds of pods; from then on
the count is updated with each pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tonnage.scheduler.framework.pod_terms import Kin, Term, TermGroup

_QUESTIONS = 2048
Domain = Callable[[int], str | None]
"""Returns the topology domain of a node, by node index, None for none."""


class TopologyCount:
    """Pods by node and by domain.

    spread: whether the minimum over domains is tracked too, including domains without pods.
    """

    def __init__(self, domain: Domain, *, spread: bool = False) -> None:
        self._domain_of, self._spread = domain, spread
        self.total: dict[str, int] = {}
        """Domain -> pods; 0 for empty domains, if those are known."""
        self.on: dict[int, int] = {}
        """Node index -> pods."""
        self._domain: dict[int, str] = {}
        self._nodes: dict[str, int] = {}
        self._levels: dict[int, int] = {}
        self._least = 0

    def add(self, slot: int, change: int) -> None:
        """Add a number of pods (or subtract) on a node."""
        left = self.on.get(slot, 0) + change
        if left:
            self.on[slot] = left
        else:
            self.on.pop(slot, None)
        place = self._domain.get(slot)
        if place is None and not self._spread and (place := self._domain_of(slot)) is not None:
            self._enter(slot, place)
        elif place is not None:
            self._change(place, change)

    def look(self, slot: int) -> None:
        """Update a node that is new, has changed or is gone."""
        before, after = self._domain.get(slot), self._domain_of(slot)
        if before == after or (before is None and not self._spread and slot not in self.on):
            return
        if before is not None:
            del self._domain[slot]
            self._change(before, -self.on.get(slot, 0))
            self._nodes[before] -= 1
            if not self._nodes[before]:
                del self._nodes[before]
                self._close(before)
        if after is not None:
            self._enter(slot, after)

    def least(self) -> int:
        """Return the minimum of pods in any domain; 0 without domains."""
        return self._least

    def _enter(self, slot: int, place: str) -> None:
        self._domain[slot] = place
        self._nodes[place] = self._nodes.get(place, 0) + 1
        if place not in self.total:
            self.total[place] = 0
            self._level(0, 1)
            self._least = 0
        self._change(place, self.on.get(slot, 0))

    def _change(self, place: str, change: int) -> None:
        if not change:
            return
        before = self.total[place]
        self.total[place] = after = before + change
        self._level(after, 1)
        self._level(before, -1)
        self._relevel(after)

    def _close(self, place: str) -> None:
        self._level(self.total.pop(place), -1)
        self._relevel(self._least)

    def _level(self, level: int, change: int) -> None:
        left = self._levels.get(level, 0) + change
        if left:
            self._levels[level] = left
        else:
            del self._levels[level]

    def _relevel(self, seen: int) -> None:
        if seen < self._least:
            self._least = seen
        elif self._least not in self._levels:
            self._least = min(self._levels, default=0)


@dataclass(frozen=True, slots=True)
class Question:
    """Query: pods that match all groups, by domains of `key`.

    eligible: the kin whose eligible nodes are counted (topology spread), None for all nodes. alive: without pods that
    are being deleted.
    """

    groups: tuple[TermGroup, ...]
    key: str
    eligible: tuple[object, ...] | None = None
    alive: bool = False

    def counts(self, kin: Kin, *, alive: bool) -> bool:
        """Return whether such pods match."""
        return (alive or not self.alive) and all(group.has(kin) for group in self.groups)


class Census:
    """Topology pair counts of all pods on nodes.

    domain(key): returns a function from node index to label value, None for nodes that do not exist.
    """

    def __init__(self, domain: Callable[[str], Domain]) -> None:
        self._domain = domain
        self._where: dict[str, tuple[int, Kin, bool]] = {}
        self._slots: dict[tuple[Kin, bool], dict[int, int]] = {}  # kin, alive -> slot -> pods
        self._questions: dict[Question, TopologyCount] = {}
        self._counted: dict[tuple[Kin, bool], list[TopologyCount]] = {}
        self.foes: dict[Term, TopologyCount] = {}
        """Required anti-affinity terms of pods on nodes: how many, by domain."""
        self.pulls: dict[Term, TopologyCount] = {}
        """Preferred terms and required affinity of pods on nodes: weight, by domain."""
        self.generation = 0
        """Incremented when a term is new, or no pod has it any more."""

    def place(self, uid: str, slot: int, kin: Kin, *, alive: bool = True) -> bool:
        """Count a pod on a node, or move it; return whether anything changed."""
        entry = (slot, kin, alive)
        old = self._where.get(uid)
        if old == entry:
            return False
        if old is not None:
            self.lift(uid)
        self._where[uid] = entry
        self._count(entry, 1)
        return True

    def lift(self, uid: str) -> Kin | None:
        """Stop counting a pod; return its terms, None for an unknown one."""
        entry = self._where.pop(uid, None)
        if entry is None:
            return None
        self._count(entry, -1)
        return entry[1]

    def look(self, slot: int) -> None:
        """Update a node that is new, has changed or is gone."""
        for counts in (self._questions, self.foes, self.pulls):
            for count in counts.values():
                count.look(slot)

    def ask(
        self, question: Question, domain: Domain | None = None, nodes: Sequence[int] | None = None
    ) -> TopologyCount:
        """Return the count for a query.

        domain, nodes: for a spread: the eligible nodes, and their domains.
        """
        found = self._questions.get(question)
        if found is not None:
            return found
        if len(self._questions) >= _QUESTIONS:
            self._questions.clear()
            self._counted.clear()
        count = TopologyCount(domain or self._domain(question.key), spread=nodes is not None)
        for slot in nodes or ():
            count.look(slot)
        for (kin, alive), slots in self._slots.items():
            if question.counts(kin, alive=alive):
                for slot, pods in slots.items():
                    count.add(slot, pods)
                if (known := self._counted.get((kin, alive))) is not None:
                    known.append(count)
        self._questions[question] = count
        return count

    def _count(self, entry: tuple[int, Kin, bool], sign: int) -> None:
        slot, kin, alive = entry
        slots = self._slots.setdefault((kin, alive), {})
        slots[slot] = slots.get(slot, 0) + sign
        for count in self._counters(kin, alive=alive):
            count.add(slot, sign)
        if not slots[slot]:
            del slots[slot]
        if not slots:
            del self._slots[kin, alive]
            self._counted.pop((kin, alive), None)
        for term, weight in _held(kin):
            self._hold(self.pulls, term, slot, sign * weight)
        for term in kin.anti:
            self._hold(self.foes, term, slot, sign)

    def _counters(self, kin: Kin, *, alive: bool) -> list[TopologyCount]:
        found = self._counted.get((kin, alive))
        if found is None:
            found = [c for q, c in self._questions.items() if q.counts(kin, alive=alive)]
            self._counted[kin, alive] = found
        return found

    def _hold(self, held: dict[Term, TopologyCount], term: Term, slot: int, weight: int) -> None:
        count = held.get(term)
        if count is None:
            count = held[term] = TopologyCount(self._domain(term.key))
            self.generation += 1
        count.add(slot, weight)
        if not count.on:
            del held[term]
            self.generation += 1


def _held(kin: Kin) -> Iterator[tuple[Term, int]]:
    """Return the terms by which a pod on a node attracts others.

    A required term counts as a preferred one of minimum weight.
    """
    yield from kin.wishes
    for term in kin.affinity:
        yield term, 1
