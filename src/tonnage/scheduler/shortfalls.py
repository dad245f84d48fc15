"""Shortfalls of a node for a pod: Kubernetes' texts, numbers, advice.

Sans-I/O. All filters of the scheduler are asked; a decision needs only the first that rejects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tonnage.kubernetes.api import matching, names
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.provisioning.capacity.published import NO_BOUND, PublishedCapacity
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import CycleState, RejectionCause, Unbound
from tonnage.scheduler.framework.pod_info import CPU, MEMORY, PODS
from tonnage.scheduler.framework.storage_objects import reach_of
from tonnage.scheduler.plugins import node_fit
from tonnage.scheduler.plugins.inline_volumes import NO_INLINE
from tonnage.scheduler.plugins.inter_pod import APART, NEAR, SPREAD, SPREAD_LABEL, THEIR_APART
from tonnage.scheduler.plugins.volume_binding import CONFLICT, NO_CLASS, NO_SOURCE, NO_STORAGE, NO_VOLUME

_BYTES = (MEMORY, "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class Lack:
    """One shortfall, and what to do.

    missing: bytes of storage, 0 for other resources.
    """

    text: str
    todo: str
    missing: int = 0


class NodeShortfall(msgspec.Struct, frozen=True, rename="camel"):
    """Capacity of a node for a claim, in bytes.

    free: for all claims of the class, less reservations. largest: for a single claim. None: nothing is published.
    published: time of the write (RFC 3339), "" if the API server does not store it. problem: why the class cannot have
    volumes there.
    """

    claim: str
    storage_class: str
    asked: int
    free: int | None = None
    largest: int | None = None
    published: str = ""
    problem: str = ""


@dataclass
class ShortfallSearch:
    """A pod and its cluster.

    written: key of a capacity object -> time of its write.
    """

    cycle: Cycle
    state: CycleState
    written: Mapping[str, str]

    def __post_init__(self) -> None:
        """Compile the filters once for all nodes."""
        self.cluster, self.ask, self.volumes = self.cycle.cluster, self.state.ask, self.state.volumes
        self._filters = self.cycle.filters(self.state)

    def lacks(self, slot: int) -> Iterator[Lack]:
        """Yield all shortfalls of the node for the pod; none when it fits."""
        words = {
            RejectionCause.NODE: self._node,
            RejectionCause.PORTS: self._ports,
            RejectionCause.RESOURCES: self._resources,
            RejectionCause.LIMITS: self._limits,
            RejectionCause.NEIGHBOURS: self._neighbours,
            RejectionCause.STORAGE: self._volumes,
        }
        for each in self._filters:
            if reasons := each.check(slot):
                yield from words[each.cause](slot, reasons)

    def shortfalls(self, slot: int) -> list[NodeShortfall]:
        """Return the node's capacity for each claim without a volume."""
        return [self._shortfall(unbound, slot) for unbound in self.volumes.unbound]

    def _name(self, slot: int) -> str:
        return self.cluster.columns.names[slot]

    def _node(self, slot: int, reasons: tuple[str, ...]) -> Iterator[Lack]:
        name, columns = self._name(slot), self.cluster.columns
        if node_fit.AFFINITY in reasons:
            yield Lack(*self._affinity(slot))
            return
        if node_fit.UNSCHEDULABLE in reasons:
            yield Lack(node_fit.UNSCHEDULABLE, f"`kubectl uncordon {name}`")
        for taint in node_fit.untolerated(columns.taints[slot], self.ask.tolerations):
            mark = f"{taint.key}={taint.value}" if taint.value else taint.key
            text = f"{node_fit.taint_reason(taint)} ({taint.effect})"
            yield Lack(text, f"add a toleration of {mark}, or `kubectl taint node {name} {taint.key}-`")

    def _affinity(self, slot: int) -> tuple[str, str]:
        labels = self.cluster.columns.labels[slot]
        wrong = {k: v for k, v in self.ask.pod.spec.node_selector.items() if labels.get(k) != v}
        if not wrong:
            todo = "change spec.affinity.nodeAffinity of the pod, or the labels of a node"
            return f"{node_fit.AFFINITY}: no term of spec.affinity.nodeAffinity holds", todo
        asked = " ".join(f"{key}={value}" for key, value in wrong.items())
        there = ", ".join(f"{key}={labels[key]}" if key in labels else f"no {key}" for key in wrong)
        todo = f"`kubectl label node {self._name(slot)} --overwrite {asked}`, or change nodeSelector"
        return f"{node_fit.AFFINITY}: wants {asked}, has {there}", todo

    def _ports(self, slot: int, reasons: tuple[str, ...]) -> Iterator[Lack]:
        ports = node_fit.taken_ports(self.ask, self.cluster.columns, slot)
        listed = ", ".join(f"{port}/{protocol}" for protocol, _, port in ports)
        yield Lack(f"{reasons[0]}: {listed}", f"give up hostPort {listed}, or delete the pod that has it")

    def _resources(self, slot: int, reasons: tuple[str, ...]) -> Iterator[Lack]:
        columns, name = self.cluster.columns, self._name(slot)
        for resource, asked in node_fit.short_of(self.ask, columns, slot):
            free, has = columns.free_of(resource, slot), columns.allocatable_of(resource, slot)
            said = node_fit.resource_reason(resource)
            if resource == PODS:
                yield Lack(f"{said}: it takes {has}", f"delete pods on {name}, or add a node")
                continue
            left = _amount(resource, max(0, free))
            text = f"{said}: asks {_amount(resource, asked)}, free {left} of {_amount(resource, has)}"
            yield Lack(text, f"request at most {left} {resource}, delete pods on {name}, or add a node")

    def _limits(self, slot: int, reasons: tuple[str, ...]) -> Iterator[Lack]:
        columns = self.cluster.columns
        drivers = sorted({driver for driver, _ in self.volumes.used} & columns.limits[slot].keys())
        there = [f"{d}: {len(columns.attached[slot].get(d, {}))} of {columns.limits[slot][d]}" for d in drivers]
        text = f"{reasons[0]} ({', '.join(there)})"
        yield Lack(text, f"delete pods with volumes on {self._name(slot)}, or add a node")

    def _neighbours(self, slot: int, reasons: tuple[str, ...]) -> Iterator[Lack]:
        name = self._name(slot)
        todo = {
            SPREAD: "free resources on nodes with fewer such pods, raise maxSkew, or set ScheduleAnyway",
            SPREAD_LABEL: f"label the node: `kubectl label node {name}` with the topologyKey of each constraint",
            NEAR: "run a pod there that its podAffinity asks for, or change spec.affinity.podAffinity",
            APART: "delete the pods near by that its podAntiAffinity names, or add a node",
            THEIR_APART: "delete the pods near by whose podAntiAffinity names it, or add a node",
        }
        for reason in reasons:
            yield Lack(reason, todo[reason])

    # Volumes

    def _volumes(self, slot: int, reasons: tuple[str, ...]) -> Iterator[Lack]:
        for reason in reasons:
            yield from self._about(slot, reason)

    def _about(self, slot: int, reason: str) -> Iterator[Lack]:
        if reason == NO_STORAGE:
            yield from self._storage(slot)
        elif reason == NO_INLINE:
            yield from self._inline(slot)
        elif reason == CONFLICT:
            elsewhere = ", ".join(self._out_of_reach(slot))
            yield Lack(
                f"{CONFLICT}: {elsewhere}", f"free capacity on the volume's node, or delete the claim of {elsewhere}"
            )
        elif reason == NO_SOURCE:
            listed = ", ".join(self._copies(slot))
            todo = "free capacity on the data source's node: only that node can copy it"
            yield Lack(f"{NO_SOURCE}: {listed}", todo)
        elif reason == NO_VOLUME:
            yield self._no_volume(slot)
        else:
            yield Lack(reason, "delete the claim whose volume is gone, and make it anew")

    def _inline(self, slot: int) -> Iterator[Lack]:
        for short in self.cycle.volumes.inline_shortages(self.volumes, slot):
            asked, free = from_bytes(short.asked), from_bytes(short.free)
            text = f"{NO_INLINE}: they ask {asked} of pool {short.pool}, {free} are free for them"
            missing = short.asked - short.free
            yield Lack(text, f"ask for at most {free} in all, or {self._more(slot, missing)}", missing)

    def _out_of_reach(self, slot: int) -> Iterator[str]:
        columns, objects = self.cluster.columns, self.cluster.objects
        for use in self.ask.claims:
            claim = objects.claims.get(use.key)
            volume = objects.volumes.get(claim.spec.volume_name) if claim is not None else None
            if volume is not None and not reach_of(volume).matches(columns.labels[slot], columns.names[slot]):
                yield f"{volume.metadata.name} ({use.name})"

    def _copies(self, slot: int) -> Iterator[str]:
        columns, objects = self.cluster.columns, self.cluster.objects
        for unbound in self.volumes.unbound:
            if unbound.source is not None and not unbound.source(columns.labels[slot], columns.names[slot]):
                origin = objects.origin_of(unbound.claim)
                if origin is not None and origin.place:
                    yield f"claim {unbound.claim.metadata.name} of {origin.text} ({origin.place})"

    def _no_volume(self, slot: int) -> Lack:
        sent = next((u for u in self.volumes.unbound if u.selected not in ("", self._name(slot))), None)
        if sent is not None:
            text = f"{NO_VOLUME}: claim {sent.claim.metadata.name} was sent to node {sent.selected}"
            return Lack(text, f"see why {sent.selected} does not make it: `kubectl describe pvc`")
        found = ", ".join(sorted({matching.class_name(u.claim) for u in self.volumes.unbound}))
        todo = f"make a PersistentVolume of class {found} for it, or see allowedTopologies of the class"
        return Lack(f"{NO_VOLUME} of class {found}", todo)

    def _best(self, unbound: Unbound, slot: int) -> PublishedCapacity | None:
        offers = self.cluster.published.on(self._name(slot)).get(unbound.storage_class.key, ())
        return max(offers, key=lambda offer: (offer.largest, offer.left), default=None)

    def _shortfall(self, unbound: Unbound, slot: int) -> NodeShortfall:
        name, of_class = unbound.claim.metadata.name, unbound.storage_class.key
        offer = self._best(unbound, slot)
        if offer is None:
            return NodeShortfall(name, of_class, unbound.size)
        free = None if offer.left > NO_BOUND // 2 else max(0, offer.left)
        written = self.written.get(offer.key, "")
        return NodeShortfall(name, of_class, unbound.size, free, max(0, offer.largest), written, offer.reason)

    def _storage(self, slot: int) -> Iterator[Lack]:
        measured = [unbound for unbound in self.volumes.unbound if unbound.measured]
        alone = {unbound.claim.key: lack for unbound in measured if (lack := self._claim(unbound, slot))}
        yield from alone.values()
        pools: dict[object, tuple[PublishedCapacity, list[Unbound]]] = {}
        for unbound in measured:
            if (offer := self._best(unbound, slot)) is not None:
                pools.setdefault(offer.pool_key, (offer, []))[1].append(unbound)
        others = [(o, claims) for o, claims in pools.values() if not any(u.claim.key in alone for u in claims)]
        short = [(o, claims) for o, claims in others if sum(u.size for u in claims) > o.left]
        if not short and not alone:  # a class has several pools, and the claims do not pack
            short = others
        for offer, claims in short:
            yield self._together(offer, claims, slot)

    def _together(self, offer: PublishedCapacity, claims: Sequence[Unbound], slot: int) -> Lack:
        """Return the shortfall of a pool for all its claims, where each alone fits."""
        listed, asked = ", ".join(u.claim.metadata.name for u in claims), sum(u.size for u in claims)
        text = f"{NO_STORAGE}: claims {listed} ask {from_bytes(asked)} together, {from_bytes(offer.left)} are free"
        missing = max(1, asked - offer.left)
        return Lack(text, self._more(slot, missing), missing)

    def _claim(self, unbound: Unbound, slot: int) -> Lack | None:
        """Return the shortfall of a single claim; the advice counts its whole group."""
        shortfall, offer = self._shortfall(unbound, slot), self._best(unbound, slot)
        about = f"claim {shortfall.claim}, class {shortfall.storage_class}"
        head = f"{NO_STORAGE}: {about}"
        if shortfall.problem == names.AHEAD:
            return Lack(
                f"{head}: {shortfall.problem}", "prepare a disk that is large enough, or wait for one", NO_BOUND
            )
        if shortfall.problem:
            todo = f"correct StorageClass {shortfall.storage_class}: {shortfall.problem}"
            return Lack(f"{NO_CLASS}: {about}: {shortfall.problem}", todo, NO_BOUND)
        if shortfall.largest is None or offer is None:
            todo = (
                f"see whether the CSI driver of {shortfall.storage_class} runs on {self._name(slot)}: `tonnage doctor`"
            )
            return Lack(f"{head}: nothing is published", todo, NO_BOUND)
        if shortfall.asked <= min(offer.largest, offer.left):
            return None
        free = "unknown" if shortfall.free is None else from_bytes(shortfall.free)
        if offer.tier and not offer.outstanding:
            text = f"{head}: asks {from_bytes(shortfall.asked)}, the node says by its tier that it has {free} at least"
            todo = "wait: the controller asks the nodes of the highest tiers to publish exactly"
            return Lack(
                text, f"{todo}; or {self._more(slot, shortfall.asked - offer.left)}", shortfall.asked - offer.left
            )
        text = f"{head}: asks {from_bytes(shortfall.asked)}, free {free}, largest {from_bytes(shortfall.largest)}"
        most = min(offer.largest, offer.left - self._siblings(unbound, offer, slot))
        less = f"ask for at most {from_bytes(most)} in {shortfall.claim}, or " if most > 0 else ""
        return Lack(text, less + self._more(slot, shortfall.asked - most), shortfall.asked - most)

    def _siblings(self, unbound: Unbound, offer: PublishedCapacity, slot: int) -> int:
        """Return bytes that the pod's other claims request of the same pool."""
        others = [u for u in self.volumes.unbound if u.measured and u is not unbound]
        return sum(u.size for u in others if (o := self._best(u, slot)) is not None and o.pool_key == offer.pool_key)

    def _more(self, slot: int, missing: int) -> str:
        return f"free {from_bytes(missing)} on {self._name(slot)} by deleting pods or claims there, or add a node"


def _amount(resource: str, number: int) -> str:
    """Format an amount as Kubernetes does."""
    if resource == CPU:
        return f"{number}m" if number % 1000 else str(number // 1000)
    return from_bytes(number) if resource in _BYTES else str(number)
