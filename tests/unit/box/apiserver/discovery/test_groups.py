"""Groups, versions and resources as discovery shows them."""

from __future__ import annotations

import json

from tests.unit.box.apiserver.api import Api

from tonnage_box.apiserver.discovery import groups as discovery_groups


async def test_old_discovery(api: Api) -> None:
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


async def test_aggregated_discovery_is_given_to_those_who_ask_for_it(api: Api) -> None:
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
