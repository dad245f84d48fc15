"""Inter-pod affinity and topology spread: filters, scores, and the counts of pods that both need.

Source: k/k pkg/scheduler/framework/plugins interpodaffinity and podtopologyspread, with their texts. They run before
the volume filter, since they cost less. Default spread constraints of a cluster are not known here. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log

from tonnage.kubernetes.api.taints import tolerates
from tonnage.provisioning.capacity.topology_index import NodeLabels
from tonnage.scheduler.framework.nodes import Columns, tally
from tonnage.scheduler.framework.plugin import Check, CycleState, NodeFilter, Reasons, RejectionCause, Stop
from tonnage.scheduler.framework.pod_info import AffinityTerms, Ask, Spread, Term, TermGroup

SPREAD = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL = f"{SPREAD} (missing required label)"
NEAR = "node(s) didn't match pod affinity rules"
APART = "node(s) didn't match pod anti-affinity rules"
THEIR_APART = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD_WEIGHT, AFFINITY_WEIGHT = 2, 2
_FITS: Reasons = ()
_FEW = 64
_REMEMBERED = 4096


class InterPod:
    """Plugin of inter-pod affinity and topology spread."""

    def __init__(self, columns: Columns, node_labels: NodeLabels, topology_pairs: TopologyPairs) -> None:
        self._columns, self._node_labels, self._topology_pairs = columns, node_labels, topology_pairs
        self._met: dict[AffinityTerms, tuple[list[tuple[str, TopologyCount]], list[tuple[str, TopologyCount]]]] = {}
        self._generation = -1

    # PreFilter

    def shape(self, terms: AffinityTerms) -> bytes | None:
        """Return a key that is equal for pods with the same results.

        None for pods that other pods do not affect.
        """
        return terms.text if terms.asks or self._held(terms)[0] else None

    def pre_filter(self, state: CycleState) -> Stop | None:
        """Find the only possible nodes, if they are in few domains."""
        terms = state.ask.terms
        for term in terms.affinity:
            domains = [domain for domain, pods in self._friends(terms, term.key).total.items() if pods > 0]
            if not domains and terms.is_own_friend:
                state.nodes = None
                return None
            if len(domains) > _FEW:
                continue
            slots = self._columns.slots
            nodes = [slots[name] for value in domains for name in self._node_labels.with_label(term.key, value)]
            if state.nodes is None or len(nodes) < len(state.nodes):
                state.nodes = nodes
        return None

    # Filters

    def filter(self, state: CycleState) -> list[NodeFilter]:
        """Return the pod's filters, in Kubernetes' order."""
        ask, terms, found = state.ask, state.ask.terms, list[Check]()
        if terms.hard:
            found.append(self._spread(ask))
        if terms.affinity:
            found.append(self._near(terms))
        if terms.anti:
            found.append(self._apart([(term.key, self._count(term.group, term.key)) for term in terms.anti], APART))
        if foes := self._held(terms)[0]:
            found.append(self._apart(foes, THEIR_APART))
        return [NodeFilter.one_by_one(RejectionCause.NEIGHBOURS, check) for check in found]

    def _spread(self, ask: Ask) -> Check:
        labels = self._columns.labels
        counted = [(spread, self._evenly(ask, spread, ask.terms.hard)) for spread in ask.terms.hard]
        limits = [(spread.term.key, count.total, _most(spread, count)) for spread, count in counted]

        def check(slot: int) -> Reasons:
            of_node = labels[slot]
            for key, total, most in limits:
                place = of_node.get(key)
                if place is None:
                    return (SPREAD_LABEL,)
                if total.get(place, 0) > most:
                    return (SPREAD,)
            return _FITS

        return check

    def _near(self, terms: AffinityTerms) -> Check:
        labels = self._columns.labels
        counts = [(term.key, self._friends(terms, term.key).total) for term in terms.affinity]
        first = terms.is_own_friend and not any(pods > 0 for _, total in counts for pods in total.values())

        def check(slot: int) -> Reasons:
            of_node = labels[slot]
            for key, total in counts:
                place = of_node.get(key)
                if place is None or (not first and total.get(place, 0) <= 0):
                    return (NEAR,)
            return _FITS

        return check

    def _apart(self, counts: Sequence[tuple[str, TopologyCount]], reason: str) -> Check:
        labels, totals = self._columns.labels, [(key, count.total) for key, count in counts]

        def check(slot: int) -> Reasons:
            of_node = labels[slot]
            for key, total in totals:
                place = of_node.get(key)
                if place is not None and total.get(place, 0) > 0:
                    return (reason,)
            return _FITS

        return check

    # Scores

    def score(self, state: CycleState, slots: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
        """Yield scores where a term attracts the pod, or it is to be spread."""
        ask = state.ask
        if ask.terms.soft:
            yield self._evenness(ask, slots), SPREAD_WEIGHT
        pulls = [(key, count.total, 1) for key, count in self._held(ask.terms)[1]]
        pulls += [(term.key, self._count(term.group, term.key).total, weight) for term, weight in ask.terms.wishes]
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
        labels, soft = self._columns.labels, ask.terms.soft
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

    def _count(self, group: TermGroup, key: str) -> TopologyCount:
        return self._topology_pairs.ask(PairQuery((group,), key))

    def _friends(self, terms: AffinityTerms, key: str) -> TopologyCount:
        """Return the count of pods that match all required affinity terms."""
        return self._topology_pairs.ask(PairQuery(tuple(term.group for term in terms.affinity), key))

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

        query = PairQuery((spread.term.group,), key, (keys, honors_affinity, honors_taints, who), alive=True)
        return self._topology_pairs.ask(query, domain, columns.live)

    def _held(self, terms: AffinityTerms) -> tuple[list[tuple[str, TopologyCount]], list[tuple[str, TopologyCount]]]:
        """Return anti-affinity terms of pods on nodes that match, and their preferred ones."""
        if self._generation != self._topology_pairs.generation or len(self._met) > _REMEMBERED:
            self._met.clear()
            self._generation = self._topology_pairs.generation
        found = self._met.get(terms)
        if found is None:
            foes, pulls = (
                [(term.key, count) for term, count in held.items() if term.group.has(terms)]
                for held in (self._topology_pairs.foes, self._topology_pairs.pulls)
            )
            found = self._met[terms] = foes, pulls
        return found


def _most(spread: Spread, count: TopologyCount) -> int:
    """Return the maximum of pods in a domain for which one more may come."""
    least = count.least() if len(count.total) >= spread.min_domains else 0
    return spread.max_skew + least - spread.own


_QUERIES = 2048
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
        tally(self.on, slot, change)
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
            tally(self._nodes, before, -1)
            if before not in self._nodes:
                self._close(before)
        if after is not None:
            self._enter(slot, after)

    def least(self) -> int:
        """Return the minimum of pods in any domain; 0 without domains."""
        return self._least

    def _enter(self, slot: int, place: str) -> None:
        self._domain[slot] = place
        tally(self._nodes, place, 1)
        if place not in self.total:
            self.total[place] = 0
            tally(self._levels, 0, 1)
            self._least = 0
        self._change(place, self.on.get(slot, 0))

    def _change(self, place: str, change: int) -> None:
        if not change:
            return
        before = self.total[place]
        self.total[place] = after = before + change
        tally(self._levels, after, 1)
        tally(self._levels, before, -1)
        self._relevel(after)

    def _close(self, place: str) -> None:
        tally(self._levels, self.total.pop(place), -1)
        self._relevel(self._least)

    def _relevel(self, seen: int) -> None:
        if seen < self._least:
            self._least = seen
        elif self._least not in self._levels:
            self._least = min(self._levels, default=0)


@dataclass(frozen=True, slots=True)
class PairQuery:
    """Query: pods that match all groups, by domains of `key`.

    eligible: the terms whose eligible nodes are counted (topology spread), None for all nodes. alive: without pods that
    are being deleted.
    """

    groups: tuple[TermGroup, ...]
    key: str
    eligible: tuple[object, ...] | None = None
    alive: bool = False

    def counts(self, terms: AffinityTerms, *, alive: bool) -> bool:
        """Return whether such pods match."""
        return (alive or not self.alive) and all(group.has(terms) for group in self.groups)


class TopologyPairs:
    """Topology pair counts of all pods on nodes."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._where: dict[str, tuple[int, AffinityTerms, bool]] = {}
        self._slots: dict[tuple[AffinityTerms, bool], dict[int, int]] = {}  # terms, alive -> slot -> pods
        self._queries: dict[PairQuery, TopologyCount] = {}
        self._counted: dict[tuple[AffinityTerms, bool], list[TopologyCount]] = {}
        self.foes: dict[Term, TopologyCount] = {}
        """Required anti-affinity terms of pods on nodes: how many, by domain."""
        self.pulls: dict[Term, TopologyCount] = {}
        """Preferred terms and required affinity of pods on nodes: weight, by domain."""
        self.generation = 0
        """Incremented when a term is new, or no pod has it any more."""

    def place(self, uid: str, slot: int, terms: AffinityTerms, *, alive: bool = True) -> bool:
        """Count a pod on a node, or move it; return whether anything changed."""
        entry = (slot, terms, alive)
        old = self._where.get(uid)
        if old == entry:
            return False
        if old is not None:
            self.lift(uid)
        self._where[uid] = entry
        self._count(entry, 1)
        return True

    def lift(self, uid: str) -> AffinityTerms | None:
        """Stop counting a pod; return its terms, None for an unknown one."""
        entry = self._where.pop(uid, None)
        if entry is None:
            return None
        self._count(entry, -1)
        return entry[1]

    def look(self, slot: int) -> None:
        """Update a node that is new, has changed or is gone."""
        for counts in (self._queries, self.foes, self.pulls):
            for count in counts.values():
                count.look(slot)

    def ask(self, query: PairQuery, domain: Domain | None = None, nodes: Sequence[int] | None = None) -> TopologyCount:
        """Return the count for a query.

        domain, nodes: for a spread: the eligible nodes, and their domains.
        """
        found = self._queries.get(query)
        if found is not None:
            return found
        if len(self._queries) >= _QUERIES:
            self._queries.clear()
            self._counted.clear()
        count = TopologyCount(domain or self._domain(query.key), spread=nodes is not None)
        for slot in nodes or ():
            count.look(slot)
        for (terms, alive), slots in self._slots.items():
            if query.counts(terms, alive=alive):
                for slot, pods in slots.items():
                    count.add(slot, pods)
                if (known := self._counted.get((terms, alive))) is not None:
                    known.append(count)
        self._queries[query] = count
        return count

    def _domain(self, key: str) -> Domain:
        """Return a function from node index to label value, None for nodes that do not exist."""
        labels, present = self._columns.labels, self._columns.present
        return lambda slot: labels[slot].get(key) if present[slot] else None

    def _count(self, entry: tuple[int, AffinityTerms, bool], sign: int) -> None:
        slot, terms, alive = entry
        slots = self._slots.setdefault((terms, alive), {})
        slots[slot] = slots.get(slot, 0) + sign
        for count in self._counters(terms, alive=alive):
            count.add(slot, sign)
        if not slots[slot]:
            del slots[slot]
        if not slots:
            del self._slots[terms, alive]
            self._counted.pop((terms, alive), None)
        for term, weight in _held(terms):
            self._hold(self.pulls, term, slot, sign * weight)
        for term in terms.anti:
            self._hold(self.foes, term, slot, sign)

    def _counters(self, terms: AffinityTerms, *, alive: bool) -> list[TopologyCount]:
        found = self._counted.get((terms, alive))
        if found is None:
            found = [c for q, c in self._queries.items() if q.counts(terms, alive=alive)]
            self._counted[terms, alive] = found
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


def _held(terms: AffinityTerms) -> Iterator[tuple[Term, int]]:
    """Return the terms by which a pod on a node attracts others.

    A required term counts as a preferred one of minimum weight.
    """
    yield from terms.wishes
    for term in terms.affinity:
        yield term, 1
