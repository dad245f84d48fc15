"""Bodies: their media types, depth, numbers and size."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.conftest import Api

from tonnage.kube.transport import MERGE_PATCH, STRATEGIC_PATCH

MAPS = "/api/v1/namespaces/default/configmaps"


def config(name: str = "x", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


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
    for wrong in ("application/vnd.kubernetes.protobuf", "text/plain"):
        answer = await api.create(MAPS, config(), want=415, content_type=wrong)
        assert wrong in answer["message"]
    await api.create(MAPS, b"metadata: {name: x}\ndata: {when: 2001-01-01}", content_type="application/yaml")
    assert (await api.get(f"{MAPS}/x"))["data"] == {"when": "2001-01-01"}
    bomb = b"metadata: {name: y}\na: &a [x]\nb: [*a, *a]"
    await api.create(MAPS, bomb, want=400, content_type="application/yaml")
    await api.get(MAPS, want=406, accept="application/vnd.kubernetes.protobuf")
    await api.get(MAPS, accept="application/vnd.kubernetes.protobuf, application/json")
    await api.get(MAPS, accept="*/*")
    apply = await api.patch(f"{MAPS}/x", b"{}", want=415, content_type="application/apply-patch+yaml")
    assert "server-side apply" in apply["message"]


PODS = "/api/v1/namespaces/default/pods"


REVISIONS = "/apis/apps/v1/namespaces/default/controllerrevisions"


YAML = "application/yaml"


def nested(depth: int, inner: Any = "x") -> Any:
    """A value in so many lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


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
