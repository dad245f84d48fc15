"""Kinds without effect: stored whole, answered with a warning that says so."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.kinds.autoscaling import test_validation as scaling
from tests.unit.box.apiserver.kinds.core.validation import test_service as services
from tests.unit.box.apiserver.kinds.core.validation.test_templates import TEMPLATE
from tests.unit.box.apiserver.kinds.makers import named
from tests.unit.box.apiserver.kinds.network import test_validation as network

from tonnage_box.apiserver.kinds.groups import RESOURCES

Obj = dict[str, Any]
GOOD: dict[str, Obj] = {
    "services": services.service(services.P),
    "endpoints": named(subsets=[{"addresses": [{"ip": "10.0.0.1"}], "ports": [services.P]}]),
    network.SLICES: network.SLICE,
    network.INGRESSES: network.route(),
    network.CLASSES: named(spec={"controller": "example.com/c"}),
    network.POLICIES: network.policy(),
    scaling.SCALERS: scaling.scaler(),
    scaling.V1: scaling.scaler(targetCPUUtilizationPercentage=50),
    "replicationcontrollers": named(spec={"template": TEMPLATE}),
    "node.k8s.io/runtimeclasses": named(handler="runc"),
}

STRICT = (
    *GOOD,
    "podtemplates",
    "storage.k8s.io/volumeattributesclasses",
    "certificates.k8s.io/certificatesigningrequests",
    "certificates.k8s.io/clustertrustbundles",
    "certificates.k8s.io/podcertificaterequests",
    "cert-manager.io/certificaterequests",
)


def test_every_kind_without_effect_is_tried() -> None:
    assert {row.key for row in RESOURCES.values() if "stored, not acted on" in row.notice} == GOOD.keys()


@pytest.mark.parametrize("key", GOOD)
async def test_writes_are_answered_with_a_warning(api: Api, key: str) -> None:
    kind = RESOURCES[key].kind
    path = kind.path("default")
    made = await api.send("POST", path, GOOD[key])
    assert made.status == 201, made.body
    assert made.headers["Warning"].startswith(f'299 - "{kind.qualified}: stored, not acted on: ')
    labelled = {"metadata": {"labels": {"a": "b"}}}
    patched = await api.send("PATCH", f"{path}/x", labelled, content_type="application/merge-patch+json")
    assert "stored, not acted on" in patched.headers["Warning"]
    if "status" in RESOURCES[key].subresources:
        written = await api.send("PATCH", f"{path}/x/status", {}, content_type="application/merge-patch+json")
        assert (written.status, "Warning" in written.headers) == (200, False)
    found = await api.get(f"{path}/x")
    assert (found["kind"], found["apiVersion"]) == (kind.kind, kind.api_version)
    table = await api.get(path, accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert table["rows"][0]["cells"][0] == "x"
    await api.delete(f"{path}/x")


@pytest.mark.parametrize("key", STRICT)
async def test_unknown_fields_and_wrong_types_are_rejected(api: Api, key: str) -> None:
    path = RESOURCES[key].kind.path("default")
    strict = {"fieldValidation": "Strict"}
    answer = await api.create(path, {"metadata": {"name": "x"}, "nonsense": 1}, want=400, query=strict)
    assert 'unknown field "nonsense"' in answer["message"]
    await api.create(path, {"metadata": {"name": 1}}, want=400)
    words = ("spec", "handler", "template", "subsets", "endpoints", "parameters")
    await api.create(path, {"metadata": {"name": "x"}} | dict.fromkeys(words, True), want=400)


@pytest.mark.parametrize("key", STRICT)
async def test_an_object_without_anything_is_answered(api: Api, key: str) -> None:
    answer = await api.send("POST", RESOURCES[key].kind.path("default"), {"metadata": {"name": "x"}})
    assert answer.status in (201, 422), answer.body


async def test_services_are_selected_by_type(api: Api) -> None:
    path = "/api/v1/namespaces/default/services"
    await api.create(path, GOOD["services"])
    assert len((await api.get(path, query={"fieldSelector": "spec.type=ClusterIP"}))["items"]) == 1
    assert (await api.get(path, query={"fieldSelector": "spec.type=NodePort"}))["items"] == []


async def test_both_versions_of_an_autoscaler_show_the_same_object(api: Api) -> None:
    old, new = (RESOURCES[key].kind.path("default") for key in (scaling.V1, scaling.SCALERS))
    memory = {"type": "Resource", "resource": {"name": "memory", "target": {"type": "Value", "averageValue": "1Gi"}}}
    made = await api.create(new, scaling.metric(**memory))
    shown = await api.get(f"{old}/x")
    assert "targetCPUUtilizationPercentage" not in shown["spec"]
    shown["spec"]["targetCPUUtilizationPercentage"] = 70
    await api.put(f"{old}/x", shown)
    names = [m["resource"]["name"] for m in (await api.get(f"{new}/x"))["spec"]["metrics"]]
    assert names == ["cpu", "memory"]
    assert made["metadata"].get("annotations") is None
    assert (await api.get(f"{new}/x"))["metadata"].get("annotations") is None
    assert (await api.get(f"{old}/x"))["spec"]["targetCPUUtilizationPercentage"] == 70
