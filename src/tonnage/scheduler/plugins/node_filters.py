"""What keeps a pod from a node, volumes apart: each filter says for a slot why not, or an empty tuple.

Only the filters that a pod needs are made (the PreFilter Skip of Kubernetes), in the order in which Kubernetes runs
them; the first that answers decides. Texts: k/k pkg/scheduler/framework/plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tonnage.api import names
from tonnage.api.core import Taint
from tonnage.api.pods import Toleration
from tonnage.api.taints import tolerates
from tonnage.scheduler.framework.cause import Cause
from tonnage.scheduler.framework.nodes import Columns, UsedVolume
from tonnage.scheduler.framework.pod_info import PODS, Ask, Port

UNSCHEDULABLE = "node(s) were unschedulable"
AFFINITY = "node(s) didn't match Pod's node affinity/selector"
PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"
MAX_VOLUMES = "node(s) exceed max volume count"

Reasons = tuple[str, ...]
Check = Callable[[int], Reasons]
"""Why a pod cannot go to a node, by slot."""
Sieve = Callable[[Sequence[int]], Sequence[int]]
"""Those of some slots that a pod can go to."""
_FITS: Reasons = ()


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """One filter. sieve: says the same of many nodes at once as check says of each, and quicker."""

    cause: Cause
    check: Check
    sieve: Sieve

    @classmethod
    def one_by_one(cls, cause: Cause, check: Check) -> NodeFilter:
        """A filter that has no quicker way."""
        return cls(cause, check, lambda slots: [slot for slot in slots if not check(slot)])

    @classmethod
    def of_few(cls, cause: Cause, check: Check, concerned: Sequence[object]) -> NodeFilter:
        """A filter that passes every node of which the column says nothing."""
        return cls(cause, check, lambda slots: [slot for slot in slots if not concerned[slot] or not check(slot)])


def node_filters(ask: Ask, columns: Columns, used: tuple[UsedVolume, ...]) -> list[NodeFilter]:
    """The filters that this pod needs."""
    found = [NodeFilter.of_few(Cause.NODE, _guard(ask, columns), columns.guarded)]
    if ask.required:
        found.append(NodeFilter.one_by_one(Cause.NODE, _affinity(ask, columns)))
    if ask.demand.ports:
        found.append(NodeFilter.of_few(Cause.PORTS, _ports(ask, columns), columns.ports))
    found.append(_resources(ask, columns))
    if used:
        found.append(NodeFilter.of_few(Cause.LIMITS, _limits(used, columns), columns.limits))
    return found


def _guard(ask: Ask, columns: Columns) -> Check:
    """Cordon and taints: most nodes have neither."""
    guarded, unschedulable, taints, tolerations = (
        columns.guarded,
        columns.unschedulable,
        columns.taints,
        ask.tolerations,
    )
    cordon = Taint(key=names.UNSCHEDULABLE_TAINT, effect="NoSchedule")

    def check(slot: int) -> Reasons:
        if not guarded[slot]:
            return _FITS
        if unschedulable[slot] and not tolerates(tolerations, cordon):
            return (UNSCHEDULABLE,)
        for taint in untolerated(taints[slot], tolerations):
            return (taint_reason(taint),)
        return _FITS

    return check


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Iterator[Taint]:
    """The taints that keep a pod with these tolerations away."""
    return (taint for taint in taints if not tolerates(tolerations, taint))


def taint_reason(taint: Taint) -> str:
    """What a pod is told of a taint, as Kubernetes says it."""
    return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"


def _affinity(ask: Ask, columns: Columns) -> Check:
    labels, node_names, required = columns.labels, columns.names, ask.required

    def check(slot: int) -> Reasons:
        for matches in required:
            if not matches(labels[slot], node_names[slot]):
                return (AFFINITY,)
        return _FITS

    return check


def _ports(ask: Ask, columns: Columns) -> Check:
    return lambda slot: (PORTS_TAKEN,) if any(taken_ports(ask, columns, slot)) else _FITS


def taken_ports(ask: Ask, columns: Columns, slot: int) -> Iterator[Port]:
    """Host ports that the pod asks for and others have."""
    return (a for a in ask.demand.ports if any(_conflicts(a, b) for b in columns.ports[slot]))


def _conflicts(a: Port, b: Port) -> bool:
    """Same protocol and port, on the same address; no address is every address."""
    if a[0] != b[0] or a[2] != b[2]:
        return False
    anywhere = ("", "0.0.0.0")
    return a[1] == b[1] or a[1] in anywhere or b[1] in anywhere


def _resources(ask: Ask, columns: Columns) -> NodeFilter:
    wanted = [(columns.free_of(resource), amount) for resource, amount in ask.demand.requests]

    def check(slot: int) -> Reasons:
        for column, amount in wanted:
            if column[slot] < amount:
                return lacking(ask, columns, slot)
        return _FITS

    def sieve(slots: Sequence[int]) -> Sequence[int]:
        for column, amount in wanted:
            slots = [slot for slot in slots if column[slot] >= amount]
        return slots

    return NodeFilter(Cause.RESOURCES, check, sieve)


def lacking(ask: Ask, columns: Columns, slot: int) -> Reasons:
    """All resources that a node lacks for a pod, as Kubernetes names them."""
    return tuple(resource_reason(resource) for resource, _ in short_of(ask, columns, slot))


def short_of(ask: Ask, columns: Columns, slot: int) -> Iterator[tuple[str, int]]:
    """Resources of which a node has less free than a pod requests, and how much it requests."""
    return (
        (resource, amount) for resource, amount in ask.demand.requests if columns.free_of(resource)[slot] < amount
    )  # fmt: skip


def resource_reason(resource: str) -> str:
    """What a pod is told of a resource that is lacking, as Kubernetes says it."""
    return TOO_MANY_PODS if resource == PODS else f"Insufficient {resource}"


def _limits(used: tuple[UsedVolume, ...], columns: Columns) -> Check:
    limits, attached = columns.limits, columns.attached
    drivers = {driver for driver, _ in used}

    def check(slot: int) -> Reasons:
        for driver in drivers:
            limit = limits[slot].get(driver)
            if limit is not None:
                there = attached[slot].get(driver, {})
                new = sum(1 for d, volume in used if d == driver and volume not in there)
                if new and len(there) + new > limit:
                    return (MAX_VOLUMES,)
        return _FITS

    return check
