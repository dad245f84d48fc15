"""Paths that lead to a resource, and those that do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.box.apiserver.api import Api

from tonnage.base.errors import ApiError, UnsupportedError
from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.access import attributes
from tonnage_box.apiserver.kinds.groups import RESOURCES
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.request.routes import Routes

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
async def test_what_is_not_built_is_rejected_by_name(api: Api, subresource: str) -> None:
    for method in ("GET", "POST"):
        answer = await api.call(method, f"/api/v1/namespaces/default/pods/p/{subresource}", want=501)
        assert answer["reason"] == "NotImplemented"
        assert f"pods/{subresource} is not built here" in answer["message"]
    await api.get("/api/v1/namespaces/default/pods/p/nonsense", want=404)


BELOW = sorted({"", "proxy", "resize", "portforward", "x"}.union(*(r.subresources for r in RESOURCES.values())))
"""Every subresource of any kind, "" for none."""
ROUTES = Routes(RESOURCES)


def paths(resource: Resource, *, namespace: str) -> Iterator[str]:
    """All paths of a kind that could be: its collection, an object, every subresource, and what is below that."""
    kind = resource.kind
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    at = f"{root}/namespaces/{namespace}/{kind.plural}" if namespace else f"{root}/{kind.plural}"
    yield at
    for subresource in BELOW:
        path = f"{at}/thing/{subresource}".rstrip("/")
        yield from (path, f"{path}/stats/summary") if subresource else (path,)


def is_served(path: str) -> bool:
    """Whether the path leads anywhere but to a 404, also if it is rejected by name."""
    try:
        ROUTES.find(path)
    except UnsupportedError:
        return True
    except ApiError as rejected:
        return rejected.code != 404
    return True


@pytest.mark.parametrize("key", sorted(RESOURCES))
def test_a_route_exists_in_the_scope_of_its_kind_only(key: str) -> None:
    resource = RESOURCES[key]
    inside, outside = ([*paths(resource, namespace=namespace)] for namespace in ("team", ""))
    if resource.kind.namespaced:
        assert is_served(inside[0])
        assert [*filter(is_served, outside)] == [outside[0]]  # list and watch across all namespaces
    else:
        assert [*filter(is_served, inside)] == []
        assert is_served(outside[0])


@pytest.mark.parametrize("key", sorted(RESOURCES))
def test_what_is_served_is_what_was_authorized(key: str) -> None:
    for path in (*paths(RESOURCES[key], namespace="team"), *paths(RESOURCES[key], namespace="")):
        try:
            place = ROUTES.find(path)
        except (ApiError, UnsupportedError):
            continue
        kind, asked = place.resource.kind, attributes.of_request(Request("GET", path))
        namespace = place.namespace or (place.name if kind.plural == "namespaces" else "")
        assert (asked.group, asked.resource, asked.subresource) == (kind.group, kind.plural, place.subresource), path
        assert (asked.namespace, asked.name) == (namespace, place.name), path
