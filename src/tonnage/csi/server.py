"""Serving gRPC on a unix socket, with everything around a call that is the same for all calls.

A call is checked at the edge (limits.py), holds its volume (inflight.py), is timed and logged, and its failure becomes
a gRPC code (errors.py). A call that changes a volume runs to its end even when the caller goes away: threads and
mounts cannot be taken back, and so the repeated call is refused until the outcome is known.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from prometheus_client import Histogram

from tonnage.aio.clock import Clock, RealClock
from tonnage.aio.tasks import Background
from tonnage.csi import sockets
from tonnage.csi.errors import Code, CsiError, expected, to_csi
from tonnage.csi.http2 import ServerProtocol
from tonnage.csi.inflight import InFlight
from tonnage.csi.limits import check_request
from tonnage.csi.redact import describe
from tonnage.observe.metrics import CSI_CALLS

log = logging.getLogger(__name__)

GRACE = 0.8
"""Seconds that stop() waits for calls under way."""
LONGEST_MESSAGE = 2000
"""Characters of an error's text: it travels in a header, and clients refuse large ones."""

Unary = Callable[[Any], Awaitable[Message]]


@dataclass(frozen=True)
class Service:
    """A gRPC service and the object with one coroutine method for each RPC it offers, named as the RPC.

    key: which key of InFlight a request must hold, None for none. check: what every request is put through first.
    before: awaited before each call.
    """

    descriptor: ServiceDescriptor
    implementation: object
    key: Callable[[str, Message], str | None] = lambda _method, _request: None
    check: Callable[[Message], None] = check_request
    before: Callable[[], Awaitable[None]] | None = None


class CsiServer:
    """Serves services at a unix socket."""

    def __init__(
        self,
        path: Path,
        services: Sequence[Service],
        *,
        in_flight: InFlight | None = None,
        clock: Clock | None = None,
        driver: str = "",
    ) -> None:
        """driver: its name, for the metric; "" for servers that are not counted."""
        self.path = path
        self._driver = driver
        self._counters: dict[tuple[str, Code], Histogram] = {}
        self._services = services
        self._in_flight = in_flight or InFlight()
        self._clock = clock or RealClock()
        self._background = Background(f"csi {path.name}")
        self._running: set[asyncio.Task[Message | Exception]] = set()
        self._server: _UnixServer | None = None
        self._inode = 0

    async def start(self) -> None:
        """Make the socket and serve. Raises Invalid, Precondition and HostError as sockets.bind_private."""
        if self._server is not None:
            return
        listening = sockets.bind_private(self.path)
        self._inode = sockets.inode_of(self.path)
        server = _UnixServer([_Mapping(self._handlers())])
        await server.start_on(listening)
        self._server = server
        log.info("serving socket=%s", self.path)

    async def stop(self) -> None:
        """Take no more calls, let those under way end (0.8 s at most), remove the socket. May be repeated."""
        if self._server is None:
            return
        server, self._server = self._server, None
        sockets.remove_if_same(self.path, self._inode)
        server.stop_accepting()
        if self._running:
            await asyncio.wait(self._running, timeout=GRACE)
            await asyncio.sleep(0)  # lets the handlers that waited send their answers
        await server.hang_up()
        await self._background.close()

    async def __aenter__(self) -> CsiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _handlers(self) -> Iterable[tuple[str, Handler]]:
        for service in self._services:
            for method in service.descriptor.methods:
                path = f"/{service.descriptor.full_name}/{method.name}"
                yield path, self._handler(service, method)

    def _handler(self, service: Service, method: MethodDescriptor) -> Handler:
        function: Unary | None = getattr(service.implementation, method.name, None)
        call = self._interceptor(service, method.name, function or _unimplemented(method.name))
        streaming = Cardinality.UNARY_STREAM if method.server_streaming else Cardinality.UNARY_UNARY
        return Handler(call, streaming, GetMessageClass(method.input_type), GetMessageClass(method.output_type))

    def _interceptor(
        self, service: Service, method: str, function: Unary
    ) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
        async def handle(stream: Stream[Any, Any]) -> None:
            try:
                request = await stream.recv_message()
            except DecodeError as failure:  # INTERNAL is what gRPC says for it
                log.info("request cannot be read method=%s error=%s", method, failure)
                raise GRPCError(Status.INTERNAL, f"{method}: the request cannot be read: {failure}") from None
            if request is None:
                raise GRPCError(Status.INVALID_ARGUMENT, f"{method} without a request")
            started = self._clock.monotonic()
            try:
                response = await self._answer(service, method, function, request)
            except Exception as failure:
                error = to_csi(failure)
                self._observe(method, error.code, started)
                self._log_failure(method, request, started, error, failure)
                raise GRPCError(Status(error.code), error.message[:LONGEST_MESSAGE]) from None
            self._observe(method, Code.OK, started)
            if log.isEnabledFor(logging.DEBUG):
                took = (self._clock.monotonic() - started) * 1000
                log.debug("call method=%s code=OK ms=%.1f request=%s", method, took, describe(request))
            await stream.send_message(response)

        return handle

    async def _answer(self, service: Service, method: str, function: Unary, request: Message) -> Message:
        service.check(request)
        if service.before is not None:
            await service.before()
        key = service.key(method, request)
        if key is None:
            return await function(request)
        task = self._background.start(self._holding(key, method, function, request), method)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_unheard)
            raise
        if isinstance(outcome, Message):
            return outcome
        raise outcome

    async def _holding(self, key: str, method: str, function: Unary, request: Message) -> Message | Exception:
        # A failure is returned, not raised: it belongs to the caller, and is not a fault of the background task.
        try:
            with self._in_flight.hold(key, method):
                return await function(request)
        except Exception as failure:
            return failure

    def _observe(self, method: str, code: Code, started: float) -> None:
        if not self._driver:
            return
        counter = self._counters.get((method, code))
        if counter is None:
            counter = self._counters[method, code] = CSI_CALLS.labels(self._driver, method, code.label)
        counter.observe(self._clock.monotonic() - started)

    def _log_failure(self, method: str, request: Message, started: float, error: CsiError, failure: Exception) -> None:
        took = (self._clock.monotonic() - started) * 1000
        unexpected = None if expected(failure) else failure
        level = logging.ERROR if error.code is Code.INTERNAL else logging.INFO
        log.log(
            level,
            "call failed method=%s code=%s ms=%.1f error=%r request=%s",
            method,
            error.code.label,
            took,
            error.message,
            describe(request),
            exc_info=unexpected,
        )


