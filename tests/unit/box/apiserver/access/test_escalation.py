"""What a user may grant to others."""

from __future__ import annotations

from tests.unit.box.apiserver.access.served import RBAC, ROBOT, Served, bind, role

WIDE = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}


async def test_nobody_grants_what_they_do_not_have(served: Served) -> None:
    token = await served.token()
    await bind(served, "admin")
    own = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    assert (await role(served, "mine", own, namespace="default", token=token))[0] == 201
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    status, body = await role(served, "more", nodes, namespace="default", token=token)
    assert status == 403
    assert body["message"] == (
        'roles.rbac.authorization.k8s.io "more" is forbidden: user "system:serviceaccount:default:robot" '
        '(groups=["system:serviceaccounts" "system:serviceaccounts:default" "system:authenticated"]) '
        "is attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["nodes"], Verbs:["get"]}'
    )
    path = f"{RBAC}/namespaces/default/rolebindings"
    for name, code in (("cluster-admin", 403), ("edit", 201), ("none", 404)):
        ref = {"kind": "ClusterRole", "name": name}
        binding = {"metadata": {"name": f"b-{name}"}, "roleRef": ref, "subjects": ROBOT}
        assert (await served.send("POST", path, binding, token=token))[0] == code
    patch = {"rules": [nodes]}
    headers = {"Content-Type": "application/merge-patch+json"}
    one = f"{RBAC}/namespaces/default/roles/mine"
    assert (await served.send("PATCH", one, patch, token=token, headers=headers))[0] == 403
    relabel = {"metadata": {"labels": {"a": "b"}}}
    assert (await served.send("PATCH", one, relabel, token=token, headers=headers))[0] == 200


async def test_escalate_and_bind_lift_the_restriction(served: Served) -> None:
    token = await served.token()
    rights = {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["clusterroles"],
        "verbs": ["create", "escalate"],
    }
    bindings = {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["clusterrolebindings"],
        "verbs": ["create"],
    }
    one = rights | {"verbs": ["bind"], "resourceNames": ["cluster-admin"]}
    assert (await role(served, "granter", rights, bindings, one))[0] == 201
    await bind(served, "granter", namespace="")
    assert (await role(served, "wide", WIDE, token=token))[0] == 201
    for name, code in (("wide", 403), ("cluster-admin", 201)):
        ref = {"kind": "ClusterRole", "name": name}
        binding = {"metadata": {"name": f"b-{name}"}, "roleRef": ref, "subjects": ROBOT}
        assert (await served.send("POST", f"{RBAC}/clusterrolebindings", binding, token=token))[0] == code


async def test_a_role_that_joins_others_needs_all_rights(served: Served) -> None:
    token = await served.token()
    rights = {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create"]}
    await role(served, "maker", rights)
    await bind(served, "maker", namespace="")
    body = {
        "metadata": {"name": "joined"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]},
    }
    status, answer = await served.send("POST", f"{RBAC}/clusterroles", body, token=token)
    assert (status, "must have cluster-admin privileges" in answer["message"]) == (403, True)
