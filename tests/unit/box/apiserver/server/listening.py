"""An API server that listens, and what its clients need."""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp
import yarl

from tonnage_box.apiserver.server.server import ApiServer

MAPS = "/api/v1/namespaces/default/configmaps"


@dataclass
class Box:
    server: ApiServer
    session: aiohttp.ClientSession

    def request(self, method: str, path: str, **options: Any) -> Any:
        return self.session.request(method, self.server.url + path, **options)


@functools.cache
def context() -> ssl.SSLContext:
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def port(server: ApiServer) -> int:
    return yarl.URL(server.url).port or 0


async def ask(server: ApiServer) -> int:
    """The status that a new connection with valid credentials is answered."""
    assert server.credentials is not None
    headers = {"Authorization": f"Bearer {server.credentials.token}"}
    async with (
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context())) as session,
        session.get(server.url + MAPS) as answer,
    ):
        await answer.read()
        return answer.status
