"""Node filters, without volumes: each returns why a node rejects the pod.

An empty tuple: it does not. Only filters that a pod needs are created (Kubernetes' PreFilter Skip), in Kubernetes'
order; the first that rejects decides. Texts: k/k pkg/scheduler/framework/plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tonnage.api import names
from tonnage.api.core import Taint
from tonnage.api.pods import Toleration
from tonnage.api.taints import tolerates
from tonnage.scheduler.framework.nodes import Columns, UsedVolume
from tonnage.scheduler.framework.plugin import Check, NodeFilter, Reasons, RejectionCause
from tonnage.scheduler.framework.pod_info import PODS, Ask, Port

UNSCHEDULABLE = "node(s) were unschedulable"
AFFINITY = "node(s) didn't match Pod's node affinity/selector"
PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"
MAX_VOLUMES = "node(s) exceed max volume count"
_FITS: Reasons = ()


def node_filters(ask: Ask, columns: Columns, used: tuple[UsedVolume, ...]) -> list[NodeFilter]:
    """Return the filters that this pod needs."""
    found = [NodeFilter.of_few(RejectionCause.NODE, _guard(ask, columns), columns.guarded)]
    if ask.required:
        found.append(NodeFilter.one_by_one(RejectionCause.NODE, _affinity(ask, columns)))
    if ask.demand.ports:
        found.append(NodeFilter.of_few(RejectionCause.PORTS, _ports(ask, columns), columns.ports))
    found.append(_resources(ask, columns))
    if used:
        found.append(NodeFilter.of_few(RejectionCause.LIMITS, _limits(used, columns), columns.limits))
    return found


def _guard(ask: Ask, columns: Columns) -> Check:
    """Check cordon and taints; most nodes have neither."""
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
    """Return the taints that these tolerations do not tolerate."""
    return (taint for taint in taints if not tolerates(tolerations, taint))


def taint_reason(taint: Taint) -> str:
    """Return Kubernetes' message about a taint."""
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
    """Return host ports that the pod requests and others have."""
    return (a for a in ask.demand.ports if any(_conflicts(a, b) for b in columns.ports[slot]))


def _conflicts(a: Port, b: Port) -> bool:
    """Return whether host ports conflict.

    Same protocol and port on the same address; no address is every address.
    """
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

    return NodeFilter(RejectionCause.RESOURCES, check, sieve)


def lacking(ask: Ask, columns: Columns, slot: int) -> Reasons:
    """Return all insufficient resources, named as Kubernetes does."""
    return tuple(resource_reason(resource) for resource, _ in short_of(ask, columns, slot))


def short_of(ask: Ask, columns: Columns, slot: int) -> Iterator[tuple[str, int]]:
    """Return insufficient resources of a node, with the requested amounts."""
    return (
        (resource, amount) for resource, amount in ask.demand.requests if columns.free_of(resource)[slot] < amount
    )  # fmt: skip


def resource_reason(resource: str) -> str:
    """Return Kubernetes' message about an insufficient resource."""
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
