"""Inter-pod affinity and topology spread: filters and scores.

Source: k/k pkg/scheduler/framework/plugins interpodaffinity and podtopologyspread, with their texts. They run before
the volume filter, since they cost less. Default spread constraints of a cluster are not known here. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import log

from tonnage.api.taints import tolerates
from tonnage.scheduler.framework.nodes import Columns
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.framework.pod_terms import Kin, Spread, TermGroup
from tonnage.scheduler.framework.topology_counts import Census, Domain, Question, TopologyCount

SPREAD = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL = f"{SPREAD} (missing required label)"
NEAR = "node(s) didn't match pod affinity rules"
APART = "node(s) didn't match pod anti-affinity rules"
THEIR_APART = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD_WEIGHT, AFFINITY_WEIGHT = 2, 2
Check = Callable[[int], tuple[str, ...]]
_FITS: tuple[str, ...] = ()
_FEW = 64
_REMEMBERED = 4096


class Neighbours:
    """Inter-pod affinity and topology spread."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.census = Census(self._domain)
        self._met: dict[Kin, tuple[list[tuple[str, TopologyCount]], list[tuple[str, TopologyCount]]]] = {}
        self._generation = -1

    # Before looking at nodes

    def shape(self, kin: Kin) -> bytes | None:
        """Return a key that is equal for pods with the same results.

        None for pods that other pods do not affect.
        """
        return kin.text if kin.asks or self._held(kin)[0] else None

    def checks(self, ask: Ask) -> list[Check]:
        """Return the pod's filters, in Kubernetes' order."""
        kin = ask.kin
        found: list[Check] = []
        if kin.hard:
            found.append(self._spread(ask))
        if kin.affinity:
            found.append(self._near(kin))
        if kin.anti:
            found.append(self._apart([(term.key, self._count(term.group, term.key)) for term in kin.anti], APART))
        if foes := self._held(kin)[0]:
            found.append(self._apart(foes, THEIR_APART))
        return found

    def candidates(self, ask: Ask) -> list[int] | None:
        """Return the only possible nodes if they are few domains; None: all nodes."""
        best: list[int] | None = None
        for term in ask.kin.affinity:
            places = [place for place, pods in self._friends(ask.kin, term.key).total.items() if pods > 0]
            if not places and ask.kin.is_own_friend:
                return None
            if len(places) > _FEW:
                continue
            slots, present = self._columns.slots, self._columns.present
            nodes = [slots[name] for place in places for name in self._columns.with_label(term.key, place)]
            if best is None or len(nodes) < len(best):
                best = [slot for slot in nodes if present[slot]]
        return best

    def concerns(self, waiting: Kin, other: Kin) -> bool:
        """Return whether a pod that came or went may affect a waiting pod."""
        spreads = any(spread.term.group.has(other) for spread in waiting.hard)
        return (
            spreads
            or any(term.group.has(other) for term in (*waiting.affinity, *waiting.anti))
            or any(term.group.has(waiting) for term in other.anti)
        )

    # Filters

    def _spread(self, ask: Ask) -> Check:
        labels = self._columns.labels
        counted = [(spread, self._evenly(ask, spread, ask.kin.hard)) for spread in ask.kin.hard]
        limits = [(spread.term.key, count.total, _most(spread, count)) for spread, count in counted]

        def check(slot: int) -> tuple[str, ...]:
            of_node = labels[slot]
            for key, total, most in limits:
                place = of_node.get(key)
                if place is None:
                    return (SPREAD_LABEL,)
                if total.get(place, 0) > most:
                    return (SPREAD,)
            return _FITS

        return check

    def _near(self, kin: Kin) -> Check:
        labels = self._columns.labels
        counts = [(term.key, self._friends(kin, term.key).total) for term in kin.affinity]
        first = kin.is_own_friend and not any(pods > 0 for _, total in counts for pods in total.values())

        def check(slot: int) -> tuple[str, ...]:
            of_node = labels[slot]
            for key, total in counts:
                place = of_node.get(key)
                if place is None or (not first and total.get(place, 0) <= 0):
                    return (NEAR,)
            return _FITS

        return check

    def _apart(self, counts: Sequence[tuple[str, TopologyCount]], reason: str) -> Check:
        labels, totals = self._columns.labels, [(key, count.total) for key, count in counts]

        def check(slot: int) -> tuple[str, ...]:
            of_node = labels[slot]
            for key, total in totals:
                place = of_node.get(key)
                if place is not None and total.get(place, 0) > 0:
                    return (reason,)
            return _FITS

        return check

    # Scores

    def scores(self, ask: Ask, slots: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """Yield scores of 0 to 100 for each node, with their weight.

        None if no term attracts the pod.
        """
        if ask.kin.soft:
            yield self._evenness(ask, slots), SPREAD_WEIGHT
        pulls = [(key, count.total, 1) for key, count in self._held(ask.kin)[1]]
        pulls += [(term.key, self._count(term.group, term.key).total, weight) for term, weight in ask.kin.wishes]
        if pulls:
            yield self._attraction(pulls, slots), AFFINITY_WEIGHT

    def _attraction(self, pulls: Sequence[tuple[str, dict[str, int], int]], slots: Sequence[int]) -> list[int]:
        labels, found = self._columns.labels, []
        for slot in slots:
            of_node = labels[slot]
            found.append(sum(total.get(of_node.get(key, ""), 0) * weight for key, total, weight in pulls))
        least, most = min(found), max(found)
        return [100 * (one - least) // (most - least) if most > least else 0 for one in found]

    def _evenness(self, ask: Ask, slots: Sequence[int]) -> list[int]:
        """Return scores that are higher where fewer pods are.

        The more domains, the more a domain counts.
        """
        labels, soft = self._columns.labels, ask.kin.soft
        counted = [slot for slot in slots if all(spread.term.key in labels[slot] for spread in soft)]
        sums = dict.fromkeys(counted, 0.0)
        for spread in soft:
            key, total = spread.term.key, self._evenly(ask, spread, soft).total
            weight = log(len({labels[slot][key] for slot in counted}) + 2)
            for slot in counted:
                sums[slot] += total.get(labels[slot][key], 0) * weight + spread.max_skew - 1
        rounded = {slot: round(one) for slot, one in sums.items()}
        least, most = min(rounded.values(), default=0), max(rounded.values(), default=0)
        return [
            (100 * (most + least - rounded[slot]) // most if most else 100) if slot in rounded else 0 for slot in slots
        ]

    # Counts

    def _domain(self, key: str) -> Domain:
        labels, present = self._columns.labels, self._columns.present
        return lambda slot: labels[slot].get(key) if present[slot] else None

    def _count(self, group: TermGroup, key: str) -> TopologyCount:
        return self.census.ask(Question((group,), key))

    def _friends(self, kin: Kin, key: str) -> TopologyCount:
        """Return the count of pods that match all required affinity terms."""
        return self.census.ask(Question(tuple(term.group for term in kin.affinity), key))

    def _evenly(self, ask: Ask, spread: Spread, among: Sequence[Spread]) -> TopologyCount:
        """Return a constraint's count on eligible nodes.

        Those with all its labels, which the pod's node affinity allows.
        """
        keys = tuple(sorted({one.term.key for one in among}))
        honors_affinity, honors_taints = spread.honors_affinity and bool(ask.required), spread.honors_taints
        who = ask.shape[1] if honors_affinity or honors_taints else b""
        columns, key = self._columns, spread.term.key

        def domain(slot: int) -> str | None:
            labels = columns.labels[slot]
            if not columns.present[slot] or any(one not in labels for one in keys):
                return None
            if honors_affinity and not all(matches(labels, columns.names[slot]) for matches in ask.required):
                return None
            if honors_taints and not all(tolerates(ask.tolerations, taint) for taint in columns.taints[slot]):
                return None
            return labels[key]

        question = Question((spread.term.group,), key, (keys, honors_affinity, honors_taints, who), alive=True)
        return self.census.ask(question, domain, columns.live)

    def _held(self, kin: Kin) -> tuple[list[tuple[str, TopologyCount]], list[tuple[str, TopologyCount]]]:
        """Return anti-affinity terms of pods on nodes that match, and their preferred ones."""
        if self._generation != self.census.generation or len(self._met) > _REMEMBERED:
            self._met.clear()
            self._generation = self.census.generation
        found = self._met.get(kin)
        if found is None:
            foes, pulls = (
                [(term.key, count) for term, count in held.items() if term.group.has(kin)]
                for held in (self.census.foes, self.census.pulls)
            )
            found = self._met[kin] = foes, pulls
        return found


def _most(spread: Spread, count: TopologyCount) -> int:
    """Return the maximum of pods in a domain for which one more may come."""
    least = count.least() if len(count.total) >= spread.min_domains else 0
    return spread.max_skew + least - spread.own
