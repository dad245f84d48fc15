"""Bodies that do not come: none is held for a user without rights, and all together are bounded."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.box.apiserver.server.listening import context, port

from tonnage.kubernetes.client.transport import Request
from tonnage_box.apiserver.server.server import ApiServer

MAPS = "/api/v1/namespaces/default/configmaps"
MIB = 1 << 20


async def uploads(server: ApiServer, token: str, path: str, *, framing: str) -> tuple[bytes, asyncio.StreamWriter]:
    """Announce a body of 3 MiB and send 20 kB of it; the first line of the answer, b"" when it is waited for."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port(server), ssl=context())
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{framing}\r\n\r\n"
    writer.write(head.encode() + (b"4e20\r\n" if "chunked" in framing else b"") + b" " * 20_000)
    assert server._https is not None
    running = server._https.bodies._running
    before, line = set(running), asyncio.ensure_future(reader.readline())
    async with asyncio.timeout(60):
        while not line.done() and set(running) <= before:
            await asyncio.sleep(0)
    return (await line if line.done() else b""), writer


async def robot(server: ApiServer) -> str:
    """The token of a new account, which has no rights."""
    path, account = "/api/v1/namespaces/default/serviceaccounts", b'{"metadata": {"name": "robot"}}'
    assert (await server.transport().request(Request("POST", path, body=account))).status == 201
    answer = await server.transport().request(Request("POST", f"{path}/robot/token", body=b'{"spec": {}}'))
    return str(json.loads(answer.body)["status"]["token"])


FRAMINGS = pytest.mark.parametrize("framing", [f"Content-Length: {3 * MIB}", "Transfer-Encoding: chunked"])


@FRAMINGS
async def test_no_body_is_held_for_a_token_without_rights(server: ApiServer, framing: str) -> None:
    line, writer = await uploads(server, await robot(server), MAPS, framing=framing)
    assert b" 403 " in line  # before the body is there
    assert server._https is not None
    assert server._https.bodies.total == 0
    writer.transport.abort()


@FRAMINGS
async def test_unfinished_bodies_give_way_to_others(server: ApiServer, framing: str) -> None:
    assert server.credentials is not None
    assert server._https is not None
    bodies, idle = server._https.bodies, []
    bodies.limit, bodies.slow = 10 * MIB, 1e9
    for n in range(4):
        line, writer = await uploads(server, server.credentials.token, MAPS, framing=framing)
        assert (b" 429 " in line) == (n == 3)
        idle.append(writer)
    assert bodies.total == 9 * MIB
    bodies.slow = -1.0  # whoever has not sent all is too slow
    for _ in range(10):
        line, writer = await uploads(server, server.credentials.token, MAPS, framing=framing)
        idle.append(writer)
        assert (line, bodies.total) == (b"", 9 * MIB)
    for writer in idle:
        writer.transport.abort()
    async with asyncio.timeout(60):
        while bodies.total:
            await asyncio.sleep(0.01)
