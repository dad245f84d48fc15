"""Calls to a driver in the same process, without a socket or serialization.

They have the same rules as on a socket: requests are checked, a volume has one call at a time, a call that changes a
volume continues when its caller is gone, errors become codes, and calls are counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar, cast

from google.protobuf.message import Message
from grpclib.client import UnaryUnaryMethod

from tonnage.base.observe import trace
from tonnage.csi.client.client import CsiClient
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import services
from tonnage.csi.server.connection import GrpcConnection
from tonnage.csi.server.dispatch import Calls

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class LocalConnection(GrpcConnection):
    """A connection in this process. socket: where others reach the driver, for messages."""

    def __init__(self, calls: Calls, socket: Path) -> None:
        super().__init__(socket)
        self._calls = calls

    async def call(self, method: UnaryUnaryMethod[Request, Answer], request: Request, timeout: float) -> Answer:
        parent = trace.headers().get(trace.PARENT, "") if trace.is_on() else ""
        answer = await self._calls.call(method.name, cast(Message, request), timeout, parent=parent)
        return cast(Answer, answer)


def client_of(calls: Calls, socket: Path) -> CsiClient:
    """A client for the driver behind a socket that this process serves."""
    return CsiClient(socket, connection=LocalConnection(calls, socket))


def local_client(driver: Driver) -> CsiClient:
    """A client for a driver without a socket, with open pools."""
    calls = Calls(driver.name, services(driver), driver.in_flight, driver.clock, driver=driver.name)
    return client_of(calls, Path(driver.name))
