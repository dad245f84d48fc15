"""A gRPC service: its RPCs, what implements them, and how their requests are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.http2 import Http2Request
from tonnage.csi.server.limits import check_request

PREFIX = 5
"""Bytes before a message: whether it is compressed, and its length."""

Unary = Callable[[Any], Awaitable[Message]]


@dataclass(frozen=True)
class Service:
    """A gRPC service and the object with one coroutine method per RPC, of the same name.

    key: returns the InFlight key that a request must lock, None for none. check: validates every request of an RPC that
    is offered. before: awaited before each call.
    """

    descriptor: ServiceDescriptor
    implementation: object
    key: Callable[[str, Message], str | None] = lambda _method, _request: None
    check: Callable[[Message], None] = check_request
    before: Callable[[], Awaitable[None]] | None = None


def offered(file: FileDescriptor, implementations: Mapping[str, object], **more: Any) -> list[Service]:
    """The services of a .proto file by name; those without an implementation are not offered. more: as of Service."""
    described = file.services_by_name
    return [Service(found, implementations.get(name), **more) for name, found in described.items()]


class Method:
    """One RPC of a service. function: None where it is not offered."""

    def __init__(self, service: Service, method: MethodDescriptor) -> None:
        self.name = method.name
        self.service = service
        self.path = f"/{service.descriptor.full_name}/{method.name}".encode()
        self.function: Unary | None = getattr(service.implementation, method.name, None)
        self._request = GetMessageClass(method.input_type)

    def read(self, request: Http2Request) -> Message:
        """The message of a request. Raises: CsiError with gRPC's code for an invalid one."""
        if not request.body:
            raise CsiError(Code.INVALID_ARGUMENT, f"{self.name} without a request")
        if request.body[0]:
            raise CsiError(Code.UNIMPLEMENTED, f"{self.name}: compressed requests are not taken: none was offered")
        if int.from_bytes(request.body[1:PREFIX], "big") != len(request.body) - PREFIX:
            raise self._unreadable("it is no single message")
        try:
            return self._request.FromString(request.body[PREFIX:])
        except DecodeError as failure:
            raise self._unreadable(failure) from None

    def _unreadable(self, why: object) -> CsiError:
        """The error for it, with gRPC's code."""
        return CsiError(Code.INTERNAL, f"{self.name}: the request cannot be read: {why}")
