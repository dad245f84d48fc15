"""NodeFit: filters and scores of a node's own properties, without volumes and other pods.

A filter returns why a node rejects the pod; an empty tuple: it does not. Only filters that a pod needs are created
(Kubernetes' PreFilter Skip), in Kubernetes' order. Source: k/k pkg/scheduler/framework/plugins noderesources
(LeastAllocated), nodeaffinity, tainttoleration and others, with their texts and default weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Taint
from tonnage.kubernetes.api.pods import Toleration
from tonnage.kubernetes.api.taints import tolerates
from tonnage.scheduler.framework.nodes import Columns
from tonnage.scheduler.framework.plugin import Check, CycleState, NodeFilter, Reasons, RejectionCause
from tonnage.scheduler.framework.pod_info import CPU, MEMORY, PODS, Ask, Port, UsedVolume
from tonnage.scheduler.plugins.storage_scoring import Shares, share

UNSCHEDULABLE = "node(s) were unschedulable"
AFFINITY = "node(s) didn't match Pod's node affinity/selector"
PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"
MAX_VOLUMES = "node(s) exceed max volume count"
_AFFINITY, _TAINTS = 2, 3  # weights
_FITS: Reasons = ()


class NodeFit:
    """Plugin of taints, cordon, node affinity, ports, resources and volume limits."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def filter(self, state: CycleState) -> list[NodeFilter]:
        """Return the filters that this pod needs."""
        ask, columns, used = state.ask, self._columns, state.volumes.used
        found = [NodeFilter.of_few(RejectionCause.NODE, _guard(ask, columns), columns.guarded)]
        if ask.required:
            found.append(NodeFilter.one_by_one(RejectionCause.NODE, _affinity(ask, columns)))
        if ask.demand.ports:
            found.append(NodeFilter.of_few(RejectionCause.PORTS, _ports(ask, columns), columns.ports))
        found.append(_resources(ask, columns))
        if used:
            found.append(NodeFilter.of_few(RejectionCause.LIMITS, _limits(used, columns), columns.limits))
        return found

    def score(self, state: CycleState, slots: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
        """Yield scores by preferred node affinity, and by PreferNoSchedule taints that are not tolerated."""
        ask, columns = state.ask, self._columns
        if ask.preferred:
            labels, node_names = columns.labels, columns.names
            yield _scaled([sum(w for w, m in ask.preferred if m(labels[s], node_names[s])) for s in slots]), _AFFINITY
        taints = columns.soft_taints
        if any(map(taints.__getitem__, slots)):
            counts = [sum(not tolerates(ask.tolerations, taint) for taint in taints[slot]) for slot in slots]
            top = max(counts)
            yield _scaled([top - count for count in counts]), _TAINTS

    def least_allocated(self, ask: Ask, slots: Sequence[int]) -> list[float]:
        """Return 0 to 100 for each node: the free part of cpu and memory."""
        columns = self._columns
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

    def shares(self, ask: Ask) -> Shares:
        """Return a function: used parts of a node's free cpu and memory.

        Of the resources that the node has.
        """
        columns = self._columns
        has = (columns.allocatable[CPU], columns.allocatable[MEMORY])
        used = (columns.scored_cpu, columns.scored_memory)

        def used_parts(slot: int) -> tuple[float, ...]:
            return tuple(
                share((asked, all_[slot] - taken[slot]))
                for all_, taken, asked in zip(has, used, ask.demand.scored, strict=True)
                if all_[slot] > 0
            )

        return used_parts


def _scaled(scores: list[int]) -> list[int]:
    """Return raw scores, scaled to a maximum of 100."""
    top = max(scores)
    return [score * 100 // top for score in scores] if top > 0 else scores


def _guard(ask: Ask, columns: Columns) -> Check:
    """Check cordon and taints; most nodes have neither."""
    guarded, taints, tolerations = columns.guarded, columns.taints, ask.tolerations
    cordon = Taint(key=names.UNSCHEDULABLE_TAINT, effect="NoSchedule")

    def check(slot: int) -> Reasons:
        if not guarded[slot]:
            return _FITS
        if columns.unschedulable[slot] and not tolerates(tolerations, cordon):
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
    anywhere, taken = ("", "0.0.0.0"), dict[tuple[str, int], set[str]]()
    for protocol, address, port in columns.ports[slot]:
        taken.setdefault((protocol, port), set()).add(address)
    for wanted in ask.demand.ports:
        # No address is every address.
        there = taken.get((wanted[0], wanted[2]), set())
        if there and (wanted[1] in anywhere or wanted[1] in there or not there.isdisjoint(anywhere)):
            yield wanted


def _resources(ask: Ask, columns: Columns) -> NodeFilter:
    nothing = [0] * len(columns.names)
    wanted = [(columns.free.get(resource, nothing), amount) for resource, amount in ask.demand.requests]

    def check(slot: int) -> Reasons:
        for column, amount in wanted:
            if column[slot] < amount:
                return tuple(resource_reason(resource) for resource, _ in short_of(ask, columns, slot))
        return _FITS

    def sieve(slots: Sequence[int]) -> Sequence[int]:
        for column, amount in wanted:
            slots = [slot for slot in slots if column[slot] >= amount]
        return slots

    return NodeFilter(RejectionCause.RESOURCES, check, sieve)


def short_of(ask: Ask, columns: Columns, slot: int) -> Iterator[tuple[str, int]]:
    """Return insufficient resources of a node, with the requested amounts."""
    return (
        (resource, amount) for resource, amount in ask.demand.requests if columns.free_of(resource, slot) < amount
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
