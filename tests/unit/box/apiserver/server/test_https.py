"""The HTTPS door, with a real client on a real socket."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest
import yarl
from tests.unit.box.apiserver.server.listening import Box

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


async def raw(box: Box, request: bytes) -> bytes:
    """What is answered to bytes that no client library would send, until the server closes the connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = yarl.URL(box.server.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(request)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.transport.abort()
    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "request_",
    [
        b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xfe\x00\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a\x00b HTTP/1.1\r\n\r\n",
        b"GET /api HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"secret" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"secret" * 20_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_told_so(box: Box, caplog: pytest.LogCaptureFixture, request_: bytes) -> None:
    head, _, body = (await raw(box, request_)).partition(b"\r\n\r\n")
    assert b" 400 " in head.splitlines()[0]
    status = json.loads(body)
    assert (status["kind"], status["code"]) == ("Status", 400)
    assert status["message"].startswith("the request cannot be read as HTTP: ")
    assert b"secret" not in body
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def hurry(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server wait for next to nothing."""
    served = box.server._https
    assert served is not None
    assert served._runner is not None
    monkeypatch.setattr(served, "_patience", 0.05)
    monkeypatch.setattr(served._runner.server, "_patience", 0.05)


@pytest.mark.parametrize("begun", [b"", b"GET /api HTTP/1.1\r\nHost:"])
async def test_a_connection_that_asks_nothing_is_closed(
    box: Box, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    hurry(box, monkeypatch)
    assert await raw(box, begun) == b""


async def test_a_body_that_does_not_come_is_not_waited_for(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(box, monkeypatch)
    token = box.session.headers["Authorization"].encode()
    head = b"POST " + MAPS.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nAuthorization: " + token
    answer = await raw(box, head + b"\r\n\r\n{")
    assert b" 408 " in answer.splitlines()[0]
    assert b"the body did not come within" in answer


async def test_a_long_selector_is_read(box: Box) -> None:
    wanted = f"a in ({','.join(f'value-{n}' for n in range(2000))})"
    async with box.request("GET", MAPS, params={"labelSelector": wanted}) as answer:
        assert answer.status == 200, await answer.text()


async def test_create_and_get(box: Box) -> None:
    async with box.request("POST", MAPS, json={"metadata": {"name": "x"}, "data": {"a": "ö"}}) as answer:
        assert (answer.status, answer.content_type) == (201, "application/json")
        made = await answer.json()
    async with box.request("GET", f"{MAPS}/x") as answer:
        assert await answer.json() == made
    async with box.request("GET", MAPS, params={"labelSelector": "a in (b, c)", "limit": "5"}) as answer:
        assert (answer.status, (await answer.json())["items"]) == (200, [])


@pytest.mark.slow
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


async def test_a_large_body_is_rejected(box: Box) -> None:
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
    async with asyncio.timeout(60):
        while len(box.server.hub):
            await asyncio.sleep(0.01)


async def test_stop_ends_open_watches(box: Box) -> None:
    async with box.request("GET", MAPS, params={"watch": "1"}) as answer:
        async with asyncio.timeout(60):
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
