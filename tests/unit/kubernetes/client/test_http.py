"""What becomes of a request whose token the server no longer takes, over a real connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from tonnage.base.errors import ApiError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api.kinds import CONFIG_MAPS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.kubeconfig import Access, FileToken


@dataclass
class Guard:
    """A server that lets in whoever has the token of the moment."""

    good: str = "one"
    url: str = ""
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.asked.append(token)
        if token != self.good:
            status = {"kind": "Status", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"}
            return web.json_response(status, status=401)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    made, app = Guard(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def client(guard: Guard, tmp_path: Path) -> AsyncIterator[Client]:
    (tmp_path / "token").write_text("one")
    made = Client(HttpTransport(Access(guard.url, token=FileToken(tmp_path / "token", now=lambda: 0.0))))
    yield made
    await made.close()


async def test_a_token_that_ran_out_is_read_anew_and_nobody_notices(
    guard: Guard, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await client.list(CONFIG_MAPS)
    guard.good = "two"
    (tmp_path / "token").write_text("two")

    await client.list(CONFIG_MAPS)
    await client.list(CONFIG_MAPS)

    assert guard.asked == ["one", "one", "two", "two"]
    assert "credentials" not in caplog.text


async def test_without_a_good_token_it_is_said_once_and_told_when_it_is_over(
    guard: Guard, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    guard.good = "two"
    for _ in range(3):
        with pytest.raises(ApiError, match="Unauthorized"):
            await client.list(CONFIG_MAPS)
    assert guard.asked == ["one"] * 3  # not twice with the same one
    assert caplog.text.count("does not accept our credentials") == 1
    assert metrics.REJECTED._value.get() == 1

    (tmp_path / "token").write_text("two")
    await client.list(CONFIG_MAPS)
    assert caplog.text.count("accepts our credentials again") == 1
    assert metrics.REJECTED._value.get() == 0


async def test_no_more_requests_at_once_than_allowed() -> None:
    """Nor connections: each costs a handshake."""
    under_way, most, ports = 0, 0, set[int]()

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way, most
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made = Client(HttpTransport(Access(f"http://127.0.0.1:{runner.addresses[0][1]}"), at_once=3))
    try:
        await asyncio.gather(*(made.list(CONFIG_MAPS) for _ in range(20)))
    finally:
        await made.close()
        await runner.cleanup()
    assert (most, len(ports)) == (3, 3)
