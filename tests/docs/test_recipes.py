"""Manifests of docs/recipes: Kubernetes' own kinds on the box's API server, custom resources by their projects' schemas.

A file of tests/data/recipes has the fields that the recipe of its name uses, as the named source defines them.
"""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.pages import blocks
from tests.programs import found

from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.parameters import select
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import STRATEGIC_PATCH, Request
from tonnage.provisioning.claims.provisioning import parameters_of
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.store import Store

ROOT = Path(__file__).parents[2]
FILES = {path.stem: path for path in sorted((ROOT / "examples" / "recipes").glob("*.yaml"))}
SCHEMAS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "tests/data/recipes").glob("*.yaml")}
PAGES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
NAMESPACES = ("argocd", "tonnage-system")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FILES[name].read_text()))


def kind_of(document: dict[str, Any]) -> kinds.Kind[Any] | None:
    """Kubernetes' own kind of a document."""
    return kinds.BY_KIND.get((document.get("apiVersion", ""), document.get("kind", "")))


def custom() -> Iterator[tuple[str, dict[str, Any]]]:
    """Documents that are no kind of Kubernetes', each with its file's name."""
    return ((name, one) for name in FILES for one in documents(name) if kind_of(one) is None)


def claims(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Specs of the claims that its controller makes of an object."""
    spec = document["spec"]
    match document["kind"]:
        case "Cluster":
            asked = [(one["storageClass"], one["size"]) for one in (spec["storage"], spec["walStorage"])]
        case "KafkaNodePool":
            asked = [(one["class"], one["size"]) for one in spec["storage"]["volumes"]]
        case "Elasticsearch":
            return [claim["spec"] for each in spec["nodeSets"] for claim in each["volumeClaimTemplates"]]
        case "StatefulSet":
            return [claim["spec"] for claim in spec["volumeClaimTemplates"]]
        case _:
            return []
    return [
        {"storageClassName": name, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
        for name, size in asked
    ]


def pods(name: str, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Specs of the pods that a custom resource, or a chart's values, has templates of."""
    if name == "github-runners-values":
        return [document["template"]["spec"]]
    own = {"containers": [{"name": "elasticsearch", "image": "elasticsearch"}]}
    return [own | each["podTemplate"]["spec"] for each in document.get("spec", {}).get("nodeSets", ())]


def faults(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """What of a value its schema does not know, or forbids: OpenAPI v3, as far as the schemas here use it."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    expected = TYPES.get(schema.get("type", ""), object)
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        yield f"{path}: want {schema['type']}"
        return
    if value not in schema.get("enum", [value]) or not re.fullmatch(schema.get("pattern", "(?s).*"), str(value)):
        yield f"{path}: {value!r} is not allowed"
    if isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{path}: {value} is too small"
    if isinstance(value, dict):
        yield from (f"{path}.{key}: required" for key in schema.get("required", ()) if key not in value)
        for key, inner in value.items():
            known = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            yield from [f"{path}.{key}: unknown"] if known is None else faults(inner, known, f"{path}.{key}")
    for index, inner in enumerate(value if isinstance(value, list) else ()):
        yield from faults(inner, schema.get("items", {}), f"{path}[{index}]")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"size": 1}, "x.size: want string"),
        ({"sise": "1Gi"}, "x.sise: unknown"),
        ({}, "x.size: required"),
        ({"size": "1Gi", "roles": ["boss"]}, "x.roles[0]: 'boss' is not allowed"),
        ({"size": "1Gi", "count": True}, "x.count: want integer"),
        ({"size": "1Gi", "count": 0}, "x.count: 0 is too small"),
        ({"size": "big"}, "x.size: 'big' is not allowed"),
    ],
)
def test_a_schema_finds_faults(value: dict[str, Any], fault: str) -> None:
    schema = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "string", "pattern": r"\d+Gi"},
            "count": {"type": "integer", "minimum": 1},
            "roles": {"type": "array", "items": {"type": "string", "enum": ["broker"]}},
        },
    }
    assert fault in list(faults(value, schema, "x"))
    assert list(faults({"size": "1Gi", "count": 1, "roles": ["broker"]}, schema, "x")) == []


@pytest.mark.parametrize(
    ("name", "document"), list(custom()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_custom_resource_has_only_fields_of_its_projects_schema(name: str, document: dict[str, Any]) -> None:
    schema = SCHEMAS[name]
    assert schema["source"]
    assert schema["version"]
    if "file" in schema:
        assert list(faults(document, schema["file"], name)) == []
        return
    known = schema["kinds"][f"{document['apiVersion']} {document['kind']}"]
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    assert list(faults(document["spec"], known, name)) == []


def test_there_is_no_schema_that_no_recipe_uses() -> None:
    used = {(name, f"{one.get('apiVersion')} {one.get('kind')}") for name, one in custom()}
    assert {name for name, schema in SCHEMAS.items() if "file" in schema} <= {name for name, _ in used}
    assert {(name, kind) for name, schema in SCHEMAS.items() for kind in schema.get("kinds", ())} <= used


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer(Store(extractor()))
    await server.start()
    client = Client(server.transport("system:admin"))
    for name in NAMESPACES:
        await client.create(kinds.NAMESPACES, {"metadata": {"name": name}})
    yield server
    await server.stop()


async def create(server: ApiServer, document: dict[str, Any]) -> dict[str, Any]:
    """Create an object with strict field validation; a warning fails."""
    kind = kind_of(document)
    assert kind is not None
    path = kind.path(document["metadata"].get("namespace", "default"))
    request = Request("POST", path, {"fieldValidation": "Strict"}, json.dumps(document).encode())
    answer = await server.transport("system:admin").request(request)
    assert answer.status == 201, answer.body
    assert "Warning" not in answer.headers, answer.headers["Warning"]
    made: dict[str, Any] = json.loads(answer.body)
    return made


@pytest.mark.parametrize("name", FILES)
async def test_the_api_server_takes_all_of_a_recipe(server: ApiServer, name: str) -> None:
    """Its objects, the metadata of custom resources, and their claims and pods, which name classes of the recipe."""
    counter = iter(range(100))
    classes = {"tonnage-runners"} if name == "github-runners-values" else set()
    for document in documents(name):
        if kind_of(document):
            await create(server, document)
        elif "metadata" in document:
            await create(server, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]})
        if document.get("kind") == "StorageClass":
            classes.add(document["metadata"]["name"])
        for spec in claims(document) if "spec" in document else ():
            assert spec["storageClassName"] in classes
            head = kinds.CLAIMS.head() | {"metadata": {"name": f"claim-{next(counter)}"}}
            made = await create(server, head | {"spec": spec})
            assert made["status"]["phase"] == "Pending"
        for spec in pods(name, document):
            head = kinds.PODS.head() | {"metadata": {"name": f"pod-{next(counter)}"}}
            made = await create(server, head | {"spec": spec})
            for volume in made["spec"].get("volumes", ()):
                if "ephemeral" in volume:
                    assert volume["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"] in classes


async def test_agent_and_driver_take_the_classes_of_recipes(server: ApiServer, tmp_path: Path) -> None:
    driver = Driver("n", {"scratch": FakePool("scratch", 1 << 40)}, tmp_path)
    found_classes = [one for name in FILES for one in documents(name) if one.get("kind") == "StorageClass"]
    assert len(found_classes) == 5
    for document in found_classes:
        made = kinds.STORAGE_CLASSES.decode(json.dumps(await create(server, document)).encode())
        assert made.volume_binding_mode == "WaitForFirstConsumer"
        assert made.provisioner == "csi.tonnage.dev"
        assert select(driver, parameters_of(made)).pool.name == "scratch"


async def test_the_patch_of_argo_cd_leaves_other_keys(server: ApiServer) -> None:
    (patch,) = documents("argo-cd")
    own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": patch["metadata"], "data": {"url": "https://x"}}
    await create(server, own)
    path = kinds.CONFIG_MAPS.path("argocd", "argocd-cm")
    request = Request("PATCH", path, {}, json.dumps(patch).encode(), STRATEGIC_PATCH)
    answer = await server.transport("system:admin").request(request)
    assert answer.status == 200, answer.body
    assert set(json.loads(answer.body)["data"]) == {"url", *patch["data"]}


def in_lua(value: Any) -> str:
    """A value of JSON as an expression of Lua."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{json.dumps(key)}] = {in_lua(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


SELECTED = {"volume.kubernetes.io/selected-node": "n1"}
NAMED = {"volume.kubernetes.io/storage-provisioner": "csi.tonnage.dev"}


@pytest.mark.real  # not in make check: it runs Lua
@pytest.mark.parametrize(
    ("annotations", "status", "health"),
    [
        (None, {"phase": "Pending"}, "Healthy"),
        ({"a": "b"}, {"phase": "Pending"}, "Healthy"),
        (None, None, "Healthy"),
        (SELECTED, {"phase": "Pending"}, "Progressing"),
        (NAMED, {"phase": "Pending"}, "Progressing"),
        (SELECTED | NAMED, {"phase": "Bound"}, "Healthy"),
        (SELECTED | NAMED, {"phase": "Lost"}, "Degraded"),
    ],
)
def test_argo_cd_gets_the_health_of_a_claim(
    annotations: dict[str, str] | None, status: dict[str, str] | None, health: str
) -> None:
    """In Lua 5.1, the language of Argo CD's interpreter, with the libraries that its scripts have."""
    (patch,) = documents("argo-cd")
    (script,) = patch["data"].values()
    claim: dict[str, Any] = {"metadata": {"name": "notes"} | ({"annotations": annotations} if annotations else {})}
    claim |= {"status": status} if status else {}
    text = f"string, math, io, debug, coroutine = nil\nobj = {in_lua(claim)}\nlocal f = function()\n{script}\nend\nprint(f().status)"
    ended = subprocess.run([found("lua5.1"), "-"], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{health}\n"


def test_pages_link_all_files_and_show_what_is_in_them() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"\]\(\.\./\.\./examples/recipes/([\w-]+)\.yaml\)", text)) == set(FILES)
    runs = {
        textwrap.dedent("\n".join(lines[start:end]))
        for lines in (path.read_text().splitlines() for path in FILES.values())
        for start in range(len(lines))
        for end in range(start + 1, len(lines) + 1)
    }
    shown = [block.text.rstrip("\n") for page in PAGES for block in blocks(page) if block.language == "yaml"]
    assert len(shown) > 8
    assert [block for block in shown if block not in runs] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem)
def test_a_recipe_says_what_to_check_and_what_goes_wrong(page: Path) -> None:
    text = page.read_text()
    assert {"What to check", "What goes wrong"} <= set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    by_schema = any(f"/{name}.yaml)" in text for name in SCHEMAS)
    assert by_schema == ("[checked by schema only](index.md#what-was-checked-and-what-was-not)" in text)
