"""Reviews: who asks, and what they may do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.access.served import Served, bind
from tests.unit.box.apiserver.api import Api


async def test_reviews_are_answered_and_not_stored(api: Api) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    assert (await api.create(path, review))["status"]["allowed"] is True
    await api.create(path, {"spec": {}}, want=422)
    await api.get(path, want=405)
    token = await api.create("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}})
    assert token["status"]["authenticated"] is False
    assert "token" not in token["spec"]
    me = await api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert me["status"]["userInfo"]["username"] == "kubernetes-admin"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({}, 422),
        ({"user": "jane"}, 422),
        ({"resourceAttributes": {"verb": "get"}}, 422),
        ({"user": "jane", "resourceAttributes": {}, "nonResourceAttributes": {}}, 422),
        ({"user": 1, "resourceAttributes": {}}, 400),
        ({"user": "jane", "resourceAttributes": {"verb": "get", "resource": "pods"}}, 201),
        ({"groups": ["system:masters"], "nonResourceAttributes": {"verb": "get", "path": "/x"}}, 201),
    ],
)
async def test_subject_access_reviews(served: Served, spec: Any, code: int) -> None:
    status, body = await served.send("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    assert status == code, body
    if code == 201:
        assert body["status"]["allowed"] is ("groups" in spec)


async def test_a_local_review_is_about_its_namespace(served: Served) -> None:
    path = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews"
    await bind(served, "view")
    spec: Any = {"user": "system:serviceaccount:default:robot"}
    asked = {"verb": "list", "resource": "pods", "namespace": "default"}
    status, body = await served.send("POST", path, {"spec": spec | {"resourceAttributes": asked}})
    assert (status, body["status"]["allowed"]) == (201, True)
    assert body["status"]["reason"] == (
        'RBAC: allowed by RoleBinding "r-view/default" of ClusterRole "view" to User '
        '"system:serviceaccount:default:robot"'
    )
    other = asked | {"namespace": "other"}
    assert (await served.send("POST", path, {"spec": spec | {"resourceAttributes": other}}))[0] == 400


async def test_rules_are_those_of_the_namespace(served: Served) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    token = await served.token()
    await bind(served, "view")
    status, body = await served.send("POST", path, {"spec": {"namespace": "default"}}, token=token)
    assert (status, body["status"]["incomplete"]) == (201, False)
    events = {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["get", "list", "watch"]}
    assert events in body["status"]["resourceRules"]
    keys = ["/.well-known/openid-configuration", "/openid/v1/jwks"]
    assert {"nonResourceURLs": keys, "verbs": ["get"]} in body["status"]["nonResourceRules"]
    _, other = await served.send("POST", path, {"spec": {"namespace": "kube-system"}}, token=token)
    assert events not in other["status"]["resourceRules"]
    _, admin = await served.send("POST", path, {"spec": {"namespace": "default"}})
    assert admin["status"]["resourceRules"] == [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    assert (await served.send("POST", path, {"spec": {}}, token=token))[0] == 400


async def test_no_token_is_written_to_a_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    token = await served.token()
    await served.send("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})
    await served.send("GET", "/api/v1/pods", token=token)
    await served.send("GET", "/api/v1/pods", token=token[:-4])
    assert token[-20:-4] not in caplog.text
