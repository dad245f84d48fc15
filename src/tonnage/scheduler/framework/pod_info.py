"""Pod requirements, compiled once and matched often.

Source: k/k pkg/scheduler/framework (PodInfo), component-helpers resource (PodRequests). Amounts are milli for cpu and
whole units otherwise. What is not supported is rejected by name, see `unsupported`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from tonnage.api.core import NodeSelector
from tonnage.api.pods import Container, Pod, Toleration, claim_name
from tonnage.api.quantity import Quantity, to_bytes
from tonnage.api.selectors import NodeMatcher, node_matcher, term_matcher
from tonnage.errors import Invalid
from tonnage.scheduler.framework.pod_terms import Kin, kin_of

CPU, MEMORY, PODS = "cpu", "memory", "pods"
_SCORED_CPU, _SCORED_MEMORY = 100, 200 * 1024**2  # of a container without requests, in scores
Amounts = dict[str, int]
Port = tuple[str, str, int]


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
    kin: Kin


def compile_ask(pod: Pod) -> Ask:
    """Compile a pod. Raises Invalid for an invalid quantity or selector."""
    spec = pod.spec
    node_affinity = spec.affinity.node_affinity if spec.affinity else None
    demand, kin = compile_demand(pod), kin_of(pod)
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
        _unsupported(pod, kin),
        (demand, placement),
        kin,
    )


def claim_uses(pod: Pod) -> tuple[ClaimUse, ...]:
    """Return the claims of a pod, each once, in the order of its volumes."""
    namespace, uses = pod.metadata.namespace, {}
    for volume in pod.spec.volumes:
        if name := claim_name(pod.metadata.name, volume):
            uses[name] = ClaimUse(f"{namespace}/{name}", name, volume.ephemeral is not None)
    return tuple(uses.values())


def compile_demand(pod: Pod) -> Demand:
    """Return the resources of a pod. Raises Invalid for an invalid quantity."""
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
    """Return quantities as numbers: milli for cpu, else whole units. Raises Invalid."""
    return {resource: amount_of(resource, text) for resource, text in texts.items()}


@lru_cache(maxsize=4096)
def amount_of(resource: str, text: str) -> int:
    """Return a quantity as a number: milli for cpu, else whole units. Raises Invalid."""
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


def _unsupported(pod: Pod, kin: Kin) -> str:
    """Return what this scheduler does not support and must not ignore, or ""."""
    found = [kin.unsupported] if kin.unsupported else []
    if pod.spec.resource_claims:
        found.append("spec.resourceClaims")
    return " and ".join(found) + (" not supported by this scheduler" if found else "")


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
        if volume.csi is None or not (text := volume.csi.volume_attributes.get("size", "")):
            continue
        try:
            size = to_bytes(text)
        except Invalid:
            continue
        attributes = volume.csi.volume_attributes
        pool = attributes.get("pool") or (SOME if attributes.get("kind") else DEFAULT)
        found.append(InlineUse(volume.csi.driver, pool, size))
    return tuple(found)


DEFAULT, SOME = "", "*"
"""Pools of volumes that name none: the driver's default pool, or an unknown one."""
