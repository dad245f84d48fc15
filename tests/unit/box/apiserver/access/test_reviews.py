"""Reviews: who asks, and what they may do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.access.conftest import Served, bind
from tests.unit.box.apiserver.conftest import Api


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
