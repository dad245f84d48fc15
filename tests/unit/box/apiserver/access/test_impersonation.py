"""Users who act as others."""

from __future__ import annotations

from tests.unit.box.apiserver.access.served import POD_PATH, Served, bind, role

SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def test_impersonation_needs_a_right_to_each_part(served: Served) -> None:
    headers = {
        "Impersonate-User": "jane",
        "Impersonate-Group": "dev",
        "Impersonate-Uid": "u-1",
        "Impersonate-Extra-example.com%2fscope": "one",
    }
    status, body = await served.send("POST", SELF, {}, headers=headers)
    assert status == 201
    assert body["status"]["userInfo"] == {
        "username": "jane",
        "uid": "u-1",
        "groups": ["dev", "system:authenticated"],
        "extra": {"example.com/scope": ["one"]},
    }
    token = await served.token()
    status, body = await served.send("POST", SELF, {}, token=token, headers={"Impersonate-User": "jane"})
    assert (status, 'cannot impersonate resource "users"' in body["message"]) == (403, True)
    rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["jane"]}
    await role(served, "acts", rule)
    await bind(served, "acts", namespace="")
    assert (await served.send("POST", SELF, {}, token=token, headers={"Impersonate-User": "jane"}))[0] == 201
    for more in ({"Impersonate-User": "joe"}, headers):
        assert (await served.send("POST", SELF, {}, token=token, headers=more))[0] == 403
    assert (await served.send("POST", SELF, {}, headers={"Impersonate-Group": "dev"}))[0] == 400


async def test_an_impersonated_user_has_their_own_rights_only(served: Served) -> None:
    account = "system:serviceaccount:default:robot"
    for headers in ({"Impersonate-User": "jane"}, {"Impersonate-User": account}):
        assert (await served.send("GET", POD_PATH, headers=headers))[0] == 403
    await bind(served, "view")
    assert (await served.send("GET", POD_PATH, headers={"Impersonate-User": account}))[0] == 200
    masters = {"Impersonate-User": "jane", "Impersonate-Group": "system:masters"}
    assert (await served.send("GET", POD_PATH, headers=masters))[0] == 200
