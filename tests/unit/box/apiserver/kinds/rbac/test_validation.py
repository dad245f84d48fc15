"""Roles and bindings: what is rejected, in the words of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage_box.apiserver.kinds.rbac import validation as rbac

META = {"name": "system:x", "namespace": "ns"}
RULE = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
GROUP = "rbac.authorization.k8s.io"
JANE = {"kind": "User", "name": "jane", "apiGroup": GROUP}


def faults(rule: Any, new: Any, old: Any = None) -> list[str]:
    return [f"{fault.field}: {fault.message}" for fault in rule({"metadata": META, **new}, old, subresource="")]


def test_good_ones() -> None:
    assert faults(rbac.role, {"rules": [RULE]}) == []
    assert faults(rbac.role, {}) == []
    assert faults(rbac.cluster_role, {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}) == []
    ref = {"apiGroup": GROUP, "kind": "Role", "name": "a:b"}
    assert faults(rbac.role_binding, {"roleRef": ref, "subjects": [JANE]}) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"verbs": []}, "rules[0].verbs: Required value: verbs must contain at least one value"),
        ({"apiGroups": []}, "rules[0].apiGroups: Required value: resource rules must supply at least one api group"),
        ({"resources": []}, "rules[0].resources: Required value: resource rules must supply at least one resource"),
    ],
)
def test_rules(change: Any, fault: str) -> None:
    for rule in (rbac.role, rbac.cluster_role):
        assert faults(rule, {"rules": [RULE | change]}) == [fault]


def test_paths_are_of_clusters_and_alone() -> None:
    mixed = {"rules": [RULE | {"nonResourceURLs": ["/x"]}]}
    assert len(faults(rbac.cluster_role, mixed)) == 1
    assert len(faults(rbac.role, mixed)) == 2


def test_aggregation_needs_a_selector() -> None:
    assert len(faults(rbac.cluster_role, {"aggregationRule": {}})) == 1
    bad = {"clusterRoleSelectors": [{"matchLabels": {"a/b/c": "d"}}]}
    assert len(faults(rbac.cluster_role, {"aggregationRule": bad})) == 1


@pytest.mark.parametrize(
    ("ref", "subject", "field"),
    [
        ({"kind": "Pod"}, JANE, "roleRef.kind"),
        ({"apiGroup": "x"}, JANE, "roleRef.apiGroup"),
        ({"name": ""}, JANE, "roleRef.name"),
        ({"name": "a/b"}, JANE, "roleRef.name"),
        ({}, JANE | {"name": ""}, "subjects[0].name"),
        ({}, JANE | {"kind": "Robot"}, "subjects[0].kind"),
        ({}, JANE | {"apiGroup": "x"}, "subjects[0].apiGroup"),
        ({}, {"kind": "ServiceAccount", "name": "r"}, "subjects[0].namespace"),
        ({}, {"kind": "ServiceAccount", "name": "R", "namespace": "n"}, "subjects[0].name"),
        ({}, {"kind": "ServiceAccount", "name": "r", "namespace": "n", "apiGroup": "x"}, "subjects[0].apiGroup"),
    ],
)
def test_bindings(ref: Any, subject: Any, field: str) -> None:
    good = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"}
    found = faults(rbac.cluster_role_binding, {"roleRef": good | ref, "subjects": [subject]})
    assert [fault.partition(":")[0] for fault in found] == [field]


def test_the_role_of_a_binding_stays() -> None:
    ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"}
    old = {"metadata": META, "roleRef": ref | {"name": "edit"}}
    assert "cannot change roleRef" in faults(rbac.role_binding, {"roleRef": ref}, old)[0]
