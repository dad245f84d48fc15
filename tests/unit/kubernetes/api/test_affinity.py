"""Affinity terms and spread constraints, with the defaults of Kubernetes."""

from __future__ import annotations

from tonnage.kubernetes.api.affinity import PodAffinity, TopologySpreadConstraint
from tonnage.kubernetes.api.decode import decode


def test_terms_of_a_pod() -> None:
    found = decode(
        b'{"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "namespaceSelector": {}}],'
        b' "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "podAffinityTerm": {"topologyKey": "z"}}]}',
        PodAffinity,
    )
    (term,) = found.required_during_scheduling_ignored_during_execution
    (preferred,) = found.preferred_during_scheduling_ignored_during_execution
    assert (term.topology_key, term.label_selector) == ("zone", None)
    assert term.namespace_selector is not None
    assert (preferred.weight, preferred.pod_affinity_term.topology_key) == (7, "z")


def test_defaults_of_a_spread_constraint() -> None:
    found = decode(b'{"topologyKey": "zone"}', TopologySpreadConstraint)
    assert (found.max_skew, found.when_unsatisfiable, found.min_domains) == (1, "DoNotSchedule", None)
    assert (found.node_affinity_policy, found.node_taints_policy) == ("Honor", "Ignore")