def _log_unheard(task: asyncio.Task[Message | Exception]) -> None:
    outcome = None if task.cancelled() else task.result()
    failed = f" error={to_csi(outcome).message!r}" if isinstance(outcome, Exception) else ""
    log.info("call ended after its caller went away method=%s%s", task.get_name(), failed)


def _unimplemented(method: str) -> Unary:
    async def refuse(_request: Message) -> Message:
        raise CsiError(Code.UNIMPLEMENTED, f"{method} is not offered by this driver")

    return refuse


class _Mapping:
    """What grpclib wants of a servable object."""

    def __init__(self, handlers: Iterable[tuple[str, Handler]]) -> None:
        self._handlers = dict(handlers)

    def __mapping__(self) -> dict[str, Handler]:
        return self._handlers


def _closed(protocol: H2Protocol) -> bool:
    return not hasattr(protocol, "processor") or protocol.connection.is_closing()


class _UnixServer(Server):
    """grpclib's server on a socket that we made, which also hangs up: grpclib leaves connections open when it stops,
    so that a persistent client would keep it waiting."""

    def __init__(self, handlers: Sequence[_Mapping]) -> None:
        super().__init__(handlers)
        self._protocols: list[H2Protocol] = []

    async def start_on(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._protocol_factory, sock=listening)
        self._server_closed_fut = loop.create_future()

    def _protocol_factory(self) -> H2Protocol:
        self._protocols = [protocol for protocol in self._protocols if not _closed(protocol)]
        plain = super()._protocol_factory()
        protocol = ServerProtocol(plain.handler, plain.config, plain.h2_config)
        self._protocols.append(protocol)
        return protocol

    def stop_accepting(self) -> None:
        assert self._server is not None
        self._server.close()

    async def hang_up(self) -> None:
        self.close()
        for protocol in self._protocols:
            if not _closed(protocol):
                protocol.processor.close()
        await self.wait_closed()
