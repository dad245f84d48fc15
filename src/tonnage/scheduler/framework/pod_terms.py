"""Affinity and spread terms of pods, compiled once. Sans-I/O.

Source: k/k pkg/scheduler/framework (AffinityTerm) and plugins/podtopologyspread/common.go. A namespaceSelector that
selects some namespaces by label is not supported and is rejected by name. On a pod of another scheduler it counts as
all namespaces, so that its anti-affinity is never violated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from tonnage.api.affinity import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from tonnage.api.decode import convert
from tonnage.api.meta import LabelSelector
from tonnage.api.pods import Pod
from tonnage.api.selectors import Requirement, Selector, from_label_selector
from tonnage.errors import Invalid

_SOFT = "ScheduleAnyway"


@dataclass(frozen=True, slots=True)
class TermGroup:
    """Pods by labels and namespace.

    namespaces None: all. selector None: no pod.
    """

    selector: Selector | None
    namespaces: frozenset[str] | None

    def has(self, kin: Kin) -> bool:
        """Return whether such a pod matches."""
        if self.selector is None or (self.namespaces is not None and kin.namespace not in self.namespaces):
            return False
        return self.selector.matches(kin.labels)


@dataclass(frozen=True, slots=True)
class Term:
    """A term group, and the topology key."""

    group: TermGroup
    key: str


@dataclass(frozen=True, slots=True)
class Spread:
    """A topologySpreadConstraint.

    own: whether the pod matches its own selector.
    """

    term: Term
    max_skew: int
    min_domains: int
    honors_affinity: bool
    honors_taints: bool
    own: bool


@dataclass(frozen=True, slots=True, eq=False)
class Kin:
    """Affinity terms of equal pods; `text` contains all of them.

    wishes: preferred terms with their weight, negative for anti-affinity.
    """

    text: bytes
    namespace: str
    labels: Mapping[str, str]
    affinity: tuple[Term, ...] = ()
    anti: tuple[Term, ...] = ()
    wishes: tuple[tuple[Term, int], ...] = ()
    hard: tuple[Spread, ...] = ()
    soft: tuple[Spread, ...] = ()
    unsupported: str = ""
    asks: bool = field(default=False)
    """Whether it has any term."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kin) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_own_friend(self) -> bool:
        """Return whether the pod matches its own required affinity."""
        return all(term.group.has(self) for term in self.affinity)


def kin_of(pod: Pod) -> Kin:
    """Compile a pod's terms, and what other pods' terms match.

    Raises: Invalid for an invalid selector.
    """
    spec, labels = pod.spec, pod.metadata.labels
    affinity = spec.affinity
    near = affinity.pod_affinity if affinity is not None else None
    far = affinity.pod_anti_affinity if affinity is not None else None
    if not near and not far and not spec.topology_spread_constraints:
        return Kin(
            msgspec.json.encode((pod.metadata.namespace, labels), order="sorted"), pod.metadata.namespace, labels
        )
    nodes: tuple[object, ...] = ()
    if spec.topology_spread_constraints:  # the counted nodes depend on these
        nodes = (spec.node_selector, affinity.node_affinity if affinity is not None else None, spec.tolerations)
    wants = (near, far, spec.topology_spread_constraints, nodes)
    return _compile(msgspec.json.encode((pod.metadata.namespace, labels, *wants), order="sorted"))


@lru_cache(maxsize=4096)
def _compile(text: bytes) -> Kin:
    namespace, labels, near, far, spread, _ = msgspec.json.decode(text)
    try:
        friends, foes = (convert(raw or {}, PodAffinity) for raw in (near, far))
        constraints = convert(spread, list[TopologySpreadConstraint])
    except msgspec.ValidationError as failure:
        raise Invalid(f"spec.affinity or spec.topologySpreadConstraints: {failure}") from None
    required = friends.required_during_scheduling_ignored_during_execution
    forbidden = foes.required_during_scheduling_ignored_during_execution
    liked = friends.preferred_during_scheduling_ignored_during_execution
    disliked = foes.preferred_during_scheduling_ignored_during_execution
    weighted = [(w.pod_affinity_term, w.weight) for w in liked] + [(w.pod_affinity_term, -w.weight) for w in disliked]
    me = Kin(text, namespace, labels)
    spreads = [(c.when_unsatisfiable == _SOFT, _spread(c, me)) for c in constraints]
    return Kin(
        text,
        namespace,
        labels,
        tuple(_term(term, me) for term in required),
        tuple(_term(term, me) for term in forbidden),
        tuple((_term(term, me), weight) for term, weight in weighted),
        tuple(found for is_soft, found in spreads if not is_soft),
        tuple(found for is_soft, found in spreads if is_soft),
        _unsupported((*required, *forbidden, *(term for term, _ in weighted))),
        True,
    )


def _term(term: PodAffinityTerm, me: Kin) -> Term:
    namespaces: frozenset[str] | None = frozenset(term.namespaces or (me.namespace,))
    if term.namespace_selector is not None:
        namespaces = None
    selector = _selector(term.label_selector, term.match_label_keys, term.mismatch_label_keys, me)
    return Term(TermGroup(selector, namespaces), term.topology_key)


def _spread(constraint: TopologySpreadConstraint, me: Kin) -> Spread:
    selector = _selector(constraint.label_selector, constraint.match_label_keys, (), me)
    group = TermGroup(selector, frozenset((me.namespace,)))
    return Spread(
        Term(group, constraint.topology_key),
        constraint.max_skew,
        constraint.min_domains or 1,
        constraint.node_affinity_policy == "Honor",
        constraint.node_taints_policy == "Honor",
        group.has(me),
    )


def _selector(found: LabelSelector | None, same: Iterable[str], other: Iterable[str], me: Kin) -> Selector | None:
    """Return the selector with matchLabelKeys and mismatchLabelKeys.

    No selector matches nothing.
    """
    if found is None:
        return None
    more = [Requirement(key, "In", (me.labels[key],)) for key in same if key in me.labels]
    more += [Requirement(key, "NotIn", (me.labels[key],)) for key in other if key in me.labels]
    return Selector((*from_label_selector(found).requirements, *more))


def _unsupported(terms: Iterable[PodAffinityTerm]) -> str:
    some: list[Any] = [t.namespace_selector for t in terms if t.namespace_selector not in (None, LabelSelector())]
    return "namespaceSelector of pod affinity terms (other than {})" if some else ""
