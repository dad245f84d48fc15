"""Discovery and OpenAPI through the server, and the documents themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tonnage.box.apiserver.discovery import groups as discovery_groups
from tonnage.box.apiserver.discovery import openapi
from tonnage.box.apiserver.discovery.catalogue import Catalogue
from tonnage.box.apiserver.registry.resources import RESOURCES

Obj = dict[str, Any]
_PROTOBUF3 = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
_PROTOBUF2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


async def test_old_discovery(api: Any) -> None:
    assert (await api.get("/api"))["versions"] == ["v1"]
    groups = {g["name"]: g["preferredVersion"]["groupVersion"] for g in (await api.get("/apis"))["groups"]}
    assert groups["storage.k8s.io"] == "storage.k8s.io/v1"
    assert (await api.get("/apis/storage.k8s.io"))["versions"] == [
        {"groupVersion": "storage.k8s.io/v1", "version": "v1"}
    ]
    rows = {r["name"]: r for r in (await api.get("/api/v1"))["resources"]}
    assert rows["pods"]["shortNames"] == ["po"]
    assert rows["pods"]["categories"] == ["all"]
    assert rows["pods/status"]["verbs"] == ["get", "patch", "update"]
    assert (rows["pods/eviction"]["group"], rows["pods/eviction"]["kind"]) == ("policy", "Eviction")
    assert rows["nodes"]["namespaced"] is False
    rows = {r["name"]: r for r in (await api.get("/apis/storage.k8s.io/v1"))["resources"]}
    assert rows["csistoragecapacities"]["kind"] == "CSIStorageCapacity"


@pytest.mark.parametrize("path", ["/apis/nowhere.io", "/apis/storage.k8s.io/v9", "/openapi/v3/apis/nowhere.io/v1"])
async def test_what_is_not_there_is_a_404(api: Any, path: str) -> None:
    assert (await api.get(path, want=404))["reason"] == "NotFound"


async def test_aggregated_discovery_is_given_to_those_who_ask_for_it(api: Any) -> None:
    accept = f"{discovery_groups.AGGREGATED},application/json"
    answer = await api.send("GET", "/apis", accept=accept)
    assert answer.headers["Content-Type"] == discovery_groups.AGGREGATED
    items = {i["metadata"]["name"]: i["versions"] for i in json.loads(answer.body)["items"]}
    rows = {r["resource"]: r for r in items["storage.k8s.io"][0]["resources"]}
    assert rows["storageclasses"]["scope"] == "Cluster"
    core = json.loads((await api.send("GET", "/api", accept=accept)).body)["items"]
    rows = {r["resource"]: r for r in core[0]["versions"][0]["resources"]}
    eviction = next(s for s in rows["pods"]["subresources"] if s["subresource"] == "eviction")
    assert eviction["responseKind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}


async def test_older_clients_that_know_only_the_beta_get_the_old_form(api: Any) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    assert json.loads((await api.send("GET", "/apis", accept=accept)).body)["kind"] == "APIGroupList"


async def test_openapi_index_names_each_document_with_its_hash(api: Any) -> None:
    paths = (await api.get("/openapi/v3"))["paths"]
    assert paths.keys() >= {"api/v1", "apis/storage.k8s.io/v1"}
    url, _, query = paths["apis/storage.k8s.io/v1"]["serverRelativeURL"].partition("?")
    assert url == "/openapi/v3/apis/storage.k8s.io/v1"
    assert query.startswith("hash=")
    assert (await api.get(url))["openapi"] == "3.0.0"


async def test_v3_as_protobuf_alone_is_refused_by_name_and_beside_json_gets_json(api: Any) -> None:
    refused = json.loads((await api.send("GET", "/openapi/v3", accept=_PROTOBUF3)).body)
    assert (refused["code"], refused["reason"]) == (406, "NotAcceptable")
    both = await api.send("GET", "/openapi/v2", accept=f"{_PROTOBUF2},application/json")
    assert json.loads(both.body)["swagger"] == "2.0"


async def test_documents_are_made_once_and_kept_small() -> None:
    from tonnage.kube.transport import Request

    catalogue = Catalogue(RESOURCES.values())
    first = await catalogue.answer(Request("GET", "/openapi/v3"))
    again = await catalogue.answer(Request("GET", "/openapi/v3"))
    assert first is not None
    assert again is not None
    assert first.headers["ETag"] == again.headers["ETag"]
    assert sum(len(body) for body, _ in catalogue._kept.values()) < 100_000


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
        schema = openapi.Dialect(version=version).described(openapi.Dialect(version=version).ref("x"), "text")
        assert schema.keys() == wanted | {"description"}
