"""One pod, one decision: a node and how its volumes are had there, or why nowhere. Sans-I/O, no waiting.

Source: k/k pkg/scheduler/schedule_one.go (findNodesThatFitPod, selectHost), types.go (FitError).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.scheduler.framework.cause import Cause
from tonnage.scheduler.framework.nodes import Columns, UsedVolume
from tonnage.scheduler.framework.pod_info import Ask
from tonnage.scheduler.plugins import scores
from tonnage.scheduler.plugins.inline_volumes import NO_INLINE
from tonnage.scheduler.plugins.inter_pod import NEAR, Neighbours
from tonnage.scheduler.plugins.messages import ClassFaults, class_hint, of_class, sentence, storage_hint
from tonnage.scheduler.plugins.node_filters import NodeFilter, Reasons, node_filters
from tonnage.scheduler.plugins.storage_scoring import Strategy, storage_score
from tonnage.scheduler.plugins.volume_binding import IN_USE, NO_CLASS, NO_STORAGE, Plan, PodVolumes, Stop, Volumes

NO_NODES = "no nodes available to schedule pods"
_ENOUGH, _SOME, _LOOKS = 100, 10, 128
_STAY = 16
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """Where the pod goes, and what its volumes need there."""

    node: str
    plan: Plan
    volumes: PodVolumes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the pod goes nowhere now. awaited: it will pass by itself, and need not be told yet. unpublished: nothing is
    published yet for a class of the pod, so that the cause may be known in a moment. needs: what the pod asks of
    published storage, (class, bytes)."""

    message: str
    causes: Cause
    awaited: bool = False
    unpublished: bool = False
    needs: tuple[tuple[str, int], ...] = ()


