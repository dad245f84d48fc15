"""How many pods of a kind there are in each place: counted when a pod comes or goes, not when somebody asks.

A place is a value of a node label. The first question about a group of pods costs a look at the kinds of pods there
are; from then on it is a number that is kept. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tonnage.scheduler.framework.pod_terms import Group, Kin, Term

_QUESTIONS = 2048
Domain = Callable[[int], str | None]
"""The place that a node (by slot) is in, None for none."""


class Count:
    """Pods by node and by place. spread: the fewest in any place are known too, places without pods included."""

    def __init__(self, domain: Domain, *, spread: bool = False) -> None:
        self._domain_of, self._spread = domain, spread
        self.total: dict[str, int] = {}
        """Place -> pods; 0 for places without, if those are known."""
        self.on: dict[int, int] = {}
        """Slot -> pods."""
        self._domain: dict[int, str] = {}
        self._nodes: dict[str, int] = {}
        self._levels: dict[int, int] = {}
        self._least = 0

    def add(self, slot: int, change: int) -> None:
        """So many more (or fewer) on a node."""
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
        """The node is new, has changed or is gone."""
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
        """The fewest pods in any place; 0 without places."""
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
    """Pods that are in all of the groups, by the places that `key` names. eligible: the pods' kin whose own nodes are
    counted (topology spread), None for all nodes. alive: without those that are being deleted."""

    groups: tuple[Group, ...]
    key: str
    eligible: tuple[object, ...] | None = None
    alive: bool = False

    def counts(self, kin: Kin, *, alive: bool) -> bool:
        """Whether such pods are meant."""
        return (alive or not self.alive) and all(group.has(kin) for group in self.groups)


class Census:
    """All pods on nodes. domain(key): a function from a node to its value of that label, None for nodes that are not
    there."""

    def __init__(self, domain: Callable[[str], Domain]) -> None:
        self._domain = domain
        self._where: dict[str, tuple[int, Kin, bool]] = {}
        self._slots: dict[tuple[Kin, bool], dict[int, int]] = {}  # kin, alive -> slot -> pods
        self._questions: dict[Question, Count] = {}
        self._counted: dict[tuple[Kin, bool], list[Count]] = {}
        self.foes: dict[Term, Count] = {}
        """Required anti-affinity of pods that are there: how many have it where."""
        self.pulls: dict[Term, Count] = {}
        """Wishes and required affinity of pods that are there: what they weigh where."""
        self.generation = 0
        """Changes when a term was added or nobody has one any more."""

    def place(self, uid: str, slot: int, kin: Kin, *, alive: bool = True) -> bool:
        """Count a pod on a node, or elsewhere than before; whether that changed anything."""
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
        """Stop counting a pod; what it was, None for an unknown one."""
        entry = self._where.pop(uid, None)
        if entry is None:
            return None
        self._count(entry, -1)
        return entry[1]

    def look(self, slot: int) -> None:
        """A node is new, has changed or is gone."""
        for counts in (self._questions, self.foes, self.pulls):
            for count in counts.values():
                count.look(slot)

    def ask(self, question: Question, domain: Domain | None = None, nodes: Sequence[int] | None = None) -> Count:
        """The count that answers a question. domain, nodes: of a spread: the nodes that count, and their places."""
        found = self._questions.get(question)
        if found is not None:
            return found
        if len(self._questions) >= _QUESTIONS:
            self._questions.clear()
            self._counted.clear()
        count = Count(domain or self._domain(question.key), spread=nodes is not None)
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

    def _counters(self, kin: Kin, *, alive: bool) -> list[Count]:
        found = self._counted.get((kin, alive))
        if found is None:
            found = [c for q, c in self._questions.items() if q.counts(kin, alive=alive)]
            self._counted[kin, alive] = found
        return found

    def _hold(self, held: dict[Term, Count], term: Term, slot: int, weight: int) -> None:
        count = held.get(term)
        if count is None:
            count = held[term] = Count(self._domain(term.key))
            self.generation += 1
        count.add(slot, weight)
        if not count.on:
            del held[term]
            self.generation += 1


def _held(kin: Kin) -> Iterator[tuple[Term, int]]:
    """What a pod that is there wants of those that come; what it required counts as the least wish."""
    yield from kin.wishes
    for term in kin.affinity:
        yield term, 1
