"""DaemonSet plan: nodes that need a pod, and pods to delete (pkg/controller/daemon). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.decode import convert
from tonnage.api.pods import Pod, PodSpec
from tonnage.api.workloads import DaemonSet, RollingUpdate
from tonnage.box.controllers.podcontrol.history import revision_of
from tonnage.box.controllers.podcontrol.pod_status import is_available, is_ready
from tonnage.box.controllers.podcontrol.pod_template import scaled
from tonnage.claims.node_fit import NO_EXECUTE, NO_SCHEDULE, Suitability

ON_DELETE = "OnDelete"
_NETWORK = "node.kubernetes.io/network-unavailable"
_TOLERATED = (
    (names.NOT_READY_TAINT, NO_EXECUTE),
    (names.UNREACHABLE_TAINT, NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    (names.UNSCHEDULABLE_TAINT, NO_SCHEDULE),
)
"""What a daemon's pod bears in any case: it is part of the node."""


def tolerations(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tolerations of a daemon's pods: the template's, and those of every daemon."""
    given = [dict(one) for one in spec.get("tolerations") or ()]
    network = ((_NETWORK, NO_SCHEDULE),) if spec.get("hostNetwork") else ()
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in (*_TOLERATED, *network)]
    return given + [one for one in added if one not in given]


def pod_of(daemon: DaemonSet) -> PodSpec:
    """What the pods of a DaemonSet ask of a node."""
    spec = daemon.spec.template["spec"]
    return convert({**spec, "tolerations": tolerations(spec)}, PodSpec)


def node_of(pod: Pod) -> str:
    """The node that a daemon's pod is on or is meant for."""
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    if pod.spec.node_name or not affinity or affinity.required is None:
        return pod.spec.node_name
    fields = (field for term in affinity.required.node_selector_terms for field in term.match_fields)
    return next((f.values[0] for f in fields if f.key == "metadata.name" and len(f.values) == 1), "")


@dataclass(frozen=True)
class DaemonSetPlan:
    """create: nodes that get a pod. delete: pods to delete. failed: those of them that failed (with back-off)."""

    create: Sequence[str] = ()
    delete: Sequence[Pod] = ()
    failed: Sequence[Pod] = ()


@dataclass(frozen=True)
class _Place:
    """A node with its pods, the oldest first."""

    node: str
    wanted: bool
    stays: bool
    pods: Sequence[Pod]

    @property
    def alive(self) -> list[Pod]:
        """Pods that have not ended."""
        return [pod for pod in self.pods if not pod.terminated]


class DaemonNodeView:
    """A DaemonSet, its pods and the nodes at one moment. hashed: the revision that pods should have."""

    def __init__(self, daemon: DaemonSet, pods: Sequence[Pod], nodes: Iterable[Node], hashed: str, now: float) -> None:
        self._daemon, self._hashed, self._now = daemon, hashed, now
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            by_node.setdefault(node_of(pod), []).append(pod)
        suits = Suitability(pod_of(daemon))
        self._places = [
            _Place(node.metadata.name, *suits.of(node), by_node.pop(node.metadata.name, ()))
            for node in sorted(nodes, key=lambda n: n.metadata.name)
        ]
        self._lost = [pod for left in by_node.values() for pod in left]
        rolling = daemon.spec.update_strategy.rolling_update or RollingUpdate()
        self._rolls = daemon.spec.update_strategy.type != ON_DELETE
        wanted = sum(place.wanted for place in self._places)
        self._surge = scaled(rolling.max_surge, wanted, up=True) if self._rolls else 0
        self._unavailable = scaled(rolling.max_unavailable, wanted, up=True)

    def plan(self) -> DaemonSetPlan:
        """Next step: missing and surplus pods, then one step of an update."""
        create: list[str] = []
        delete = [pod for pod in self._lost if not pod.metadata.deleting]
        failed: list[Pod] = []
        for place in self._places:
            if not place.stays:
                delete += _staying(place.pods)
                continue
            failed += _staying([pod for pod in place.pods if pod.terminated])
            if place.wanted and not place.pods:
                create.append(place.node)
            delete += self._surplus(_staying(place.alive))
        if self._rolls:
            if self._surge:
                create += self._surging()
            else:
                delete += [pod for pod in self._replacing() if pod not in delete]
        return DaemonSetPlan(create, delete, failed)

    def _is_new(self, pod: Pod) -> bool:
        return revision_of(pod) == self._hashed

    def _is_well(self, pod: Pod) -> bool:
        ready = is_available(pod, self._daemon.spec.min_ready_seconds, self._now)
        return ready and not pod.metadata.deleting and not pod.terminated

    def _surplus(self, pods: Sequence[Pod]) -> list[Pod]:
        """Pods of a node beyond the one to retain: the oldest.

        While surging, an old pod stays until the new one is available.
        """
        if len(pods) < 2:
            return []
        news, olds = [p for p in pods if self._is_new(p)], [p for p in pods if not self._is_new(p)]
        if not self._surge or not news or not olds:
            return list(pods[1:])
        gone = news[1:] + olds[1:]
        return gone + olds[:1] if self._is_well(news[0]) or not self._is_well(olds[0]) else gone

    def _replacing(self) -> list[Pod]:
        """Old pods to delete so that new ones replace them."""
        budget = self._unavailable
        sick, well = list[Pod](), list[Pod]()
        for place in self._places:
            if not place.stays or not (place.wanted or place.pods):
                continue
            pods = _staying(place.alive)
            available = any(self._is_well(pod) for pod in pods)
            budget -= not available
            olds = [pod for pod in pods if not self._is_new(pod)]
            if olds and len(olds) == len(pods):
                (well if available else sick).append(olds[0])
        return sick + well[: max(0, budget)]

    def _surging(self) -> list[str]:
        """Nodes that may have a new pod in addition to their old one, within maxSurge.

        The replacement of an unavailable old pod is not limited.
        """
        budget, free, candidates = self._surge, [], []
        for place in self._places:
            olds = [pod for pod in _staying(place.alive) if not self._is_new(pod)]
            if not place.wanted or not olds:
                continue
            if any(map(self._is_new, place.alive)):
                budget -= 1
            elif any(self._is_well(pod) for pod in olds):
                candidates.append(place.node)
            else:
                free.append(place.node)
        return free + candidates[: max(0, budget)]

    def status(self, collisions: int | None) -> dict[str, Any]:
        """The status to write."""
        wanted = [place for place in self._places if place.wanted]
        available = sum(any(map(self._is_well, place.alive)) for place in wanted)
        return {
            "observedGeneration": self._daemon.metadata.generation,
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": sum(bool(place.pods) for place in wanted),
            "numberMisscheduled": sum(bool(place.pods) for place in self._places if not place.wanted),
            "numberReady": sum(any(map(is_ready, place.alive)) for place in wanted),
            "numberAvailable": available,
            "numberUnavailable": len(wanted) - available,
            "updatedNumberScheduled": sum(any(map(self._is_new, place.alive)) for place in wanted),
            "collisionCount": collisions,
        }


def _staying(pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if not pod.metadata.deleting]
