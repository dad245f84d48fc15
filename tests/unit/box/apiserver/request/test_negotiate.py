"""Bodies: their media types, depth, numbers and size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.bodies import config

from tonnage.kubernetes.client.transport import JSON, MERGE_PATCH, PROTOBUF, STRATEGIC_PATCH, Request
from tonnage_box.apiserver.protobuf import envelope

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"\xff", 400),
        (b'{"metadata": []}', 400),
        (b'{"metadata": {"name": 1}}', 400),
        (b'{"metadata": {"name": "x", "namespace": "other"}}', 400),
        (b'{"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}', 400),
        (b'{"metadata": {"name": "x", "resourceVersion": "1"}}', 400),
        (b'{"metadata": {"name": "Not_A_Name"}}', 422),
        (b"[" * 100_000, 400),
        (b" " * (3 << 20) + b"{}", 413),
    ],
)
async def test_bad_bodies(api: Api, body: bytes, code: int) -> None:
    answer = await api.create(MAPS, body, want=code)
    assert (answer["kind"], answer["code"]) == ("Status", code)


async def test_content_types(api: Api) -> None:
    answer = await api.create(MAPS, config(), want=415, content_type="text/plain")
    assert "text/plain" in answer["message"]
    await api.create(MAPS, b"metadata: {name: x}\ndata: {when: 2001-01-01}", content_type="application/yaml")
    assert (await api.get(f"{MAPS}/x"))["data"] == {"when": "2001-01-01"}
    bomb = b"metadata: {name: y}\na: &a [x]\nb: [*a, *a]"
    await api.create(MAPS, bomb, want=400, content_type="application/yaml")
    await api.get(MAPS, want=406, accept="application/cbor")
    await api.get(MAPS, accept="*/*")
    apply = await api.patch(f"{MAPS}/x", b"{}", want=415, content_type="application/apply-patch+yaml")
    assert "server-side apply" in apply["message"]


def read(body: bytes) -> Any:
    return envelope.decode(body, json.loads)


async def test_protobuf_is_read_and_written(api: Api) -> None:
    body = envelope.encode(config(key="value"))
    made = await api.send("POST", MAPS, body, content_type=PROTOBUF, accept=f"{PROTOBUF},{JSON}")
    assert (made.status, made.headers["Content-Type"]) == (201, PROTOBUF)
    assert read(made.body) == await api.get(f"{MAPS}/x")
    assert read(made.body)["data"] == {"key": "value"}
    part = f"{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    partial = await api.send("GET", f"{MAPS}/x", accept=part)
    metadata = (await api.get(f"{MAPS}/x"))["metadata"]
    assert read(partial.body) == {
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata
    }  # fmt: skip
    listed = await api.send("GET", MAPS, accept=PROTOBUF)
    items = (await api.get(MAPS))["items"]
    version = (await api.get(MAPS))["metadata"]["resourceVersion"]
    head = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": version}}
    assert listed.body == envelope.encode(head | {"items": items})
    table = await api.get(MAPS, accept=f"{PROTOBUF};as=Table;g=meta.k8s.io;v=v1,{JSON};as=Table;g=meta.k8s.io;v=v1")
    assert table["kind"] == "Table"


async def test_errors_are_in_protobuf_for_those_who_ask(api: Api) -> None:
    for method, path, body in (("GET", f"{MAPS}/none", b""), ("POST", MAPS, b"k8s\0\xff"), ("GET", "/apis/none", b"")):
        found = await api.send(method, path, body, content_type=PROTOBUF, accept=PROTOBUF)
        status = read(found.body)
        assert (status["kind"], status["code"]) == ("Status", found.status)
    assert (await api.send("POST", MAPS, b"{}", content_type=PROTOBUF)).status == 400


async def test_a_watch_in_protobuf_has_frames(api: Api) -> None:
    await api.create(MAPS, config("a"))
    request = Request("GET", MAPS, {"watch": "1", "allowWatchBookmarks": "1"}, accept=f"{PROTOBUF};stream=watch")
    async with api.transport.stream(request) as chunks:
        wanted = await api.get(f"{MAPS}/a")
        data = await anext(chunks)
        frame = envelope.frame("ADDED", envelope.encode(wanted))
        assert data == frame
        await api.create(MAPS, config("b", key="value"))
        frame = envelope.frame("ADDED", envelope.encode(await api.get(f"{MAPS}/b")))
        assert await anext(chunks) == frame


PODS = "/api/v1/namespaces/default/pods"


REVISIONS = "/apis/apps/v1/namespaces/default/controllerrevisions"


YAML = "application/yaml"


@pytest.mark.parametrize(("depth", "code"), [(63, 201), (64, 400), (100_000, 400)])
async def test_the_depth_of_json(api: Api, depth: int, code: int) -> None:
    body = b'{"metadata":{"name":"x"},"unknown":' + b"[" * depth + b"]" * depth + b"}"
    await api.create(MAPS, body, want=code)


HEAD_OF_JSON = b'{"metadata":{"name":"x"},"unknown":'


@pytest.mark.parametrize(
    ("items", "joint"),
    [
        ([b"{}"] * 50_000, b"[%s]"),
        ([b"1"] * 100_000, b"[%s]"),
        ([b'"x"'] * 100_000, b"[%s]"),
        ([b'"k%d":1' % n for n in range(50_000)], b"{%s}"),
        ([b'{"a":[1]}'] * 25_000, b"[%s]"),
    ],
    ids=["objects", "numbers", "texts", "keys", "nested"],
)
async def test_many_keys_and_values_in_json(api: Api, items: list[bytes], joint: bytes) -> None:
    fewer = HEAD_OF_JSON + joint % b",".join(items[: len(items) * 99 // 100]) + b"}"
    for content_type, verb, path in (("application/json", "POST", MAPS), (MERGE_PATCH, "PATCH", f"{MAPS}/x")):
        await api.call(verb, path, fewer, content_type=content_type, want=201 if verb == "POST" else 200)
        more = HEAD_OF_JSON + joint % b",".join(items) + b"}"
        answer = await api.call(verb, path, more, content_type=content_type, want=400)
        assert answer["message"] == "the body of the request has more than 100000 keys and values"


@pytest.mark.parametrize("text", [",:{[" * 50_000, '",' * 50_000, '\\",\\' * 50_000, "\\" * 100_000 + ","])
async def test_texts_are_one_value_whatever_they_hold(api: Api, text: str) -> None:
    await api.create(MAPS, {"metadata": {"name": "x"}, "data": {"a": text, "b": "c"}})
    assert (await api.get(f"{MAPS}/x"))["data"] == {"a": text, "b": "c"}


async def test_bodies_of_3_mib(api: Api) -> None:
    head = b'{"metadata":{"name":"x"}}'
    await api.create(MAPS, head + b" " * ((3 << 20) - len(head)))
    for method, path, content_type in (
        ("POST", MAPS, "application/json"),
        ("POST", MAPS, YAML),
        ("PUT", f"{MAPS}/x", "application/json"),
        ("PATCH", f"{MAPS}/x", STRATEGIC_PATCH),
        ("DELETE", f"{MAPS}/x", "application/json"),
    ):
        body = head + b" " * ((3 << 20) + 1 - len(head))
        answer = await api.call(method, path, body, want=413, content_type=content_type)
        assert answer["message"] == "Request entity too large: limit is 3145728"
        assert answer["reason"] == "RequestEntityTooLarge"


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 20, "-" + "9" * 20])
async def test_whole_numbers_of_many_digits(api: Api, number: str) -> None:
    for path, fields in (
        (MAPS, '"metadata":{"name":"x","generation":%s}'),
        (REVISIONS, '"metadata":{"name":"x"},"revision":1,"data":{"a":[%s]}'),
        (PODS, '"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":%s}}}]}'),
    ):
        await api.create(path, ("{" + fields % number + "}").encode(), want=400)


SNAPSHOTS = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots"
SNAPSHOT = {"metadata": {"name": "x"}, "spec": {"source": {"persistentVolumeClaimName": "data"}}}


async def test_custom_resources_have_no_protobuf(api: Api) -> None:
    """As in Kubernetes: they are JSON for clients that take it, too; their metadata is a kind of Kubernetes."""
    rejected = await api.create(SNAPSHOTS, b"k8s\0", want=415, content_type=PROTOBUF)
    assert "accepted media types include: application/json, application/yaml" in rejected["message"]
    made = await api.send("POST", SNAPSHOTS, SNAPSHOT, accept=f"{PROTOBUF},{JSON}")
    assert (made.status, made.headers["Content-Type"]) == (201, JSON)
    for path in (SNAPSHOTS, f"{SNAPSHOTS}/x"):
        both = await api.send("GET", path, accept=f"{PROTOBUF},{JSON}")
        assert (both.status, both.headers["Content-Type"]) == (200, JSON)
        only = await api.send("GET", path, accept=PROTOBUF)
        assert only.status == 406
        assert PROTOBUF not in read(only.body)["message"].partition(";")[0]
        part = await api.send("GET", path, accept=f"{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
        assert (part.status, part.headers["Content-Type"]) == (200, PROTOBUF)
    async with api.watch(SNAPSHOTS, accept=f"{PROTOBUF};stream=watch,{JSON};stream=watch") as watch:
        assert await watch.names(1) == [("ADDED", "x")]
    assert (await api.send("GET", SNAPSHOTS, query={"watch": "1"}, accept=PROTOBUF)).status == 406
