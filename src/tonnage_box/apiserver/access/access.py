"""Access control of one API server, as its other parts use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tonnage.base.aio.clock import Clock
from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.access import attributes
from tonnage_box.apiserver.access.authentication import Authenticator, IsAdminToken
from tonnage_box.apiserver.access.default_roles import GROUP
from tonnage_box.apiserver.access.role_index import RoleIndex
from tonnage_box.apiserver.access.rule import Obj, described, missing
from tonnage_box.apiserver.access.signing_key import SigningKey
from tonnage_box.apiserver.request.user import ADMIN, ApiUser, Attributes, denied
from tonnage_box.apiserver.storage.store import Store

_COMMANDS = frozenset({"pods/attach", "pods/exec"})
"""A WebSocket begins with GET; who may read a pod may not run commands in it (AuthorizePodWebsocketUpgrade)."""


def _is_nobody(token: str) -> bool:
    return False


class ApiAccess:
    """Authentication and authorization over one store. Call start() once the store is loaded.

    key: file of the key that signs tokens; None: service accounts get none here.
    """

    def __init__(
        self, store: Store, clock: Clock, key: Path | None = None, is_admin_token: IsAdminToken = _is_nobody
    ) -> None:
        self.store, self.clock = store, clock
        self.key = SigningKey(key) if key is not None else None
        self.authenticator = Authenticator(store, clock, self.key, is_admin_token)
        self.roles = RoleIndex(store)

    @property
    def issues_tokens(self) -> bool:
        """Whether service accounts get tokens here."""
        return self.key is not None

    def start(self) -> None:
        """Read roles and bindings."""
        self.roles.start()

    def check(self, user: ApiUser, request: Request) -> None:
        """Check that the user may send the request. Raises: a 403."""
        if user is ADMIN or user.is_master:
            return
        asked = attributes.of_request(request)
        wanted = [asked]
        if asked.verb == "get" and asked.full_resource in _COMMANDS:
            wanted.append(replace(asked, verb="create"))
        for one in wanted:
            if self.roles.allowing(user, one) is None:
                raise denied(user, one, self._without_role(user, one))

    def _without_role(self, user: ApiUser, asked: Attributes) -> str:
        """A hint at bindings of the user whose role is missing, as Kubernetes gives it."""
        gone = self.roles.missing_roles(user, asked.namespace)
        if not gone:
            return ""
        return "RBAC: " + ", ".join(f'{kind.lower()}.{GROUP} "{name}" not found' for kind, name in gone)

    def is_allowed(self, user: ApiUser, asked: Attributes) -> bool:
        """Whether the user may do it."""
        return user.is_master or self.roles.allowing(user, asked) is not None

    def missing(self, user: ApiUser, rules: Iterable[Obj], namespace: str) -> list[str]:
        """Those of the rules that the user does not have in a namespace ("": the cluster), for people."""
        if user.is_master:
            return []
        return described(missing(self.roles.rules_of(user, namespace), rules))

    def role_rules(self, kind: str, name: str, namespace: str) -> list[Obj] | None:
        """Rules of a Role or ClusterRole, None when there is none."""
        return self.roles.role_rules(kind, name, namespace)

    def impersonated(self, user: ApiUser, headers: Mapping[str, str]) -> ApiUser:
        """The user that the request asks to act as, else the user. Raises: 400, 403."""
        if not any(name[:12].lower() == "impersonate-" for name in headers):
            return user
        from tonnage_box.apiserver.access import impersonation

        return impersonation.acting_as(self, user, headers)
