"""One persistent HTTP/2 connection to a gRPC server on a unix socket; it connects and reconnects when needed."""

from __future__ import annotations

from asyncio import BaseTransport, Transport
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol

from tonnage.base.observe import trace
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.coalesce import Corked

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class GrpcConnection:
    """Makes calls, raises CsiError. Any number of calls may be under way at once."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    @cached_property
    def channel(self) -> Channel:
        """grpclib's channel; it connects with the first call, and again after a disconnect."""
        return _Channel(path=str(self.socket))

    async def call(self, method: UnaryUnaryMethod[Request, Answer], request: Request, timeout: float) -> Answer:
        """Make one call, in `timeout` seconds.

        Raises: CsiError: the server's own, DEADLINE_EXCEEDED, or UNAVAILABLE when it cannot be reached or disconnects.
        """
        try:
            return await method(request, timeout=timeout, metadata=trace.headers() if trace.is_on() else None)
        except GRPCError as failure:
            raise CsiError(failure.status, failure.message or "") from None
        except TimeoutError:
            raise CsiError(Code.DEADLINE_EXCEEDED, f"no answer from {self.socket} in {timeout:g} s") from None
        except (OSError, StreamTerminatedError, ProtocolError, AssertionError) as failure:
            # A lost connection must not end as a final error: the call may have had its effect.
            why = getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
            raise CsiError(Code.UNAVAILABLE, f"cannot reach the driver at {self.socket}: {why}") from failure

    def close(self) -> None:
        """Close the connection; calls under way end with UNAVAILABLE. Idempotent; a later call connects again."""
        if "channel" in self.__dict__:
            self.channel.close()


class _Channel(Channel):
    """Sends a whole request with one system call."""

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        return _Protocol(plain.handler, plain.config, plain.h2_config)


class _Protocol(H2Protocol):
    def connection_made(self, transport: BaseTransport) -> None:
        """Called by asyncio."""
        super().connection_made(cast(BaseTransport, Corked(cast(Transport, transport))))
