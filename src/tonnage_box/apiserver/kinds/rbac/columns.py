"""Columns of `kubectl get` for roles and their bindings (pkg/printers/internalversion)."""

from __future__ import annotations

from tonnage_box.apiserver.printers.table import AGE, NAME, Obj, dig, of


def _created(obj: Obj) -> str:
    return str(dig(obj, "metadata", "creationTimestamp") or "<unknown>")


def _role(obj: Obj) -> str:
    return f"{dig(obj, 'roleRef', 'kind')}/{dig(obj, 'roleRef', 'name')}"


def _names(obj: Obj, kind: str) -> str:
    found = [s for s in obj.get("subjects") or () if s.get("kind") == kind]
    space = "namespace" if kind == "ServiceAccount" else ""
    return ", ".join(f"{s.get(space, '')}/{s.get('name')}" if space else str(s.get("name")) for s in found)


ROLE = (NAME, of("Created At", _created, kind="date"))
CLUSTER_ROLE = ROLE
BINDING = (
    NAME,
    of("Role", _role),
    AGE,
    of("Users", lambda o: _names(o, "User"), 1),
    of("Groups", lambda o: _names(o, "Group"), 1),
    of("ServiceAccounts", lambda o: _names(o, "ServiceAccount"), 1),
)
