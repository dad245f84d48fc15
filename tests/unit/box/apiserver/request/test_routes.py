"""Paths that lead to a resource, and those that do not."""

from __future__ import annotations

import pytest
from tests.unit.box.apiserver.conftest import Api

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


@pytest.mark.parametrize("name", ["..", ".", "a%2Fb", "a%00b", "%25", "x" * 10_000])
async def test_bad_names_in_paths(api: Api, name: str) -> None:
    await api.get(f"{MAPS}/{name}", want=400)
    await api.delete(f"/api/v1/namespaces/{name}/configmaps/x", want=400)


@pytest.mark.parametrize("path", ["/api/v2/pods", "/apis/x/v1/y", "/api/v1/pods/x", f"{PODS}/x/nothing", "/nothing"])
async def test_unknown_paths(api: Api, path: str) -> None:
    answer = await api.get(path, want=404)
    assert answer["reason"] == "NotFound"


@pytest.mark.parametrize("subresource", ["portforward", "resize", "proxy"])
async def test_what_is_not_built_is_refused_by_name(api: Api, subresource: str) -> None:
    for method in ("GET", "POST"):
        answer = await api.call(method, f"/api/v1/namespaces/default/pods/p/{subresource}", want=501)
        assert answer["reason"] == "NotImplemented"
        assert f"pods/{subresource} is not built here" in answer["message"]
    await api.get("/api/v1/namespaces/default/pods/p/nonsense", want=404)
