"""User of a request, and what a request wants to do, as authorizers see it (apiserver/pkg/authorization)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tonnage.base.errors import ApiError

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"
"""Group whose members may do everything, whatever the roles are."""
_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True)
class ApiUser:
    """An authenticated user. extra: further facts by key."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_master(self) -> bool:
        """Whether no role restricts the user."""
        return MASTERS in self.groups

    def info(self) -> dict[str, Any]:
        """The UserInfo of authentication.k8s.io/v1; empty fields are left out."""
        shown: dict[str, Any] = {"username": self.name, "uid": self.uid, "groups": list(self.groups)}
        shown["extra"] = {key: list(values) for key, values in self.extra.items()}
        return {key: value for key, value in shown.items() if value}


ADMIN = ApiUser("kubernetes-admin", (MASTERS, AUTHENTICATED))
"""The user of the kubeconfig, and of the clients in this process."""


def account_name(namespace: str, name: str) -> str:
    """Name of a service account as a user."""
    return f"{_ACCOUNT}{namespace}:{name}"


def account_groups(namespace: str) -> tuple[str, ...]:
    """Groups of each service account of a namespace."""
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)


def split_account(user: str) -> tuple[str, str] | None:
    """Namespace and name of a user that is a service account."""
    namespace, _, name = user.removeprefix(_ACCOUNT).partition(":")
    return (namespace, name) if user.startswith(_ACCOUNT) and namespace and name and ":" not in name else None


@dataclass(frozen=True)
class Attributes:
    """One action: on a resource, or on a path where path is not empty. namespace "": all, or none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        """`pods` or `pods/log`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def denied(user: ApiUser, asked: Attributes, reason: str = "") -> ApiError:
    """403 in the words of Kubernetes."""
    if asked.path:
        message = f"forbidden: User {quoted(user.name)} cannot {asked.verb} path {quoted(asked.path)}"
    else:
        scope = f"in the namespace {quoted(asked.namespace)}" if asked.namespace else "at the cluster scope"
        qualified = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
        named = f'{qualified} "{asked.name}"' if asked.name else qualified
        what = f"{quoted(asked.full_resource)} in API group {quoted(asked.group)} {scope}"
        message = f"{named} is forbidden: User {quoted(user.name)} cannot {asked.verb} resource {what}"
    if reason:
        message += f": {reason}"
    return ApiError(message, code=403, reason="Forbidden", group=asked.group, kind=asked.resource, name=asked.name)


def quoted(text: str) -> str:
    """Text in quotes, without characters that a page would take as markup."""
    for plain, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(plain, safe)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
