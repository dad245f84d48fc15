"""Node fit of a pod by selectors, affinity and taints, and of a class by topology. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tonnage.api import names
from tonnage.api.core import Node, Taint
from tonnage.api.pods import PodSpec
from tonnage.api.selectors import node_matcher
from tonnage.api.storage import StorageClass
from tonnage.api.taints import tolerates

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"


def allowed_in(storage_class: StorageClass, segment: Mapping[str, str]) -> bool:
    """Return whether the class allows volumes in that segment: one of its terms must match."""
    terms = storage_class.allowed_topologies
    return not terms or any(all(segment.get(e.key) in e.values for e in term.match_label_expressions) for term in terms)


class Suitability:
    """Node fit of one pod. Make a new one for each list of nodes."""

    def __init__(self, pod: PodSpec) -> None:
        self._pod = pod
        affinity = pod.affinity and pod.affinity.node_affinity
        required = affinity.required if affinity else None
        self._required = node_matcher(required) if required is not None else None

    def of(self, node: Node) -> tuple[bool, bool]:
        """Return whether the pod fits the node, and whether it may stay if it is there."""
        labels, name = node.metadata.labels, node.metadata.name
        fits = self._pod.node_name in ("", name) and self._pod.node_selector.items() <= labels.items()
        if not fits or (self._required is not None and not self._required(labels, name)):
            return False, False
        effects = {taint.effect for taint in _taints(node) if not tolerates(self._pod.tolerations, taint)}
        stays = NO_EXECUTE not in effects
        return stays and NO_SCHEDULE not in effects, stays


def _taints(node: Node) -> Iterable[Taint]:
    cordon = [Taint(key=names.UNSCHEDULABLE_TAINT, effect=NO_SCHEDULE)] if node.spec.unschedulable else []
    return [*node.spec.taints, *cordon]
