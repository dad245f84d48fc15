"""Validation of roles and their bindings (pkg/apis/rbac/validation)."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import dns_subdomain, kind_rules, label_selector, path_segment

_GROUP = "rbac.authorization.k8s.io"
_KINDS = ("ServiceAccount", "User", "Group")


@kind_rules(path_segment)
def role(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Role: rules about resources."""
    _rules(faults, new, namespaced=True)


@kind_rules(path_segment)
def cluster_role(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ClusterRole: rules about resources and paths, or selectors of other ClusterRoles."""
    _rules(faults, new, namespaced=False)
    if "aggregationRule" not in new:
        return
    path = "aggregationRule.clusterRoleSelectors"
    if not new["aggregationRule"].get("clusterRoleSelectors"):
        faults.required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    for here, selector in items(new["aggregationRule"], "clusterRoleSelectors", "aggregationRule."):
        label_selector(faults, selector, here)


def _rules(faults: Faults, new: Obj, *, namespaced: bool) -> None:
    for path, rule in items(new, "rules", ""):
        if not rule.get("verbs"):
            faults.required(f"{path}.verbs", "verbs must contain at least one value")
        if urls := rule.get("nonResourceURLs"):
            if namespaced:
                faults.invalid(f"{path}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
            if any(rule.get(word) for word in ("apiGroups", "resources", "resourceNames")):
                detail = "rules cannot apply to both regular resources and non-resource URLs"
                faults.invalid(f"{path}.nonResourceURLs", urls, detail)
            continue
        if not rule.get("apiGroups"):
            faults.required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            faults.required(f"{path}.resources", "resource rules must supply at least one resource")


@kind_rules(path_segment)
def role_binding(faults: Faults, new: Obj, old: Obj | None) -> None:
    """RoleBinding: a role, which stays the same, and subjects."""
    _binding(faults, new, old, ("Role", "ClusterRole"))


@kind_rules(path_segment)
def cluster_role_binding(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ClusterRoleBinding: a ClusterRole, which stays the same, and subjects."""
    _binding(faults, new, old, ("ClusterRole",))


def _binding(faults: Faults, new: Obj, old: Obj | None, roles: tuple[str, ...]) -> None:
    ref = new.get("roleRef") or {}
    faults.one_of("roleRef.apiGroup", ref.get("apiGroup"), (_GROUP,))
    faults.one_of("roleRef.kind", ref.get("kind"), roles)
    faults.name("roleRef.name", ref.get("name"), path_segment)
    for path, subject in items(new, "subjects", ""):
        _subject(faults, subject, path, namespaced="Role" in roles)
    if old is not None and old.get("roleRef") != ref:
        faults.invalid("roleRef", ref, "cannot change roleRef")


def _subject(faults: Faults, subject: Obj, path: str, *, namespaced: bool) -> None:
    kind, name = subject.get("kind"), subject.get("name")
    if not name:
        faults.required(f"{path}.name")
    if kind == "ServiceAccount":
        if name:
            faults.check(f"{path}.name", name, dns_subdomain)
        if subject.get("apiGroup"):
            faults.not_supported(f"{path}.apiGroup", subject["apiGroup"], ("",))
        if not namespaced and not subject.get("namespace"):
            faults.required(f"{path}.namespace")
    elif kind in ("User", "Group"):
        faults.one_of(f"{path}.apiGroup", subject.get("apiGroup"), (_GROUP,))
    else:
        faults.not_supported(f"{path}.kind", kind or "", _KINDS)
