"""Who may do what: roles, bindings, grants and impersonation, over HTTPS."""

from __future__ import annotations

from tests.unit.box.apiserver.access.served import POD_PATH, RBAC, Served, bind, make_namespace, role


async def test_nothing_is_allowed_without_a_role_but_discovery(served: Served) -> None:
    token = await served.token()
    status, body = await served.send("GET", POD_PATH, token=token)
    assert (status, body["reason"], body["details"]["kind"]) == (403, "Forbidden", "pods")
    assert body["message"] == (
        'pods is forbidden: User "system:serviceaccount:default:robot" cannot list resource "pods" '
        'in API group "" in the namespace "default"'
    )
    status, body = await served.send("GET", "/apis/storage.k8s.io/v1/storageclasses/x", token=token)
    assert body["message"].startswith('storageclasses.storage.k8s.io "x" is forbidden: User ')
    assert body["message"].endswith('"storageclasses" in API group "storage.k8s.io" at the cluster scope')
    status, body = await served.send("GET", "/metrics", token=token)
    assert (status, body["message"]) == (
        403,
        'forbidden: User "system:serviceaccount:default:robot" cannot get path "/metrics"',
    )
    for path in ("/api", "/apis", "/apis/apps/v1", "/version", "/openapi/v2", "/healthz"):
        async with served.session.get(served.server.url + path, headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status == 200, path


async def test_a_role_in_one_namespace_is_one_there_only(served: Served) -> None:
    await make_namespace(served, "other")
    token = await served.token()
    await bind(served, "view")
    assert (await served.send("GET", POD_PATH, token=token))[0] == 200
    assert (await served.send("GET", POD_PATH.replace("default", "other"), token=token))[0] == 403
    assert (await served.send("GET", "/api/v1/pods", token=token))[0] == 403
    assert (await served.send("GET", POD_PATH.replace("pods", "secrets"), token=token))[0] == 403
    assert (await served.send("POST", POD_PATH, {"metadata": {"name": "p"}}, token=token))[0] == 403


async def test_changes_are_effective_at_once(served: Served) -> None:
    token = await served.token()
    await bind(served, "view", namespace="")
    assert (await served.send("GET", "/api/v1/pods", token=token))[0] == 200
    assert (await served.send("DELETE", f"{RBAC}/clusterrolebindings/r-view"))[0] == 200
    assert (await served.send("GET", "/api/v1/pods", token=token))[0] == 403


async def test_a_binding_to_a_role_that_is_not_there_is_named(served: Served) -> None:
    token = await served.token()
    await bind(served, "gone", namespace="")
    message = (await served.send("GET", POD_PATH, token=token))[1]["message"]
    assert message.endswith('RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found')


async def test_what_the_admin_does_is_never_restricted(served: Served) -> None:
    assert (await served.send("GET", "/metrics/none"))[0] == 404
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    assert (await role(served, "all", everything))[0] == 201


async def test_who_may_read_pods_may_not_run_commands_in_them(served: Served) -> None:
    """A WebSocket of exec begins with GET."""
    token, path = await served.token(), f"{POD_PATH}/p/exec?command=ls"
    for verbs in (["get"], ["create"]):
        name = f"exec-{verbs[0]}"
        assert (await role(served, name, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}))[0] == 201
        await bind(served, name)
        status, body = await served.send("GET", path, token=token)
        wanted = (403, "cannot create") if verbs == ["get"] else (404, "not found")
        assert (status, wanted[1] in body["message"]) == (wanted[0], True), body
