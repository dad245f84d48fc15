"""The HTTPS door, with a real client on a real socket."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl

from tonnage.aio.clock import RealClock
from tonnage.apiserver import auth
from tonnage.apiserver.server import ApiServer, extractor
from tonnage.apiserver.store import MemoryStore
from tonnage.errors import ApiNotFound, Busy, Invalid

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


async def logs(namespace: str, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    if query.get("previous"):
        raise ApiNotFound(f"no earlier container of {namespace}/{name}")
    yield b"first\n"
    await asyncio.sleep(0)
    yield b"second\n"


@dataclass
class Box:
    server: ApiServer
    session: aiohttp.ClientSession

    def request(self, method: str, path: str, **options: Any) -> Any:
        return self.session.request(method, self.server.url + path, **options)


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    credentials = auth.ensure(tmp_path, RealClock())
    server = ApiServer(MemoryStore(extractor()), credentials=credentials, pod_logs=logs)
    await server.start()
    await server.listen()
    context = ssl.create_default_context(cafile=str(credentials.certificate))
    headers = {"Authorization": f"Bearer {credentials.token}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Box(server, session)
    await server.stop()


async def test_create_and_get(box: Box) -> None:
    async with box.request("POST", MAPS, json={"metadata": {"name": "x"}, "data": {"a": "ö"}}) as answer:
        assert (answer.status, answer.content_type) == (201, "application/json")
        made = await answer.json()
    async with box.request("GET", f"{MAPS}/x") as answer:
        assert await answer.json() == made
    async with box.request("GET", MAPS, params={"labelSelector": "a in (b, c)", "limit": "5"}) as answer:
        assert (answer.status, (await answer.json())["items"]) == (200, [])


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic eDp5"])
@pytest.mark.parametrize("path", [MAPS, "/version", "/metrics", "/nothing"])
async def test_without_credentials_there_is_nothing(box: Box, authorization: str | None, path: str) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    async with (
        aiohttp.ClientSession(connector=box.session.connector, connector_owner=False) as stranger,
        stranger.get(box.server.url + path, headers=headers) as answer,
    ):
        status = await answer.json(content_type=None)
        assert (answer.status, status["kind"], status["reason"]) == (401, "Status", "Unauthorized")


async def test_a_large_body_is_refused(box: Box) -> None:
    async with box.request("POST", MAPS, data=b"x" * (10 << 20)) as answer:
        status = await answer.json()
    assert (answer.status, status["reason"]) == (413, "RequestEntityTooLarge")

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield b"x" * (1 << 16)

    try:
        async with box.request("POST", MAPS, data=endless()) as answer:
            assert answer.status == 413
    except aiohttp.ClientConnectionError:
        pass  # the server hangs up while the rest is still being sent
    async with box.request("GET", MAPS) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("name", ["%2e%2e", "..%2F..%2Fetc", "a%00b", "x" * 7000])
async def test_bad_names(box: Box, name: str) -> None:
    url = yarl.URL(f"{box.server.url}{MAPS}/{name}", encoded=True)
    async with box.session.get(url) as answer:
        assert answer.status == 400
        assert (await answer.json())["reason"] == "BadRequest"


async def test_watch(box: Box) -> None:
    async with box.request("GET", MAPS, params={"watch": "1"}) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        for name in ("x", "y"):
            async with box.request("POST", MAPS, json={"metadata": {"name": name}}):
                event = json.loads(await answer.content.readline())
            assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", name)
    async with box.request("GET", MAPS, params={"watch": "1", "resourceVersion": "999999"}) as answer:
        assert answer.status == 504


async def test_a_client_that_goes_away_is_forgotten(box: Box) -> None:
    answer = await box.request("GET", MAPS, params={"watch": "1"})
    assert len(box.server.hub) == 1
    answer.close()
    async with asyncio.timeout(5):
        while len(box.server.hub):
            await asyncio.sleep(0.01)


async def test_stop_ends_open_watches(box: Box) -> None:
    async with box.request("GET", MAPS, params={"watch": "1"}) as answer:
        async with asyncio.timeout(5):
            await box.server.stop()
            assert await answer.content.read() == b""


async def test_logs(box: Box) -> None:
    spec = {"containers": [{"name": "c", "image": "busybox"}]}
    async with box.request("POST", PODS, json={"metadata": {"name": "p"}, "spec": spec}) as answer:
        assert answer.status == 201
    async with box.request("GET", f"{PODS}/p/log", params={"follow": "true"}) as answer:
        assert (answer.status, answer.content_type) == (200, "text/plain")
        assert await answer.read() == b"first\nsecond\n"
    async with box.request("GET", f"{PODS}/p/log", params={"previous": "true"}) as answer:
        assert (answer.status, (await answer.json())["message"]) == (404, "no earlier container of default/p")
    async with box.request("GET", f"{PODS}/other/log") as answer:
        assert answer.status == 404


async def test_a_taken_port_and_open_doors_are_refused(box: Box, tmp_path: Path) -> None:
    port = int(box.server.url.rpartition(":")[2])
    other = ApiServer(MemoryStore(extractor()), credentials=auth.ensure(tmp_path, RealClock()))
    with pytest.raises(Busy, match="choose another port"):
        await other.listen(port=port)
    with pytest.raises(Invalid, match="loopback"):
        await other.listen("0.0.0.0")
    with pytest.raises(Invalid, match="credentials"):
        await ApiServer(MemoryStore(extractor())).listen()
    await other.stop()
