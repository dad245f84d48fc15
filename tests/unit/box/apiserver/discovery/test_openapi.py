"""OpenAPI documents of the served kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tonnage_box.apiserver.discovery import openapi
from tonnage_box.apiserver.kinds.groups import RESOURCES


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            else:
                yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


@pytest.mark.parametrize("version", [2, 3])
def test_every_reference_of_a_document_resolves(version: int) -> None:
    document = openapi.v2(RESOURCES.values()) if version == 2 else openapi.v3(RESOURCES.values())
    prefix = "#/definitions/" if version == 2 else "#/components/schemas/"
    known = document["definitions"] if version == 2 else document["components"]["schemas"]
    found = set(references(document))
    assert found
    assert all(ref.startswith(prefix) and ref.removeprefix(prefix) in known for ref in found)


def test_what_kubectl_looks_for_in_a_document() -> None:
    document = openapi.v3([RESOURCES["pods"]])
    schemas = document["components"]["schemas"]
    pod, spec = schemas["io.k8s.api.core.v1.Pod"], schemas["io.k8s.api.core.v1.PodSpec"]
    assert pod["x-kubernetes-group-version-kind"] == [{"group": "", "version": "v1", "kind": "Pod"}]
    assert spec["properties"]["volumes"]["x-kubernetes-patch-strategy"] == "merge,retainKeys"
    assert spec["properties"]["containers"]["x-kubernetes-patch-merge-key"] == "name"
    patch = document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert "fieldValidation" in [p["name"] for p in patch["parameters"]]
    assert document["paths"]["/api/v1/pods"]["get"]["x-kubernetes-action"] == "list"


def test_a_described_reference_is_an_all_of_in_v3_alone() -> None:
    for version, wanted in ((2, {"$ref"}), (3, {"allOf"})):
        schema = openapi.OpenApiVersion(version=version).described(
            openapi.OpenApiVersion(version=version).ref("x"), "text"
        )
        assert schema.keys() == wanted | {"description"}
