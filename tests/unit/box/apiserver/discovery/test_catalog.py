"""Discovery and OpenAPI through the server, and the documents themselves."""

from __future__ import annotations

import json

import pytest
from tests.unit.box.apiserver.api import Api

from tonnage_box.apiserver.discovery.catalog import Catalog
from tonnage_box.apiserver.kinds.groups import RESOURCES

_PROTOBUF3 = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
_PROTOBUF2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"


@pytest.mark.parametrize("path", ["/apis/nowhere.io", "/apis/storage.k8s.io/v9", "/openapi/v3/apis/nowhere.io/v1"])
async def test_what_is_not_there_is_a_404(api: Api, path: str) -> None:
    assert (await api.get(path, want=404))["reason"] == "NotFound"


async def test_older_clients_that_know_only_the_beta_get_the_old_form(api: Api) -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    assert json.loads((await api.send("GET", "/apis", accept=accept)).body)["kind"] == "APIGroupList"


async def test_openapi_index_names_each_document_with_its_hash(api: Api) -> None:
    paths = (await api.get("/openapi/v3"))["paths"]
    assert paths.keys() >= {"api/v1", "apis/storage.k8s.io/v1"}
    url, _, query = paths["apis/storage.k8s.io/v1"]["serverRelativeURL"].partition("?")
    assert url == "/openapi/v3/apis/storage.k8s.io/v1"
    assert query.startswith("hash=")
    assert (await api.get(url))["openapi"] == "3.0.0"


async def test_v3_as_protobuf_alone_is_rejected_by_name_and_beside_json_gets_json(api: Api) -> None:
    rejected = json.loads((await api.send("GET", "/openapi/v3", accept=_PROTOBUF3)).body)
    assert (rejected["code"], rejected["reason"]) == (406, "NotAcceptable")
    both = await api.send("GET", "/openapi/v2", accept=f"{_PROTOBUF2},application/json")
    assert json.loads(both.body)["swagger"] == "2.0"


async def test_documents_are_made_once_and_kept_small() -> None:
    from tonnage.kubernetes.client.transport import Request

    catalog = Catalog(RESOURCES.values())
    first = await catalog.answer(Request("GET", "/openapi/v3"))
    again = await catalog.answer(Request("GET", "/openapi/v3"))
    assert first is not None
    assert again is not None
    assert first.headers["ETag"] == again.headers["ETag"]
    assert sum(len(body) for body, _ in catalog._packed.values()) < 110_000


async def test_the_root_lists_what_can_be_read(api: Api) -> None:
    paths = (await api.get("/"))["paths"]
    assert {"/api/v1", "/apis/apps", "/apis/apps/v1", "/openapi/v3", "/version", "/livez"} <= set(paths)
    for path in paths:
        assert (await api.send("GET", path)).status == 200, path