@dataclass
class Cycle:
    """Decides. Refusals are remembered by the pod's shape until something got better somewhere, so that a thousand
    equal pods that wait for room cost one look at the nodes."""

    columns: Columns
    volumes: Volumes
    neighbours: Neighbours
    is_registered: Callable[[str], bool] = lambda driver: True
    """Whether some node has that CSI driver; for telling why there is no storage."""
    strategy: Strategy = Strategy.LEAST_ALLOCATED
    share: float = 0.0
    """The search ends when this part of the nodes, and at least `least` of them, were found to fit (in kube-scheduler
    percentageOfNodesToScore). 0: that does on any cluster, and fewer do where few of those that were looked at fit.
    Every so many pods, the search goes on where it ended: what was just looked at is quickly looked at again."""
    least: int = _ENOUGH
    _start: int = 0
    _turn: int = 0
    _refused: OrderedDict[object, Refusal] = field(default_factory=OrderedDict)
    _refused_neighbours: list[object] = field(default_factory=list)

    def got_better(self) -> None:
        """Forget refusals: a node or a volume may now take what it refused before."""
        self._refused.clear()
        self._refused_neighbours.clear()

    def neighbours_changed(self) -> None:
        """Forget refusals for the sake of other pods: one came or went."""
        for shape in self._refused_neighbours:
            self._refused.pop(shape, None)
        self._refused_neighbours.clear()

    def filters(self, ask: Ask, used: tuple[UsedVolume, ...]) -> list[NodeFilter]:
        """What keeps the pod from nodes, volumes apart."""
        near = [NodeFilter.one_by_one(Cause.NEIGHBOURS, check) for check in self.neighbours.checks(ask)]
        return node_filters(ask, self.columns, used) + near

    def fits_on(self, ask: Ask, slot: int) -> bool:
        """Whether the pod fits on one node, as things are now. Raises Invalid."""
        volumes = self.volumes.sort_out(ask)
        if ask.unsupported or isinstance(volumes, Stop):
            return False
        if any(each.check(slot) for each in self.filters(ask, volumes.used)):
            return False
        return isinstance(self.volumes.asker(volumes)(slot), Plan)

    def decide(self, ask: Ask, *, remembers: bool = True) -> Decision | Refusal:
        """Find a node. Takes nothing: the caller places the pod and reserves its volumes. Raises Invalid.

        remembers: whether earlier refusals hold, and this one will.
        """
        if not self.columns.live:
            return Refusal(NO_NODES, Cause.NODE)
        if ask.unsupported:
            return self._everywhere(ask.unsupported, Cause.UNSUPPORTED)
        volumes = self.volumes.sort_out(ask)
        if isinstance(volumes, Stop):
            cause = Cause.EXCLUSIVE if volumes.message == IN_USE else Cause.CLAIM
            return self._everywhere(volumes.message, cause, awaited=volumes.awaited, hint=self._hint(volumes))
        shape = None
        if remembers and volumes.shape is not None:
            shape = (ask.shape, volumes.shape, self.neighbours.shape(ask.kin))
        if shape is not None and (known := self._refused.get(shape)) is not None:
            return known
        found = self._search(ask, volumes)
        if isinstance(found, Refusal) and shape is not None:
            self._refused[shape] = found
            if Cause.NEIGHBOURS in found.causes:
                self._refused_neighbours.append(shape)
            while len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)
        return found

    def _everywhere(self, message: str, cause: Cause, *, awaited: bool = False, hint: str = "") -> Refusal:
        return Refusal(f"0/{len(self.columns.live)} nodes are available: {message}.{hint}", cause, awaited)

    def _hint(self, stop: Stop) -> str:
        """Why a claim that binds at once is not bound, where that is known."""
        name = stop.unready
        if not name:
            return ""
        if self.volumes.objects.classes.get(name) is None:
            return sentence([of_class(name, "there is no such class")])
        return class_hint(self.volumes.published, name, (self.columns.names[slot] for slot in self.columns.live))

    def _search(self, ask: Ask, volumes: PodVolumes) -> Decision | Refusal:
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
        return Decision(self.columns.names[slot], fitting[slot], volumes)

    def _refuse(self, volumes: PodVolumes, nodes: Sequence[int], filters: Sequence[NodeFilter]) -> Refusal:
        """Ask each node why not."""
        refusals, lacking, live = _Refusals(), list[str](), self.columns.live
        faults = ClassFaults(volumes, self.volumes.published, self.is_registered)
        checks = [(each.cause, each.check) for each in filters]
        ask_node = self.volumes.asker(volumes)
        for slot in nodes:
            for cause, check in checks:
                if reasons := check(slot):
                    refusals.note(reasons, cause)
                    break
            else:
                answer = ask_node(slot)
                assert not isinstance(answer, Plan)
                if NO_STORAGE in answer:
                    lacking.append(self.columns.names[slot])
                lacks_room = NO_STORAGE in answer or NO_INLINE in answer
                if NO_STORAGE in answer and faults.on(self.columns.names[slot]):
                    answer = tuple(NO_CLASS if reason == NO_STORAGE else reason for reason in answer)
                refusals.note(answer, Cause.STORAGE if lacks_room else Cause.BINDING)
        if len(nodes) < len(live):
            refusals.note((NEAR,), Cause.NEIGHBOURS, nodes=len(live) - len(nodes))
        message = _fit_error(len(live), refusals.counts)
        if lacking:
            message += storage_hint(volumes, lacking, self.volumes.published, self.is_registered)
        unpublished = bool(lacking) and faults.is_unpublished
        return Refusal(message, refusals.causes, needs=volumes.needs, unpublished=unpublished)

    def _advance(self, end: int) -> None:
        self._turn += 1
        if self._turn >= _STAY:
            self._turn, self._start = 0, end % len(self.columns.live)

    def _storage_score(self, ask: Ask, fitting: Mapping[int, Plan]) -> scores.StorageScore | None:
        """What the strategy says of nodes; None when it looks at cpu and memory first."""
        if self.strategy is Strategy.LEAST_ALLOCATED:
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
    plan: Callable[[Sequence[int]], dict[int, Plan]],
    *,
    enough: int,
    some: int,
) -> tuple[dict[int, Plan], int]:
    """Nodes that fit, from there on and round again, with what volumes need there; and how many were looked at. Many
    are looked at together: that costs a fifth."""
    fitting: dict[int, Plan] = {}
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
    """Reasons with the nodes that gave them, and of what sort they are."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.causes = Cause.NO

    def note(self, reasons: Reasons, cause: Cause, *, nodes: int = 1) -> None:
        """So many nodes refused."""
        for reason in reasons:
            known = self.counts.get(reason)
            if known is None:
                self.causes |= cause
            self.counts[reason] = (known or 0) + nodes


def _fit_error(nodes: int, histogram: dict[str, int]) -> str:
    """The usual message: reasons with their counts, sorted as text."""
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in histogram.items()))
    return f"0/{nodes} nodes are available: {reasons}."
