"""The transport of clients in the server's process: answers, streams and their end."""

from __future__ import annotations

import json

import pytest
from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.turns import turned

from tonnage.base.errors import ApiError, ApiNotFoundError, UnavailableError
from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.server import inprocess

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_an_answer_is_that_of_the_handler(api: Api) -> None:
    answer = await api.transport.request(Request("GET", "/api/v1/namespaces/default"))
    assert answer.status == 200
    assert json.loads(answer.body)["metadata"]["name"] == "default"


async def test_a_watch_is_streamed_and_forgotten_at_its_end(api: Api) -> None:
    async with api.transport.stream(Request("GET", MAPS, {"watch": "1"})) as chunks:
        assert len(api.server.hub) == 1
        await api.create(MAPS, {"metadata": {"name": "x"}})
        assert json.loads(await anext(chunks))["object"]["metadata"]["name"] == "x"
    assert len(api.server.hub) == 0


async def test_a_watch_is_no_request(api: Api) -> None:
    with pytest.raises(ApiError, match="asked for by stream"):
        await api.transport.request(Request("GET", MAPS, {"watch": "1"}))
    assert len(api.server.hub) == 0


async def test_a_stream_of_what_is_not_there_raises_its_status(api: Api) -> None:
    with pytest.raises(ApiNotFoundError) as found:
        async with api.transport.stream(Request("GET", f"{MAPS}/x")):
            pass
    assert (found.value.kind, found.value.name) == ("configmaps", "x")


async def test_a_stream_of_an_object_is_one_chunk(api: Api) -> None:
    async with api.transport.stream(Request("GET", "/api/v1/namespaces/default")) as chunks:
        assert [json.loads(chunk)["kind"] async for chunk in chunks] == ["Namespace"]


async def test_a_closed_transport_says_so(api: Api) -> None:
    await api.transport.close()
    with pytest.raises(UnavailableError, match="closed"):
        await api.transport.request(Request("GET", MAPS))


async def test_others_get_a_turn_between_many_requests(api: Api) -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        for _ in range(100):
            await api.transport.request(Request("GET", "/api/v1/namespaces/default"))
            asked += 1

    assert 0 < await turned(ask(), lambda: asked) <= inprocess._TOGETHER
    assert asked == 100
