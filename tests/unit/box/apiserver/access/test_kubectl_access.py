"""The real kubectl: tokens, rights and impersonation as people type them."""

from __future__ import annotations

import json

import pytest
from tests.unit.box.apiserver.access.served import TOKEN_PATH, Kubectl, Served

pytestmark = pytest.mark.real
ROBOT = "system:serviceaccount:default:robot"
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reads, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: robot, namespace: default}]
"""
TYPED = "application/vnd.kubernetes.protobuf"


@pytest.fixture
async def typed(served: Served, kubectl: Kubectl) -> Kubectl:
    """kubectl for the verbs that speak nothing but protobuf; skips while this server does not."""
    path, headers = "/api/v1/namespaces", {"Content-Type": TYPED}
    if (await served.send("POST", path, headers=headers))[0] == 415:
        pytest.skip("this API server takes no protobuf")
    return kubectl


async def test_json_alone(kubectl: Kubectl, served: Served) -> None:
    """The same over kubectl's verbs that send JSON."""
    request = '{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 1200}}'
    raw = await kubectl("create", "--raw", TOKEN_PATH, "-f", "-", text=request)
    token = json.loads(raw)["status"]["token"]
    config = ("--kubeconfig=/dev/null", f"--server={served.server.url}", "--insecure-skip-tls-verify")
    rejected = await kubectl(*config, f"--token={token}", "get", "pods", fails=True)
    assert rejected.startswith("Error from server (Forbidden): pods is forbidden: User")
    assert 'User "jane" cannot list resource "nodes"' in await kubectl("get", "nodes", "--as=jane", fails=True)
    await kubectl("apply", "-f", "-", text=ROLE)
    await kubectl(*config, f"--token={token}", "get", "pods")
    shown = await kubectl("get", "rolebindings", "reads", "-o", "wide")
    assert [line.split()[:2] for line in shown.splitlines()] == [["NAME", "ROLE"], ["reads", "Role/reader"]]
    assert "default/robot" in shown
    assert "pods" in await kubectl("describe", "clusterrole", "view")
    wrong = ROLE.replace("resources: [pods]", "resources: [pods], nonResourceURLs: [/x]")
    assert "namespaced rules cannot apply to non-resource URLs" in await kubectl(
        "apply", "-f", "-", text=wrong, fails=True
    )
    served.clock.now += 1300
    assert "must be logged in" in await kubectl(*config, f"--token={token}", "get", "pods", fails=True)


async def test_create_token_and_use_it(typed: Kubectl, served: Served) -> None:
    token = (await typed("create", "token", "robot", "--duration=20m", "--audience=vault")).strip()
    assert token.count(".") == 2
    served.clock.now += 1
    await typed("create", "secret", "generic", "s")
    for arguments in ((), ("--bound-object-kind=Secret", "--bound-object-name=s")):
        token = (await typed("create", "token", "robot", *arguments)).strip()
        config = ("--kubeconfig=/dev/null", f"--server={served.server.url}", "--insecure-skip-tls-verify")
        shown = await typed(*config, f"--token={token}", "auth", "whoami", "-o", "json")
        assert json.loads(shown)["status"]["userInfo"]["username"] == ROBOT
        rejected = await typed(*config, f"--token={token}", "get", "pods", fails=True)
        assert rejected.startswith("Error from server (Forbidden): pods is forbidden: User")
    assert "less than 10 minutes" in await typed("create", "token", "robot", "--duration=5m", fails=True)
    assert '"gone" not found' in await typed("create", "token", "gone", fails=True)


async def test_roles_are_made_bound_and_asked_about(typed: Kubectl) -> None:
    assert (await typed("auth", "can-i", "delete", "nodes")).strip() == "yes"
    assert (await typed("auth", "can-i", "list", "pods", "--as", ROBOT, fails=True)) is not None
    await typed("create", "role", "reader", "--verb=get,list", "--resource=pods,pods/log")
    await typed("create", "rolebinding", "reads", "--role=reader", "--serviceaccount=default:robot")
    assert (await typed("auth", "can-i", "list", "pods", "--as", ROBOT)).strip() == "yes"
    assert (await typed("auth", "can-i", "get", "pods", "--subresource=log", "--as", ROBOT)).strip() == "yes"
    rows = [line.split() for line in (await typed("auth", "can-i", "--list", "--as", ROBOT)).splitlines()]
    assert ["pods", "[]", "[]", "[get", "list]"] in rows
    assert ["[/openid/v1/jwks]", "[]", "[get]"] in rows
    await typed("create", "clusterrole", "paths", "--verb=get", "--non-resource-url=/metrics")
    await typed("create", "clusterrolebinding", "p", "--clusterrole=paths", "--user=jane")
    assert (await typed("auth", "can-i", "get", "/metrics", "--as=jane")).strip() == "yes"
    shown = await typed("get", "clusterrolebindings", "p", "-o", "wide")
    assert [line.split()[:2] for line in shown.splitlines()] == [["NAME", "ROLE"], ["p", "ClusterRole/paths"]]
    assert "jane" in shown


async def test_whoami_and_impersonation(typed: Kubectl) -> None:
    assert "kubernetes-admin" in await typed("auth", "whoami")
    shown = json.loads(await typed("auth", "whoami", "-o", "json", "--as=jane", "--as-group=dev", "--as-uid=u"))
    assert shown["status"]["userInfo"] == {
        "username": "jane",
        "uid": "u",
        "groups": ["dev", "system:authenticated"],
    }
    rejected = await typed("get", "nodes", "--as=jane", fails=True)
    assert 'User "jane" cannot list resource "nodes"' in rejected


async def test_reconcile_takes_a_file_of_roles(typed: Kubectl) -> None:
    text = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: r, labels: {rbac.example.com/join: "true"}}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
"""
    assert "reconciled" in await typed("auth", "reconcile", "-f", "-", text=text)
    wider = text.replace("[get]", "[get, list]")
    assert "reconciled" in await typed("auth", "reconcile", "-f", "-", text=wider)
    assert "list" in await typed("get", "clusterrole", "r", "-o", "yaml")
    assert "Invalid value" in await typed(
        "create",
        "-f",
        "-",
        text=text.replace("name: r,", "name: x,").replace("pods]", "pods], nonResourceURLs: [/x]"),
        fails=True,
    )
    described = await typed("describe", "clusterrole", "view")
    assert "pods" in described
