"""A driver of the same process: calls go to its services as they are, no socket, no bytes.

What surrounds a call on a socket holds here too: requests are checked, a volume has one call at a time, and failures
become codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

from google.protobuf.message import Message
from grpclib.client import UnaryUnaryMethod

from tonnage.csi.client import CsiClient
from tonnage.csi.connection import Connection
from tonnage.csi.driver import Driver
from tonnage.csi.endpoint import services
from tonnage.csi.errors import Code, CsiError, to_csi
from tonnage.csi.inflight import InFlight
from tonnage.csi.service import Method

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class LocalConnection(Connection):
    """A connection that is none. Calls take what the driver takes: there is no deadline."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(Path(driver.name))
        self._methods: Mapping[str, Method] = {
            method.path.decode(): method
            for service in services(driver)
            for method in (Method(service, found) for found in service.descriptor.methods)
        }
        self._in_flight = driver.in_flight

    async def call(self, method: UnaryUnaryMethod[Request, Answer], request: Request, timeout: float) -> Answer:
        """See Connection."""
        found = self._methods.get(method.name)
        if found is None:
            raise CsiError(Code.UNIMPLEMENTED, "there is no such method here")
        try:
            return cast(Answer, await _answer(found, cast(Message, request), self._in_flight))
        except Exception as failure:
            raise to_csi(failure) from failure


async def _answer(method: Method, request: Message, in_flight: InFlight) -> Message:
    service = method.service
    service.check(request)
    if service.before is not None:
        await service.before()
    key = service.key(method.name, request)
    if key is None:
        return await method.function(request)
    with in_flight.hold(key, method.name):
        return await method.function(request)


def local_client(driver: Driver) -> CsiClient:
    """A client for a driver of this process, whose pools are open."""
    return CsiClient(driver.name, connection=LocalConnection(driver))
