"""Reviews: who asks, and what they may do."""

from __future__ import annotations

from tests.unit.box.apiserver.conftest import Api


async def test_reviews_are_answered_and_not_stored(api: Api) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    assert (await api.create(path, review))["status"]["allowed"] is True
    await api.create(path, {"spec": {}}, want=400)
    await api.get(path, want=405)
    token = await api.create("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}})
    assert token["status"]["authenticated"] is False
    assert "token" not in token["spec"]
    me = await api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert me["status"]["userInfo"]["username"] == "kubernetes-admin"
