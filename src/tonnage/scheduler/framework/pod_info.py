"""Pod requirements, compiled once and matched often.

Source: k/k pkg/scheduler/framework (PodInfo), component-helpers resource (PodRequests). Amounts are milli for cpu and
whole units otherwise. What is not supported is rejected by name, see `unsupported`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.affinity import PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from tonnage.kubernetes.api.core import NodeSelector
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.meta import LabelSelector
from tonnage.kubernetes.api.pods import Container, Pod, Toleration, Volume, claim_name
from tonnage.kubernetes.api.quantity import Quantity, to_bytes
from tonnage.kubernetes.api.selectors import (
    NodeMatcher,
    Requirement,
    Selector,
    from_label_selector,
    node_matcher,
    term_matcher,
)

CPU, MEMORY, PODS = "cpu", "memory", "pods"
UNSUPPORTED = "not supported by this scheduler"
_SCORED_CPU, _SCORED_MEMORY = 100, 200 * 1024**2  # of a container without requests, in scores
Amounts = dict[str, int]
Port = tuple[str, str, int]
UsedVolume = tuple[str, str]
"""(driver, claim key): a volume that counts against a node's limit.

The claim identifies the volume before it exists."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Resources of a pod.

    scored: cpu and memory, with defaults for containers without requests. inline: bytes for its inline volumes that
    published capacity does not include.
    """

    requests: tuple[tuple[str, int], ...] = ((PODS, 1),)
    ports: tuple[Port, ...] = ()
    scored: tuple[int, int] = (0, 0)
    inline: tuple[InlineUse, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A claim of a pod: its `namespace/name`, and whether it is ephemeral."""

    key: str
    name: str
    ephemeral: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod in the scheduling cycle.

    shape: equal for pods to which any node answers the same, without volumes.
    """

    pod: Pod
    demand: Demand
    required: tuple[NodeMatcher, ...]
    preferred: tuple[tuple[int, NodeMatcher], ...]
    tolerations: tuple[Toleration, ...]
    claims: tuple[ClaimUse, ...]
    unsupported: str
    shape: tuple[Demand, bytes]
    terms: AffinityTerms


def compile_ask(pod: Pod) -> Ask:
    """Compile a pod. Raises: InvalidError for an invalid quantity or selector."""
    spec = pod.spec
    node_affinity = spec.affinity.node_affinity if spec.affinity else None
    demand, terms = compile_demand(pod), compile_affinity(pod)
    placement = msgspec.json.encode((spec.node_selector, node_affinity, spec.tolerations))
    required = []
    if spec.node_selector:
        required.append(_equals(tuple(sorted(spec.node_selector.items()))))
    if node_affinity is not None and node_affinity.required is not None:
        required.append(_matcher(msgspec.json.encode(node_affinity.required)))
    preferred = node_affinity.preferred if node_affinity is not None else ()
    return Ask(
        pod,
        demand,
        tuple(required),
        tuple((p.weight, term_matcher(p.preference)) for p in preferred),
        tuple(spec.tolerations),
        claim_uses(pod),
        _unsupported(pod, terms),
        (demand, placement),
        terms,
    )


def claim_uses(pod: Pod) -> tuple[ClaimUse, ...]:
    """Return the claims of a pod, each once, in the order of its volumes."""
    namespace, uses = pod.metadata.namespace, {}
    for volume in pod.spec.volumes:
        if name := claim_name(pod.metadata.name, volume):
            uses[name] = ClaimUse(f"{namespace}/{name}", name, volume.ephemeral is not None)
    return tuple(uses.values())


def compile_demand(pod: Pod) -> Demand:
    """Return the resources of a pod. Raises: InvalidError for an invalid quantity."""
    spec = pod.spec
    containers = (*spec.containers, *spec.init_containers)
    amounts = [_amounts(container) for container in spec.containers]
    scored = (_scored(amounts, CPU, _SCORED_CPU), _scored(amounts, MEMORY, _SCORED_MEMORY))
    ports = sorted({(p.protocol, p.host_ip, p.host_port) for c in containers for p in c.ports if p.host_port})
    return Demand((*sorted(_requests(pod, amounts).items()), (PODS, 1)), tuple(ports), scored, inline_uses(pod))


def _requests(pod: Pod, amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of containers, or the maximum during initialization.

    Sidecars count in both.
    """
    total: Amounts = {}
    for own in amounts:
        _add(total, own)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers:
        own = _amounts(container)
        # Other resources are at their maximum already: only sidecars are added.
        for resource, amount in own.items():
            moment = sidecars.get(resource, 0) + amount
            peak[resource] = max(peak.get(resource, 0), moment)
            if container.restart_policy == "Always":
                sidecars[resource] = moment
        if container.restart_policy == "Always":
            _add(total, own)
    for resource, amount in peak.items():
        total[resource] = max(total.get(resource, 0), amount)
    for resource in (CPU, MEMORY):  # requests of the whole pod replace those of its containers
        if text := pod.spec.resources.requests.get(resource):
            total[resource] = amount_of(resource, text)
    _add(total, amounts_of(pod.spec.overhead))
    return {resource: amount for resource, amount in total.items() if amount > 0}


