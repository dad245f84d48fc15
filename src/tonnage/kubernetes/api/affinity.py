"""Typed fields of pod affinity terms and topologySpreadConstraints, for their raw form in a PodSpec."""

from __future__ import annotations

from tonnage.kubernetes.api.meta import LabelSelector, Object


class PodAffinityTerm(Object, frozen=True):
    """A pod affinity term: pods, by labels and namespaces, and the topology key."""

    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: list[str] = []
    mismatch_label_keys: list[str] = []


class WeightedPodAffinityTerm(Object, frozen=True):
    """A preferred term; weight 1 to 100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Object, frozen=True):
    """podAffinity or podAntiAffinity."""

    required_during_scheduling_ignored_during_execution: list[PodAffinityTerm] = []
    preferred_during_scheduling_ignored_during_execution: list[WeightedPodAffinityTerm] = []


class TopologySpreadConstraint(Object, frozen=True):
    """A topology spread constraint."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: list[str] = []
