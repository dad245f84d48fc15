"""CustomResourceDefinitions: of kinds that are served, and of others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

from tonnage.kubernetes.api.kinds import DEFINITIONS, SNAPSHOTS
from tonnage_box.apiserver.kinds.apiextensions.validation import NATIVE

PATH = DEFINITIONS.path()
NAME = SNAPSHOTS.qualified


def definition(name: str = NAME, **spec: Any) -> dict[str, Any]:
    kind = NATIVE[NAME]
    names = {"kind": kind.kind, "plural": kind.plural, "shortNames": ["vs"]}
    whole = {
        "group": kind.group, "names": names, "scope": "Namespaced",
        "versions": [
            {"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
             "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-validations": [{"rule": "true"}]}}},
            {"name": "v1beta1", "served": False, "storage": False},
        ],
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": whole | spec}


@pytest.mark.parametrize("name", NATIVE)
async def test_a_kind_that_is_served_takes_its_definition(api: Api, name: str) -> None:
    kind = NATIVE[name]
    body = definition(name, names={"kind": kind.kind, "plural": kind.plural})
    body["spec"]["group"], body["spec"]["scope"] = kind.group, "Namespaced" if kind.namespaced else "Cluster"
    made = await api.create(PATH, body, query={"fieldValidation": "Strict"})
    assert made["spec"] == body["spec"]
    assert {c["type"]: c["status"] for c in made["status"]["conditions"]} == {
        "NamesAccepted": "True", "Established": "True",
    }  # fmt: skip
    assert made["status"]["acceptedNames"]["listKind"] == f"{kind.kind}List"
    assert made["status"]["storedVersions"] == ["v1"]
    again = await api.put(f"{PATH}/{name}", body)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert (await api.get(PATH))["items"][0]["metadata"]["name"] == name


async def test_it_has_no_effect_and_its_deletion_deletes_nothing_else(api: Api) -> None:
    made = await api.send("POST", PATH, definition())
    assert "has no effect" in made.headers["Warning"]
    snapshots = SNAPSHOTS.path("default")
    await api.create(snapshots, {"metadata": {"name": "x"}, "spec": {"source": {"persistentVolumeClaimName": "c"}}})
    gone = await api.send("DELETE", f"{PATH}/{NAME}")
    assert (gone.status, "objects stay" in gone.headers["Warning"]) == (200, True)
    assert len((await api.get(snapshots))["items"]) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            definition("foos.example.com"),
            "custom resources are not served here, only these kinds: certificaterequests.cert-manager.io",
        ),
        (definition(group="example.com"), "spec.group: Invalid value"),
        (definition(scope="Cluster"), "is served with Namespaced here"),
        (definition(names={"kind": "Snap", "plural": "volumesnapshots"}), "spec.names.kind: Invalid value"),
        (definition(versions=[{"name": "v1beta1", "served": True, "storage": True}]), "is served in version v1 here"),
        ({"metadata": {"name": NAME}}, "spec.group: Invalid value"),
    ],
)
async def test_others_are_rejected_by_name(api: Api, body: dict[str, Any], said: str) -> None:
    assert said in (await api.create(PATH, body, want=422))["message"]
