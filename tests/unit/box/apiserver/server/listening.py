"""An API server that listens, and what its clients need."""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp
import yarl

from tonnage_box.apiserver.server.server import ApiServer


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
