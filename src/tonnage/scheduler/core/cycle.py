"""Scheduling cycle: picks a node for one pod and plans its volumes there.

Or explains why no node fits. Sans-I/O; it never blocks. Source: k/k pkg/scheduler/schedule_one.go (findNodesThatFitPod,
selectHost), types.go (FitError).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.scheduler.framework.nodes import Columns, UsedVolume
from tonnage.scheduler.framework.plugin import (
    NodeFilter,
    PodVolumes,
    Reasons,
    Refusal,
    RejectionCause,
    SchedulingDecision,
    Stop,
    VolumePlan,
)
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.plugins import scores
from tonnage.scheduler.plugins.inline_volumes import NO_INLINE
from tonnage.scheduler.plugins.inter_pod import NEAR, Neighbours
from tonnage.scheduler.plugins.messages import FaultyNodes, class_hint, of_class, sentence, storage_hint
from tonnage.scheduler.plugins.node_fit import node_filters
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy, storage_score
from tonnage.scheduler.plugins.volume_binding import IN_USE, NO_CLASS, NO_STORAGE, VolumeBinding

NO_NODES = "no nodes available to schedule pods"
_ENOUGH, _SOME, _LOOKS = 100, 10, 128
_STAY = 16
_REMEMBERED = 1024


@dataclass
class Cycle:
    """Decides about pods.

    Rejections are cached by the pod's shape until something improves. A thousand equal pods that wait for capacity then
    cost one search.
    """

    columns: Columns
    volumes: VolumeBinding
    neighbours: Neighbours
    is_registered: Callable[[str], bool] = lambda driver: True
    """Whether some node has that CSI driver; used in messages about storage."""
    strategy: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED
    share: float = 0.0
    """Part of the nodes after which the search ends; at least `least`.

    Nodes that fit are counted; in kube-scheduler this is percentageOfNodesToScore. 0: `least` suffices in any cluster,
    and fewer if few of the tested nodes fit. Every few pods, the search continues where it ended, since recently tested
    nodes are still in the processor's cache."""
    least: int = _ENOUGH
    _start: int = 0
    _turn: int = 0
    _refused: OrderedDict[object, Refusal] = field(default_factory=OrderedDict)
    _refused_neighbours: list[object] = field(default_factory=list)

    def got_better(self) -> None:
        """Drop cached rejections: a node or a PV may now fit."""
        self._refused.clear()
        self._refused_neighbours.clear()

    def neighbours_changed(self) -> None:
        """Drop cached rejections for affinity and spread: a pod came or went."""
        for shape in self._refused_neighbours:
            self._refused.pop(shape, None)
        self._refused_neighbours.clear()

    def filters(self, ask: Ask, used: tuple[UsedVolume, ...]) -> list[NodeFilter]:
        """Return the pod's filters, without volumes."""
        near = [NodeFilter.one_by_one(RejectionCause.NEIGHBOURS, check) for check in self.neighbours.checks(ask)]
        return node_filters(ask, self.columns, used) + near

    def fits_on(self, ask: Ask, slot: int) -> bool:
        """Return whether the pod fits one node now. Raises Invalid."""
        volumes = self.volumes.sort_out(ask)
        if ask.unsupported or isinstance(volumes, Stop):
            return False
        if any(each.check(slot) for each in self.filters(ask, volumes.used)):
            return False
        return isinstance(self.volumes.asker(volumes)(slot), VolumePlan)

    def decide(self, ask: Ask, *, remembers: bool = True) -> SchedulingDecision | Refusal:
        """Find a node. Reserves nothing: the caller does. Raises Invalid.

        remembers: whether to use and store cached rejections.
        """
        if not self.columns.live:
            return Refusal(NO_NODES, RejectionCause.NODE)
        if ask.unsupported:
            return self._everywhere(ask.unsupported, RejectionCause.UNSUPPORTED)
        volumes = self.volumes.sort_out(ask)
        if isinstance(volumes, Stop):
            cause = RejectionCause.EXCLUSIVE if volumes.message == IN_USE else RejectionCause.CLAIM
            return self._everywhere(volumes.message, cause, awaited=volumes.awaited, hint=self._hint(volumes))
        shape = None
        if remembers and volumes.shape is not None:
            shape = (ask.shape, volumes.shape, self.neighbours.shape(ask.kin))
        if shape is not None and (known := self._refused.get(shape)) is not None:
            return known
        found = self._search(ask, volumes)
        if isinstance(found, Refusal) and shape is not None:
            self._refused[shape] = found
            if RejectionCause.NEIGHBOURS in found.causes:
                self._refused_neighbours.append(shape)
            while len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)
        return found

    def _everywhere(self, message: str, cause: RejectionCause, *, awaited: bool = False, hint: str = "") -> Refusal:
        return Refusal(f"0/{len(self.columns.live)} nodes are available: {message}.{hint}", cause, awaited)

    def _hint(self, stop: Stop) -> str:
        """Return why a claim with immediate binding is unbound, if known."""
        name = stop.unready
        if not name:
            return ""
        if self.volumes.objects.classes.get(name) is None:
            return sentence([of_class(name, "there is no such class")])
        return class_hint(self.volumes.published, name, (self.columns.names[slot] for slot in self.columns.live))

    def _search(self, ask: Ask, volumes: PodVolumes) -> SchedulingDecision | Refusal:
        live = self.columns.live
        filters = self.filters(ask, volumes.used)
        candidates = self.neighbours.candidates(ask)
        nodes = live if candidates is None else candidates
        start = self._start if self._start < len(nodes) else 0
        enough = max(self.least, int(len(live) * self.share))
        some = enough if self.share else min(enough, _SOME)
        fitting, looked = _find(nodes, start, filters, self.volumes.planner(volumes), enough=enough, some=some)
        if candidates is None:
            self._advance(start + looked)
        if not fitting:
            return self._refuse(volumes, nodes, filters)
        slots, left = list(fitting), self.volumes.most_left(volumes)
        slot = scores.best(
            slots,
            ask,
            self.columns,
            left if volumes.simple else lambda slot: (-fitting[slot].waste, left(slot)),
            self._storage_score(ask, fitting),
            self.neighbours.scores(ask, slots),
        )
        return SchedulingDecision(self.columns.names[slot], fitting[slot], volumes)

    def _refuse(self, volumes: PodVolumes, nodes: Sequence[int], filters: Sequence[NodeFilter]) -> Refusal:
        """Ask each node why it rejects the pod."""
        refusals, lacking, live = _Refusals(), list[str](), self.columns.live
        faults = FaultyNodes(volumes, self.volumes.published, self.is_registered)
        checks = [(each.cause, each.check) for each in filters]
        ask_node = self.volumes.asker(volumes)
        for slot in nodes:
            for cause, check in checks:
                if reasons := check(slot):
                    refusals.note(reasons, cause)
                    break
            else:
                answer = ask_node(slot)
                assert not isinstance(answer, VolumePlan)
                if NO_STORAGE in answer:
                    lacking.append(self.columns.names[slot])
                lacks_room = NO_STORAGE in answer or NO_INLINE in answer
                if NO_STORAGE in answer and faults.on(self.columns.names[slot]):
                    answer = tuple(NO_CLASS if reason == NO_STORAGE else reason for reason in answer)
                refusals.note(answer, RejectionCause.STORAGE if lacks_room else RejectionCause.BINDING)
        if len(nodes) < len(live):
            refusals.note((NEAR,), RejectionCause.NEIGHBOURS, nodes=len(live) - len(nodes))
        message = _fit_error(len(live), refusals.counts)
        if lacking:
            message += storage_hint(volumes, lacking, self.volumes.published, self.is_registered)
        unpublished = bool(lacking) and faults.is_unpublished
        return Refusal(message, refusals.causes, needs=volumes.needs, unpublished=unpublished)

    def _advance(self, end: int) -> None:
        self._turn += 1
        if self._turn >= _STAY:
            self._turn, self._start = 0, end % len(self.columns.live)

    def _storage_score(self, ask: Ask, fitting: Mapping[int, VolumePlan]) -> scores.StorageScore | None:
        """Return the strategy's storage score, None if cpu and memory come first."""
        if self.strategy is ScoringStrategy.LEAST_ALLOCATED:
            return None
        shares, node_names, takes = scores.compute_shares(ask, self.columns), self.columns.names, self.volumes.takes

        def score(slot: int) -> float | None:
            rooms, found = takes(fitting[slot], node_names[slot])
            return storage_score(self.strategy, rooms, found, shares(slot))

        return score


