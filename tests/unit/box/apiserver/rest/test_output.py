"""Answers as clients want them: tables, metadata alone, with line ends."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.turns import turned

from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.rest import output


async def test_pretty(api: Api) -> None:
    answer = await api.send("GET", "/api/v1/namespaces/default", query={"pretty": "true"})
    assert b'\n  "' in answer.body


MAPS = "/api/v1/namespaces/default/configmaps"


async def test_long_lists_are_made_outside_the_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[bool] = set()

    def rendered(*arguments: Any) -> bytes:
        threads.add(threading.current_thread() is threading.main_thread())
        return render(*arguments)

    render = output.render_list
    monkeypatch.setattr(output, "render_list", rendered)
    for n in range(300):
        await api.create(MAPS, {"metadata": {"name": f"x{n}"}})
    assert len((await api.get(MAPS))["items"]) == 300
    assert threads == {False}
    assert len((await api.get(MAPS, query={"limit": "10"}))["items"]) == 10
    assert threads == {False, True}


async def test_a_large_object_is_rendered_once_in_a_turn(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    outward = output.outward

    def counted(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        return outward(*arguments)

    monkeypatch.setattr(output, "outward", counted)
    table = "application/json;as=Table;v=%s;g=meta.k8s.io"
    async with AsyncExitStack() as stack:
        for version in ("v1", "v1beta1"):
            for included in ("None", "Metadata", "Object"):
                query = {"watch": "1", "includeObject": included}
                request = Request("GET", MAPS, query, accept=table % version)
                await stack.enter_async_context(api.transport.stream(request))
        work = api.create(MAPS, {"metadata": {"name": "x"}, "data": {"a": "x" * 900_000}})
        assert await turned(work, lambda: made) <= 2
        while api.server.hub._backlog:
            await asyncio.sleep(0)
        assert made == 6


@pytest.mark.parametrize("accept", ["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io"])
async def test_pretty_lists_are_the_same(api: Api, accept: str) -> None:
    for n in range(3):
        await api.create(MAPS, {"metadata": {"name": f"x{n}"}, "data": {"a": 'b\n"[]"', "c": ""}})
    for query in ({}, {"labelSelector": "a=b"}):
        plain = await api.send("GET", MAPS, query=query, accept=accept)
        pretty = await api.send("GET", MAPS, query=query | {"pretty": "true"}, accept=accept)
        value = json.loads(plain.body)
        assert json.loads(pretty.body) == value
        assert len(value.get("items", value.get("rows"))) == (0 if query else 3)
        assert pretty.body.decode() == json.dumps(value, indent=2, ensure_ascii=False) + "\n"


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"


METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"


def config(name: str = "x", labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


async def test_tables(api: Api) -> None:
    await api.create(MAPS, config("x", a="1"))
    table = await api.get(MAPS, accept=TABLE)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [c["name"] for c in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert table["rows"][0]["cells"][:2] == ["x", 1]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert table["metadata"]["resourceVersion"]
    whole = await api.get(f"{MAPS}/x", accept=TABLE, query={"includeObject": "Object"})
    assert whole["rows"][0]["object"]["data"] == {"a": "1"}
    await api.get(MAPS, want=400, accept=TABLE, query={"includeObject": "Some"})
    async with api.watch(MAPS, accept=TABLE) as watch:
        kind, seen = await watch.next()
    assert (kind, seen["kind"], seen["rows"][0]["cells"][0]) == ("ADDED", "Table", "x")


async def test_metadata_alone(api: Api) -> None:
    made = await api.create(MAPS, config("x", a="1"))
    one = await api.get(f"{MAPS}/x", accept=METADATA)
    assert one == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": made["metadata"],
    }
    listed = await api.get(MAPS, accept=METADATA_LIST)
    assert (listed["kind"], listed["items"]) == ("PartialObjectMetadataList", [one])
    async with api.watch(MAPS, accept=METADATA) as watch:
        assert await watch.next() == ("ADDED", one)
