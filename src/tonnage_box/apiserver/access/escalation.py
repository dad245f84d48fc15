"""Admission of roles and bindings: a user grants only what they have (pkg/registry/rbac).

The verb `escalate` on the role, or `bind` on the role that a binding names, lifts the restriction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage_box.apiserver.admission.plugins import plain
from tonnage_box.apiserver.request import errors
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.request.user import Attributes
from tonnage_box.apiserver.storage.store import Obj

_EVERYTHING: Sequence[Obj] = (
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
)
_plain_role, _plain_binding = plain(kinds.ROLES), plain(kinds.ROLE_BINDINGS)


async def role(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """Role: its namespace and quota, and what it grants."""
    await _plain_role(context, new, old)
    _check_role(context, new, old, "roles")


async def cluster_role(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """ClusterRole: what it grants."""
    _check_role(context, new, old, "clusterroles")


async def binding(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """RoleBinding: its namespace and quota, and what it grants."""
    await _plain_binding(context, new, old)
    _check_binding(context, new, old, "rolebindings")


async def cluster_binding(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """ClusterRoleBinding: what it grants."""
    _check_binding(context, new, old, "clusterrolebindings")


def _check_role(context: AdmissionContext, new: Obj, old: Obj | None, resource: str) -> None:
    if context.user.is_master or context.operation == "DELETE":
        return
    fields = ("rules", "aggregationRule")
    if old is not None and all(new.get(word) == old.get(word) for word in fields):
        return
    if context.access.is_allowed(context.user, _attributes("escalate", resource, context.namespace, context.name)):
        return
    rules = new.get("rules") or []
    joins = new.get("aggregationRule")
    is_other = old is None or joins != old.get("aggregationRule")
    if joins and is_other and context.access.missing(context.user, _EVERYTHING, ""):
        why = "must have cluster-admin privileges to use the aggregationRule"
        raise errors.forbidden(kinds.CLUSTER_ROLES, context.name, why)
    _check_granted(context, rules, kinds.ROLES if resource == "roles" else kinds.CLUSTER_ROLES)


def _check_binding(context: AdmissionContext, new: Obj, old: Obj | None, resource: str) -> None:
    if context.user.is_master or context.operation == "DELETE":
        return
    fields = ("roleRef", "subjects")
    if old is not None and all(new.get(word) == old.get(word) for word in fields):
        return
    ref, space = new["roleRef"], context.namespace
    named = "clusterroles" if ref["kind"] == "ClusterRole" else "roles"
    if context.access.is_allowed(context.user, _attributes("bind", named, space, ref["name"])):
        return
    rules = context.access.role_rules(ref["kind"], ref["name"], space)
    kind = kinds.ROLES if ref["kind"] == "Role" else kinds.CLUSTER_ROLES
    if rules is None:
        raise errors.not_found(kind, ref["name"])
    _check_granted(context, rules, kinds.ROLE_BINDINGS if space else kinds.CLUSTER_ROLE_BINDINGS)


def _check_granted(context: AdmissionContext, rules: Sequence[Obj], kind: Kind[Any]) -> None:
    missing = context.access.missing(context.user, rules, context.namespace)
    if missing:
        user = context.user
        groups = "[" + " ".join(f'"{group}"' for group in user.groups) + "]"
        why = f'user "{user.name}" (groups={groups}) is attempting to grant RBAC permissions not currently held:\n'
        raise errors.forbidden(kind, context.name, why + "\n".join(missing))


def _attributes(verb: str, resource: str, namespace: str, name: str) -> Attributes:
    return Attributes(verb, "rbac.authorization.k8s.io", resource, namespace=namespace, name=name)