def _find(
    nodes: Sequence[int],
    start: int,
    filters: Sequence[NodeFilter],
    plan: Callable[[Sequence[int]], dict[int, VolumePlan]],
    *,
    enough: int,
    some: int,
) -> tuple[dict[int, VolumePlan], int]:
    """Return nodes that fit, with their plans, and how many were tested.

    It starts at `start` and wraps. Testing many nodes at once takes a fifth of the time.
    """
    fitting: dict[int, VolumePlan] = {}
    looked = 0
    while looked < len(nodes) and (lacking := (enough if looked < _LOOKS else some) - len(fitting)) > 0:
        begin = (start + looked) % len(nodes)
        count = min(lacking, _LOOKS - looked) if looked < _LOOKS else looked // 2
        slots = nodes[begin : begin + min(count, len(nodes) - looked)]
        looked += len(slots)
        for each in filters:
            slots = each.sieve(slots)
        fitting |= plan(slots)
    return fitting, looked


class _Refusals:
    """Reasons with the number of nodes, and their causes."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.causes = RejectionCause.NO

    def note(self, reasons: Reasons, cause: RejectionCause, *, nodes: int = 1) -> None:
        """Record that so many nodes rejected the pod."""
        for reason in reasons:
            known = self.counts.get(reason)
            if known is None:
                self.causes |= cause
            self.counts[reason] = (known or 0) + nodes


def _fit_error(nodes: int, histogram: dict[str, int]) -> str:
    """Return Kubernetes' message: reasons with counts, sorted as text."""
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in histogram.items()))
    return f"0/{nodes} nodes are available: {reasons}."