def _amounts(container: Container) -> Amounts:
    resources = container.resources
    if not resources.requests and not resources.limits:
        return {}
    return amounts_of({**resources.limits, **resources.requests})


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount


def _scored(amounts: Iterable[Amounts], resource: str, default: int) -> int:
    return sum(own.get(resource, default) for own in amounts)


def amounts_of(texts: Mapping[str, str]) -> Amounts:
    """Return quantities as numbers: milli for cpu, else whole units. Raises: InvalidError."""
    return {resource: amount_of(resource, text) for resource, text in texts.items()}


@lru_cache(maxsize=4096)
def amount_of(resource: str, text: str) -> int:
    """Return a quantity as a number: milli for cpu, else whole units. Raises: InvalidError."""
    quantity = Quantity.parse(text)
    return quantity.milli if resource == CPU else quantity.value


@lru_cache(maxsize=1024)
def _matcher(selector: bytes) -> NodeMatcher:
    return node_matcher(msgspec.json.decode(selector, type=NodeSelector))


@lru_cache(maxsize=1024)
def _equals(wanted: tuple[tuple[str, str], ...]) -> NodeMatcher:
    def matches(labels: Mapping[str, str], name: str) -> bool:
        return all(labels.get(key) == value for key, value in wanted)

    return matches


def _unsupported(pod: Pod, terms: AffinityTerms) -> str:
    """Return what this scheduler does not support and must not ignore, or ""."""
    found = [terms.unsupported] if terms.unsupported else []
    if pod.spec.resource_claims:
        found.append("spec.resourceClaims")
    return " and ".join(found) + (f" {UNSUPPORTED}" if found else "")


Place = tuple[str, str]
"""(driver, pool)."""


@dataclass(frozen=True, slots=True)
class InlineUse:
    """Bytes that a pod requests of a driver's pool."""

    driver: str
    pool: str
    size: int

    @property
    def place(self) -> Place:
        """Driver and pool."""
        return self.driver, self.pool


def inline_uses(pod: Pod) -> tuple[InlineUse, ...]:
    """Return bytes of a pod's inline volumes; none once it has started.

    Left out: invalid sizes, and volumes without a size, as other drivers' are.
    """
    if pod.status.phase not in ("", "Pending"):
        return ()
    found = []
    for volume in pod.spec.volumes:
        driver, attributes = _inline(volume)
        text = next((attributes[key] for key in names.FLEX_SIZES if attributes.get(key)), "")
        if not driver or not text:
            continue
        try:
            size = to_bytes(text)
        except InvalidError:
            continue
        pool = attributes.get("pool") or (SOME if attributes.get("kind") else DEFAULT)
        found.append(InlineUse(names.pool_driver(driver), pool, size))
    return tuple(found)


def _inline(volume: Volume) -> tuple[str, Mapping[str, str]]:
    """Return driver and attributes of an inline volume, "" for another volume.

    FlexVolumes of ours are volumes of our driver.
    """
    if volume.csi is not None:
        return volume.csi.driver, volume.csi.volume_attributes
    if volume.flex_volume is not None and volume.flex_volume.driver in names.FLEX_DRIVERS:
        return names.DRIVER, volume.flex_volume.options
    return "", {}


DEFAULT, SOME = "", "*"
"""Pools of volumes that name none: the driver's default pool, or an unknown one."""


_SOFT = "ScheduleAnyway"


