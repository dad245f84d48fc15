"""Extension points of the scheduler, named as in kube-scheduler's framework.

A pod passes pre_filter, filter, score and reserve without I/O; then pre_bind and bind write. unreserve undoes reserve.
Where no node fits, post_filter (preemption) is next. Each point has a fixed tuple of plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Protocol

from tonnage.kubernetes.api import matching
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.selectors import NodeMatcher
from tonnage.kubernetes.api.storage import StorageClass
from tonnage.scheduler.framework.pod_info import Ask, InlineUse, UsedVolume


class RejectionCause(Flag):
    """Cause of a pod's rejection; it selects the queueing hints."""

    NO = 0
    NODE = auto()
    """Taints, affinity, cordon: a change of a Node may help."""
    RESOURCES = auto()
    PORTS = auto()
    LIMITS = auto()
    STORAGE = auto()
    """Insufficient published capacity."""
    BINDING = auto()
    """Existing PVs do not fit, or topology forbids new ones."""
    CLAIM = auto()
    """A claim is missing, foreign, being deleted or binds elsewhere."""
    EXCLUSIVE = auto()
    """A ReadWriteOncePod claim is in use by another pod."""
    UNSUPPORTED = auto()
    NEIGHBOURS = auto()
    """Inter-pod affinity, anti-affinity or topology spread."""


FREED = (
    RejectionCause.RESOURCES
    | RejectionCause.PORTS
    | RejectionCause.LIMITS
    | RejectionCause.STORAGE
    | RejectionCause.EXCLUSIVE
)
"""Causes that resources which are free again may remove."""
HELPED = FREED | RejectionCause.NEIGHBOURS
"""Causes that the deletion of pods may remove."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Result of pre_filter: cause on all nodes.

    awaited: an ephemeral claim does not exist yet, which passes by itself. unready: class of an unbound claim with
    immediate binding.
    """

    message: str
    cause: RejectionCause = RejectionCause.CLAIM
    awaited: bool = False
    unready: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Unbound:
    """An unbound claim that needs capacity.

    selected: its selected node, or "". source: nodes with the claim or snapshot that it copies, None for any.
    """

    claim: PersistentVolumeClaim
    size: int
    storage_class: StorageClass
    selected: str
    searched: bool
    provisionable: bool
    measured: bool
    allowed: NodeMatcher | None
    source: NodeMatcher | None = None


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """Plan of unbound claims on a node: existing PVs, and claims to provision."""

    found: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    made: tuple[Unbound, ...] = ()

    @property
    def waste(self) -> int:
        """Bytes by which existing PVs exceed the requests."""
        if not self.found:
            return 0
        return sum(matching.capacity(volume) - matching.requested(claim) for claim, volume in self.found)


@dataclass(frozen=True, slots=True, eq=False)
class PodVolumes:
    """Result of PreFilter: a pod's claims by state.

    shape: equal for pods with the same result on any node; None where not known. missing: a bound claim's PV does not
    exist. needs: (class, bytes) of claims that need capacity, largest first. inline: bytes for inline volumes.
    """

    bound: tuple[NodeMatcher, ...] = ()
    unbound: tuple[Unbound, ...] = ()
    missing: bool = False
    used: tuple[UsedVolume, ...] = ()
    shape: tuple[object, ...] | None = ()
    simple: bool = True
    needs: tuple[tuple[str, int], ...] = ()
    plan: VolumePlan = VolumePlan()
    inline: tuple[InlineUse, ...] = ()


NO_VOLUMES = PodVolumes()


@dataclass(frozen=True, slots=True)
class SchedulingDecision:
    """Node of a pod, and the plan of its volumes there."""

    node: str
    plan: VolumePlan
    volumes: PodVolumes


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why no node fits a pod now.

    awaited: it will pass by itself and need not be reported yet. unpublished: no capacity is published yet for a class
    of the pod; the cause may be known soon. needs: requested storage, (class, bytes). shape: equal for pods that are
    rejected alike, None where not known.
    """

    message: str
    causes: RejectionCause
    awaited: bool = False
    unpublished: bool = False
    needs: tuple[tuple[str, int], ...] = ()
    shape: Hashable = None

    def alike(self, priority: int) -> Hashable:
        """Return a key that is equal for pods of that priority that are rejected alike, None where not known."""
        return None if self.shape is None else (self.shape, priority, self.message)


@dataclass(slots=True, eq=False)
class CycleState:
    """A pod in one cycle, and what pre_filter found out.

    nodes: the only possible ones, None for all. plans: of volumes by node index, where they differ from volumes.plan.
    """

    ask: Ask
    volumes: PodVolumes = NO_VOLUMES
    nodes: Sequence[int] | None = None
    plans: dict[int, VolumePlan] = field(default_factory=dict)

    def plan(self, slot: int) -> VolumePlan:
        """Return the plan of the volumes on a node that fits."""
        return self.plans.get(slot, self.volumes.plan)


Reasons = tuple[str, ...]
Check = Callable[[int], Reasons]
"""Returns why a node rejects the pod, by node index."""
Sieve = Callable[[Sequence[int]], Sequence[int]]
"""Returns those of some nodes that the pod fits, by node index."""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """One filter.

    sieve: check for many nodes at once, faster.
    """

    cause: RejectionCause
    check: Check
    sieve: Sieve

    @classmethod
    def one_by_one(cls, cause: RejectionCause, check: Check) -> NodeFilter:
        """Return a filter without a fast form."""
        return cls(cause, check, lambda slots: [slot for slot in slots if not check(slot)])

    @classmethod
    def of_few(cls, cause: RejectionCause, check: Check, concerned: Sequence[object]) -> NodeFilter:
        """Return a filter that passes every node with an empty column."""
        return cls(cause, check, lambda slots: [slot for slot in slots if not concerned[slot] or not check(slot)])


class PreFilterPlugin(Protocol):
    """Checks a pod before any node."""

    def pre_filter(self, state: CycleState) -> Stop | None:
        """Complete the state, or return what stops the pod on all nodes. Raises: InvalidError."""


class FilterPlugin(Protocol):
    """Rejects nodes."""

    def filter(self, state: CycleState) -> Sequence[NodeFilter]:
        """Return the filters that this pod needs."""


class ScorePlugin(Protocol):
    """Prefers nodes."""

    def score(self, state: CycleState, slots: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
        """Yield scores of 0 to 100 for each node, with their weight; none without a preference."""
