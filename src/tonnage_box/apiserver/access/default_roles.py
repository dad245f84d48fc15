"""ClusterRoles and bindings that every cluster has (rbac bootstrap policy of Kubernetes 1.36).

Roles of Kubernetes' own components are left out: here they are parts of this process. The roles are data: verbs,
groups and resources of each rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tonnage_box.apiserver.request.user import AUTHENTICATED, MASTERS, UNAUTHENTICATED

Obj = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
AUTO_UPDATE = f"{GROUP}/autoupdate"
_AGGREGATE = f"{GROUP}/aggregate-to-"
_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch", "delete", "deletecollection")
_HEALTH = ("/livez", "/readyz", "/healthz")

_Table = tuple[tuple[tuple[str, ...], str, str], ...]
"""Verbs, groups and resources; the words of a text are separated by blanks, "core" is the core group."""

_WORKLOADS = "statefulsets statefulsets/scale daemonsets deployments deployments/scale replicasets replicasets/scale"
_VIEW: _Table = (
    (
        _READ,
        "core",
        "pods pods/status pods/log replicationcontrollers replicationcontrollers/scale replicationcontrollers/status "
        "serviceaccounts services services/status endpoints persistentvolumeclaims persistentvolumeclaims/status "
        "configmaps limitranges resourcequotas resourcequotas/status bindings namespaces namespaces/status",
    ),
    (_READ, "core events.k8s.io", "events"),
    (_READ, "discovery.k8s.io", "endpointslices"),
    (
        _READ,
        "apps",
        f"controllerrevisions {_WORKLOADS} statefulsets/status daemonsets/status deployments/status replicasets/status",
    ),
    (_READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    (_READ, "batch", "jobs jobs/status cronjobs cronjobs/status"),
    (_READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
    (_READ, "networking.k8s.io", "networkpolicies ingresses ingresses/status"),
    (_READ, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
)
_EDIT: _Table = (
    (_READ, "core", "pods/attach pods/proxy pods/exec pods/portforward secrets services/proxy"),
    (("impersonate",), "core", "serviceaccounts"),
    (_WRITE, "core", "pods pods/attach pods/proxy pods/exec pods/portforward"),
    (("create",), "core", "pods/eviction serviceaccounts/token"),
    (
        _WRITE,
        "core",
        "replicationcontrollers replicationcontrollers/scale serviceaccounts services services/proxy "
        "persistentvolumeclaims configmaps secrets",
    ),
    (_WRITE, "core events.k8s.io", "events"),
    (_WRITE, "apps", f"{_WORKLOADS} deployments/rollback"),
    (_WRITE, "autoscaling", "horizontalpodautoscalers"),
    (_WRITE, "batch", "jobs cronjobs"),
    (_WRITE, "policy", "poddisruptionbudgets"),
    (_WRITE, "networking.k8s.io", "networkpolicies ingresses"),
    (_READ + _WRITE, "coordination.k8s.io", "leases"),
    (_WRITE, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
)
_ADMIN: _Table = (
    (("create",), "authorization.k8s.io", "localsubjectaccessreviews"),
    (_READ + _WRITE, GROUP, "roles rolebindings"),
)
_ROLES: dict[str, _Table] = {
    "system:basic-user": (
        (("create",), "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
        (("create",), "authentication.k8s.io", "selfsubjectreviews"),
    ),
    "system:auth-delegator": (
        (("create",), "authentication.k8s.io", "tokenreviews"),
        (("create",), "authorization.k8s.io", "subjectaccessreviews"),
    ),
    "system:persistent-volume-provisioner": (
        ((*_READ, "create", "delete"), "core", "persistentvolumes"),
        ((*_READ, "update"), "core", "persistentvolumeclaims"),
        (_READ, "storage.k8s.io", "storageclasses"),
        (("watch",), "core", "events"),
        (("create", "patch", "update"), "core events.k8s.io", "events"),
    ),
    "system:volume-scheduler": (
        ((*_READ, "update", "patch"), "core", "persistentvolumes persistentvolumeclaims"),
        (_READ, "storage.k8s.io", "storageclasses"),
    ),
    "system:cluster-trust-bundle-discovery": ((_READ, "certificates.k8s.io", "clustertrustbundles"),),
}
_PATHS: dict[str, tuple[str, ...]] = {
    "system:discovery": (
        *_HEALTH,
        *("/version", "/version/", "/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*"),
    ),
    "system:public-info-viewer": (*_HEALTH, "/version", "/version/"),
    "system:monitoring": ("/metrics", "/metrics/slis", *_HEALTH, *(f"{path}/*" for path in _HEALTH)),
    "system:service-account-issuer-discovery": ("/.well-known/openid-configuration", "/openid/v1/jwks"),
}
_AGGREGATED: tuple[tuple[str, str, _Table], ...] = (
    ("view", "edit", _VIEW),
    ("edit", "admin", _EDIT),
    ("admin", "", _ADMIN),
)
"""Name of a role that is joined from others, the role that it is part of, and the rules that it adds."""
_BINDINGS: dict[str, tuple[str, ...]] = {
    "cluster-admin": (MASTERS,),
    "system:monitoring": ("system:monitoring",),
    "system:discovery": (AUTHENTICATED,),
    "system:basic-user": (AUTHENTICATED,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
    "system:service-account-issuer-discovery": ("system:serviceaccounts",),
    "system:cluster-trust-bundle-discovery": ("system:serviceaccounts",),
}
"""Groups that have a role in the whole cluster."""


def cluster_roles() -> Iterator[Obj]:
    """The ClusterRoles, those that are joined from others with their rules."""
    yield _role("cluster-admin", [_rule(("*",), "*", "*"), {"nonResourceURLs": ["*"], "verbs": ["*"]}])
    for name, paths in _PATHS.items():
        yield _role(name, [{"nonResourceURLs": list(paths), "verbs": ["get"]}])
    for name, table in _ROLES.items():
        yield _role(name, _rules(table))
    parts: dict[str, list[Obj]] = {}
    for name, whole, table in _AGGREGATED:
        own = f"system:aggregate-to-{name}"
        parts[own] = _rules(table)
        joined = [rule for part in sorted(parts) for rule in parts[part]]  # in the order of the aggregator
        selector = {"matchLabels": {f"{_AGGREGATE}{name}": "true"}}
        role = _role(name, joined, {f"{_AGGREGATE}{whole}": "true"} if whole else {})
        yield role | {"aggregationRule": {"clusterRoleSelectors": [selector]}}
        yield _role(own, parts[own], {f"{_AGGREGATE}{name}": "true"})
        parts = {name: joined}


def cluster_role_bindings() -> Iterator[Obj]:
    """The ClusterRoleBindings."""
    for name, groups in _BINDINGS.items():
        yield {
            "metadata": _meta(name),
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": group} for group in groups],
        }


def _role(name: str, rules: list[Obj], labels: dict[str, str] | None = None) -> Obj:
    return {"metadata": _meta(name, labels or {}), "rules": rules}


def _meta(name: str, labels: dict[str, str] | None = None) -> Obj:
    return {"name": name, "labels": {**_LABELS, **(labels or {})}, "annotations": {AUTO_UPDATE: "true"}}


def _rules(table: _Table) -> list[Obj]:
    return [_rule(*row) for row in table]


def _rule(verbs: tuple[str, ...], groups: str, resources: str) -> Obj:
    named = ["" if group == "core" else group for group in groups.split()]
    return {"apiGroups": named, "resources": resources.split(), "verbs": list(verbs)}
