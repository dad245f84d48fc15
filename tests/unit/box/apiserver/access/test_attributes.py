"""What a request wants to do, from its method and path."""

from __future__ import annotations

import pytest

from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.access.attributes import of_request
from tonnage_box.apiserver.request.user import Attributes

NS = "/api/v1/namespaces/ns"


@pytest.mark.parametrize(
    ("method", "path", "query", "asked"),
    [
        ("GET", f"{NS}/pods", {}, Attributes("list", "", "pods", namespace="ns")),
        ("GET", f"{NS}/pods/p", {}, Attributes("get", "", "pods", namespace="ns", name="p")),
        ("GET", f"{NS}/pods/p/log", {}, Attributes("get", "", "pods", "log", "ns", "p")),
        ("GET", "/api/v1/pods", {"watch": "true"}, Attributes("watch", "", "pods")),
        ("GET", "/api/v1/pods", {"watch": "false"}, Attributes("list", "", "pods")),
        (
            "GET",
            f"{NS}/pods",
            {"watch": "1", "fieldSelector": "metadata.name=p"},
            Attributes("watch", "", "pods", namespace="ns", name="p"),
        ),
        ("GET", f"{NS}/pods", {"fieldSelector": "metadata.name!=p"}, Attributes("list", "", "pods", namespace="ns")),
        ("DELETE", f"{NS}/pods", {}, Attributes("deletecollection", "", "pods", namespace="ns")),
        ("DELETE", f"{NS}/pods/p", {}, Attributes("delete", "", "pods", namespace="ns", name="p")),
        ("POST", f"{NS}/pods", {}, Attributes("create", "", "pods", namespace="ns")),
        ("PUT", NS, {}, Attributes("update", "", "namespaces", namespace="ns", name="ns")),
        ("PUT", f"{NS}/finalize", {}, Attributes("update", "", "namespaces", "finalize", "ns", "ns")),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/n%73/deployments/d/scale",
            {},
            Attributes("patch", "apps", "deployments", "scale", "ns", "d"),
        ),
        ("GET", "/apis/apps/v1", {}, Attributes("get", path="/apis/apps/v1")),
        ("GET", "/healthz", {}, Attributes("get", path="/healthz")),
        ("POST", "/metrics", {}, Attributes("post", path="/metrics")),
    ],
)
def test_requests(method: str, path: str, query: dict[str, str], asked: Attributes) -> None:
    assert of_request(Request(method, path, query)) == asked
