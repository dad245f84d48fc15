"""Node fit of a pod by selectors, affinity and taints. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node, Taint
from tonnage.kubernetes.api.pods import PodSpec
from tonnage.kubernetes.api.selectors import node_matcher
from tonnage.kubernetes.api.taints import tolerates

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"


class Suitability:
    """Node fit of one pod. Make a new one for each list of nodes."""

    def __init__(self, pod: PodSpec) -> None:
        self._pod = pod
        affinity = pod.affinity and pod.affinity.node_affinity
        required = affinity.required if affinity else None
        self._required = node_matcher(required) if required is not None else None

    def matches(self, node: Node) -> bool:
        """Return whether the node has what the pod's selector and required affinity ask for."""
        labels, name = node.metadata.labels, node.metadata.name
        if self._pod.node_name not in ("", name) or not self._pod.node_selector.items() <= labels.items():
            return False
        return self._required is None or self._required(labels, name)

    def of(self, node: Node) -> tuple[bool, bool]:
        """Return whether the pod fits the node, and whether it may stay if it is there."""
        if not self.matches(node):
            return False, False
        effects = {taint.effect for taint in _taints(node) if not tolerates(self._pod.tolerations, taint)}
        stays = NO_EXECUTE not in effects
        return stays and NO_SCHEDULE not in effects, stays


def _taints(node: Node) -> Iterable[Taint]:
    cordon = [Taint(key=names.UNSCHEDULABLE_TAINT, effect=NO_SCHEDULE)] if node.spec.unschedulable else []
    return [*node.spec.taints, *cordon]
