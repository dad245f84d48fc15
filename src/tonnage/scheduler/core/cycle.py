"""Scheduling cycle: runs the plugins for one pod, to pick a node and plan its volumes there.

Or explains why no node fits. Sans-I/O; it never blocks. Source: k/k pkg/scheduler/schedule_one.go (findNodesThatFitPod,
selectHost), types.go (FitError).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from tonnage.scheduler.core.cache import Cluster
from tonnage.scheduler.framework.plugin import (
    CycleState,
    Diagnosis,
    FilterPlugin,
    NodeFilter,
    PreFilterPlugin,
    RejectionCause,
    SchedulingDecision,
    ScorePlugin,
    Stop,
)
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.plugins.inter_pod import NEAR, InterPod
from tonnage.scheduler.plugins.messages import StorageDiagnosis, class_hint, of_class, sentence
from tonnage.scheduler.plugins.node_fit import NodeFit
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage.scheduler.plugins.volume_binding import VolumeBinding

NO_NODES = "no nodes available to schedule pods"
_ENOUGH, _SOME, _LOOKS = 100, 10, 128
_STAY = 16
_REMEMBERED = 1024


class Cycle:
    """Decides about pods.

    Rejections are cached by the pod's shape until something improves. A thousand equal pods that wait for capacity then
    cost one search. strategy: scoring of nodes that fit.
    """

    share: float = 0.0
    """Part of the nodes after which the search ends; at least `least`.

    Nodes that fit are counted; in kube-scheduler this is percentageOfNodesToScore. 0: `least` suffices in any cluster,
    and fewer if few of the tested nodes fit. Every few pods, the search continues where it ended, since recently tested
    nodes are still in the processor's cache."""
    least: int = _ENOUGH

    def __init__(self, cluster: Cluster, strategy: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED) -> None:
        self.cluster, self._columns = cluster, cluster.columns
        self.node_fit = NodeFit(cluster.columns)
        self.inter_pod = InterPod(cluster.columns, cluster.published.nodes, cluster.topology_pairs)
        self.volumes = VolumeBinding(cluster.objects, cluster.columns, cluster.published, cluster.static, strategy)
        self._pre_filters: tuple[PreFilterPlugin, ...] = (self.volumes, self.inter_pod)
        self._filters: tuple[FilterPlugin, ...] = (self.node_fit, self.inter_pod, self.volumes)  # the cheap ones first
        self._scores: tuple[ScorePlugin, ...] = (self.node_fit, self.inter_pod)
        self._start = self._turn = 0
        self._improvements = self._neighbour_changes = 0
        self._rejected: OrderedDict[object, Diagnosis] = OrderedDict()
        self._rejected_neighbours: list[object] = []

    # Extension points

    def pre_filter(self, ask: Ask) -> CycleState | Stop:
        """Check a pod before any node. Raises: InvalidError."""
        if ask.unsupported:
            return Stop(ask.unsupported, RejectionCause.UNSUPPORTED)
        state = CycleState(ask)
        for plugin in self._pre_filters:
            if (stop := plugin.pre_filter(state)) is not None:
                return stop
        return state

    def filters(self, state: CycleState) -> list[NodeFilter]:
        """Return the filters that the pod needs; the first that rejects a node decides."""
        return [each for plugin in self._filters for each in plugin.filter(state)]

    def fits_on(self, ask: Ask, slot: int) -> bool:
        """Return whether the pod fits one node now. Raises: InvalidError."""
        state = self.pre_filter(ask)
        return isinstance(state, CycleState) and not any(each.check(slot) for each in self.filters(state))

    def reserve(self, ask: Ask, decision: SchedulingDecision) -> None:
        """Count a decision before the API server has it."""
        self.cluster.assume(ask, decision)
        self.volumes.reserve(decision)

    def roll_back(self, ask: Ask, decision: SchedulingDecision) -> None:
        """Undo reserve(): the decision failed, and the pod is not on its node."""
        self.volumes.unreserve(decision)
        self.cluster.pod_lifted(ask.pod.metadata.uid)

    # Deciding

    def decide(self, ask: Ask, *, remembers: bool = True) -> SchedulingDecision | Diagnosis:
        """Find a node. Reserves nothing: the caller does. Raises: InvalidError.

        remembers: whether to use and store cached rejections.
        """
        if not self._columns.live:
            return Diagnosis(NO_NODES, RejectionCause.NODE)
        state = self.pre_filter(ask)
        if isinstance(state, Stop):
            return self._reject_everywhere(state)
        shape = None
        if remembers and state.volumes.shape is not None:
            shape = (ask.shape, state.volumes.shape, self.inter_pod.shape(ask.terms))
            self._forget_rejections()
        if shape is not None and (known := self._rejected.get(shape)) is not None:
            return known
        found = self._search(state)
        if isinstance(found, Diagnosis) and shape is not None:
            self._rejected[shape] = found = replace(found, shape=shape)
            if RejectionCause.NEIGHBOURS in found.causes:
                self._rejected_neighbours.append(shape)
            while len(self._rejected) > _REMEMBERED:
                self._rejected.popitem(last=False)
        return found

    def _forget_rejections(self) -> None:
        """Drop cached rejections that may be over: a node or PV may fit, or pods came or went."""
        cluster = self.cluster
        if self._improvements != cluster.improvements:
            self._rejected.clear()
            self._rejected_neighbours.clear()
        elif self._neighbour_changes != cluster.neighbour_changes:
            for shape in self._rejected_neighbours:
                self._rejected.pop(shape, None)
            self._rejected_neighbours.clear()
        self._improvements, self._neighbour_changes = cluster.improvements, cluster.neighbour_changes

    def _reject_everywhere(self, stop: Stop) -> Diagnosis:
        message = f"0/{len(self._columns.live)} nodes are available: {stop.message}.{self._hint(stop)}"
        return Diagnosis(message, stop.cause, stop.awaited)

    def _hint(self, stop: Stop) -> str:
        """Return why a claim with immediate binding is unbound, if known."""
        name = stop.unready
        if not name:
            return ""
        if self.cluster.objects.classes.get(name) is None:
            return sentence([of_class(name, "there is no such class")])
        return class_hint(self.cluster.published, name, (self._columns.names[slot] for slot in self._columns.live))

    def _search(self, state: CycleState) -> SchedulingDecision | Diagnosis:
        filters = self.filters(state)
        nodes = self._columns.live if state.nodes is None else state.nodes
        start = self._start if self._start < len(nodes) else 0
        fitting, looked = self._find(nodes, start, filters)
        if state.nodes is None:
            self._advance(start + looked)
        if not fitting:
            return self._explain(state, nodes, filters)
        slot = fitting[0] if len(fitting) == 1 else self._select(state, fitting)
        return SchedulingDecision(self._columns.names[slot], state.plan(slot), state.volumes)

    def _find(self, nodes: Sequence[int], start: int, filters: Sequence[NodeFilter]) -> tuple[list[int], int]:
        """Return nodes that fit, and how many were tested.

        It starts at `start` and wraps. Testing many nodes at once takes a fifth of the time.
        """
        enough = max(self.least, int(len(self._columns.live) * self.share))
        some = enough if self.share else min(enough, _SOME)
        fitting: list[int] = []
        looked = 0
        while looked < len(nodes) and (lacking := (enough if looked < _LOOKS else some) - len(fitting)) > 0:
            begin = (start + looked) % len(nodes)
            count = min(lacking, _LOOKS - looked) if looked < _LOOKS else looked // 2
            slots = nodes[begin : begin + min(count, len(nodes) - looked)]
            looked += len(slots)
            for each in filters:
                slots = each.sieve(slots)
            fitting += slots
        return fitting, looked

    def _advance(self, end: int) -> None:
        self._turn += 1
        if self._turn >= _STAY:
            self._turn, self._start = 0, end % len(self._columns.live)

    def _select(self, state: CycleState, slots: Sequence[int]) -> int:
        """Return the best of the nodes that fit.

        Free cpu and memory (LeastAllocated) count, or the storage strategy's score, plus weighted preferences. Among
        equals decide cpu and memory, if the strategy did not count them; then existing PVs that exceed the request
        least, so that a small claim does not use a large disk; then the most published capacity, so that volumes
        spread; then the first.
        """
        by_storage = self.volumes.storage_scores(state, slots, self.node_fit.shares(state.ask))
        scores = by_storage or self.node_fit.least_allocated(state.ask, slots)
        for plugin in self._scores:
            for more, weight in plugin.score(state, slots):
                for index, score in enumerate(more):
                    scores[index] += weight * score
        leaders = _leaders(slots, scores)
        if by_storage and len(leaders) > 1:
            leaders = _leaders(leaders, self.node_fit.least_allocated(state.ask, leaders))
        return max(leaders, key=self.volumes.most_left(state)) if len(leaders) > 1 else leaders[0]

    def _explain(self, state: CycleState, nodes: Sequence[int], filters: Sequence[NodeFilter]) -> Diagnosis:
        """Ask each node why it rejects the pod."""
        counts, causes, live = dict[str, int](), RejectionCause.NO, self._columns.live
        diagnosis = StorageDiagnosis(state.volumes, self.cluster.published, self.cluster.is_registered)
        for slot in nodes:
            for each in filters:
                if reasons := each.check(slot):
                    cause = each.cause
                    if cause is RejectionCause.STORAGE:
                        reasons, cause = diagnosis.read(self._columns.names[slot], reasons)
                    for reason in reasons:
                        if reason not in counts:
                            counts[reason] = 0
                            causes |= cause
                        counts[reason] += 1
                    break
        if len(nodes) < len(live):
            counts[NEAR] = counts.get(NEAR, 0) + len(live) - len(nodes)
            causes |= RejectionCause.NEIGHBOURS
        message = _fit_error(len(live), counts) + diagnosis.hint()
        return Diagnosis(message, causes, needs=state.volumes.needs, unpublished=diagnosis.is_unpublished)


def _leaders(slots: Sequence[int], scores: Sequence[float]) -> list[int]:
    top = max(scores)
    return [slot for slot, score in zip(slots, scores, strict=True) if score == top]


def _fit_error(nodes: int, histogram: dict[str, int]) -> str:
    """Return Kubernetes' message: reasons with counts, sorted as text."""
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in histogram.items()))
    return f"0/{nodes} nodes are available: {reasons}."
