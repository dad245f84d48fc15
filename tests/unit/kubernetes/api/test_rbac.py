"""ClusterRoles as they are read."""

from __future__ import annotations

from tonnage.kubernetes.api.kinds import CLUSTER_ROLES


def test_rules_and_selectors_are_read() -> None:
    role = CLUSTER_ROLES.decode(
        b'{"metadata":{"name":"r"},"rules":[{"verbs":["get"]}],'
        b'"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]}}'
    )
    assert role.rules == [{"verbs": ["get"]}]
    assert role.aggregation_rule is not None
    assert role.aggregation_rule.cluster_role_selectors[0].match_labels == {"a": "b"}
