"""Defaulting of bindings (pkg/apis/rbac/v1/defaults.go). Pure functions of normalized dicts."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj

_RBAC = "rbac.authorization.k8s.io"


def role_binding(obj: Obj) -> None:
    """RoleBinding and ClusterRoleBinding: groups of the role and of its subjects."""
    ref = obj.setdefault("roleRef", {})
    ref["apiGroup"] = ref.get("apiGroup") or _RBAC
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = _RBAC
