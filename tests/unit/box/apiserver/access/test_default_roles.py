"""Default roles: complete, and in the form in which they are stored."""

from __future__ import annotations

from tests.unit.box.apiserver.access.served import Served

from tonnage.kubernetes.api.kinds import CLUSTER_ROLES
from tonnage_box.apiserver.access.default_roles import cluster_role_bindings, cluster_roles
from tonnage_box.apiserver.access.rule import Rule
from tonnage_box.apiserver.request.user import Attributes


async def test_they_are_served(served: Served) -> None:
    names = {role["metadata"]["name"] for role in cluster_roles()}
    assert {role.metadata.name for role in (await served.client.list(CLUSTER_ROLES)).items} == names
    assert {"cluster-admin", "admin", "edit", "view", "system:discovery", "system:basic-user"} <= names
    assert {binding["roleRef"]["name"] for binding in cluster_role_bindings()} <= names


def test_view_reads_no_secrets_edit_writes_them_and_admin_grants() -> None:
    rules = {role["metadata"]["name"]: [Rule.read(rule) for rule in role["rules"]] for role in cluster_roles()}

    def may(role: str, asked: Attributes) -> bool:
        return any(rule.allows(asked) for rule in rules[role])

    group = "rbac.authorization.k8s.io"
    for asked, roles in (
        (Attributes("list", "", "pods"), "view edit admin"),
        (Attributes("get", "", "secrets"), "edit admin"),
        (Attributes("create", "apps", "deployments"), "edit admin"),
        (Attributes("create", "", "serviceaccounts", "token"), "edit admin"),
        (Attributes("create", group, "roles"), "admin"),
        (Attributes("create", "", "nodes"), ""),
    ):
        assert [role for role in ("view", "edit", "admin") if may(role, asked)] == roles.split()
