"""What a pod wants of other pods: the raw fields of spec.affinity and spec.topologySpreadConstraints, typed."""

from __future__ import annotations

from tonnage.api.meta import LabelSelector, Object


class PodAffinityTerm(Object, frozen=True):
    """Pods, by labels and namespaces, and the label of nodes that says what is together."""

    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: list[str] = []
    mismatch_label_keys: list[str] = []


class WeightedPodAffinityTerm(Object, frozen=True):
    """A term that is a wish; weight 1 to 100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Object, frozen=True):
    """podAffinity or podAntiAffinity."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []


class TopologySpreadConstraint(Object, frozen=True):
    """How evenly matching pods are to be spread over the values of a node label."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: list[str] = []
