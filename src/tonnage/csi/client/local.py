"""A driver of the same process: calls go to its services as they are, no socket, no bytes.

What surrounds a call on a socket holds here too: requests are checked, a volume has one call at a time, what changes a
volume goes on when its caller goes away, failures become codes, and calls are counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar, cast

from google.protobuf.message import Message
from grpclib.client import UnaryUnaryMethod

from tonnage.csi.client.client import CsiClient
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import services
from tonnage.csi.server.connection import GrpcConnection
from tonnage.csi.server.dispatch import Calls
from tonnage.observe import trace

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class LocalConnection(GrpcConnection):
    """A connection that is none. socket: where others reach the driver, for messages."""

    def __init__(self, calls: Calls, socket: Path) -> None:
        super().__init__(socket)
        self._calls = calls

    async def call(self, method: UnaryUnaryMethod[Request, Answer], request: Request, timeout: float) -> Answer:
        parent = trace.headers().get(trace.PARENT, "") if trace.is_on() else ""
        answer = await self._calls.call(method.name, cast(Message, request), timeout, parent=parent)
        return cast(Answer, answer)


def client_of(calls: Calls, socket: Path) -> CsiClient:
    """A client for the driver behind a socket that this process serves itself."""
    return CsiClient(socket, connection=LocalConnection(calls, socket))


def local_client(driver: Driver) -> CsiClient:
    """A client for a driver that has no socket, whose pools are open."""
    calls = Calls(driver.name, services(driver), driver.in_flight, driver.clock, driver=driver.name)
    return client_of(calls, Path(driver.name))