@dataclass(frozen=True, slots=True)
class TermGroup:
    """Pods by labels and namespace.

    namespaces None: all. selector None: no pod.
    """

    selector: Selector | None
    namespaces: frozenset[str] | None

    def has(self, terms: AffinityTerms) -> bool:
        """Return whether such a pod matches."""
        if self.selector is None or (self.namespaces is not None and terms.namespace not in self.namespaces):
            return False
        return self.selector.matches(terms.labels)


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
class AffinityTerms:
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
        return isinstance(other, AffinityTerms) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def is_affected_by(self, other: AffinityTerms) -> bool:
        """Return whether such a pod that came or went may change where this one fits."""
        groups = [spread.term.group for spread in self.hard] + [term.group for term in (*self.affinity, *self.anti)]
        return any(group.has(other) for group in groups) or any(term.group.has(self) for term in other.anti)

    @property
    def is_own_friend(self) -> bool:
        """Whether the pod matches its own required affinity."""
        return all(term.group.has(self) for term in self.affinity)


def compile_affinity(pod: Pod) -> AffinityTerms:
    """Compile a pod's terms, and what other pods' terms match.

    Raises: InvalidError for an invalid selector.
    """
    spec, labels = pod.spec, pod.metadata.labels
    affinity = spec.affinity
    near = affinity.pod_affinity if affinity is not None else None
    far = affinity.pod_anti_affinity if affinity is not None else None
    if not near and not far and not spec.topology_spread_constraints:
        return AffinityTerms(
            msgspec.json.encode((pod.metadata.namespace, labels), order="sorted"), pod.metadata.namespace, labels
        )
    nodes: tuple[object, ...] = ()
    if spec.topology_spread_constraints:  # the counted nodes depend on these
        nodes = (spec.node_selector, affinity.node_affinity if affinity is not None else None, spec.tolerations)
    wants = (near, far, spec.topology_spread_constraints, nodes)
    return _compile(msgspec.json.encode((pod.metadata.namespace, labels, *wants), order="sorted"))


@lru_cache(maxsize=4096)
def _compile(text: bytes) -> AffinityTerms:
    namespace, labels, near, far, spread, _ = msgspec.json.decode(text)
    try:
        friends, foes = (convert(raw or {}, PodAffinity) for raw in (near, far))
        constraints = convert(spread, list[TopologySpreadConstraint])
    except msgspec.ValidationError as failure:
        raise InvalidError(f"spec.affinity or spec.topologySpreadConstraints: {failure}") from None
    required = friends.required_during_scheduling_ignored_during_execution
    forbidden = foes.required_during_scheduling_ignored_during_execution
    liked = friends.preferred_during_scheduling_ignored_during_execution
    disliked = foes.preferred_during_scheduling_ignored_during_execution
    weighted = [(w.pod_affinity_term, w.weight) for w in liked] + [(w.pod_affinity_term, -w.weight) for w in disliked]
    me = AffinityTerms(text, namespace, labels)
    spreads = [(c.when_unsatisfiable == _SOFT, _spread(c, me)) for c in constraints]
    return AffinityTerms(
        text,
        namespace,
        labels,
        tuple(_term(term, me) for term in required),
        tuple(_term(term, me) for term in forbidden),
        tuple((_term(term, me), weight) for term, weight in weighted),
        tuple(found for is_soft, found in spreads if not is_soft),
        tuple(found for is_soft, found in spreads if is_soft),
        _unsupported_selector((*required, *forbidden, *(term for term, _ in weighted))),
        True,
    )


def _term(term: PodAffinityTerm, me: AffinityTerms) -> Term:
    namespaces: frozenset[str] | None = frozenset(term.namespaces or (me.namespace,))
    if term.namespace_selector is not None:
        namespaces = None
    selector = _selector(term.label_selector, term.match_label_keys, term.mismatch_label_keys, me)
    return Term(TermGroup(selector, namespaces), term.topology_key)


def _spread(constraint: TopologySpreadConstraint, me: AffinityTerms) -> Spread:
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


def _selector(
    found: LabelSelector | None, same: Iterable[str], other: Iterable[str], me: AffinityTerms
) -> Selector | None:
    """Return the selector with matchLabelKeys and mismatchLabelKeys.

    No selector matches nothing.
    """
    if found is None:
        return None
    more = [Requirement(key, "In", (me.labels[key],)) for key in same if key in me.labels]
    more += [Requirement(key, "NotIn", (me.labels[key],)) for key in other if key in me.labels]
    return Selector((*from_label_selector(found).requirements, *more))


def _unsupported_selector(terms: Iterable[PodAffinityTerm]) -> str:
    some: list[Any] = [t.namespace_selector for t in terms if t.namespace_selector not in (None, LabelSelector())]
    return "namespaceSelector of pod affinity terms (other than {})" if some else ""
