"""Dispatch of gRPC calls: decode the request, run the service's method, convert errors to codes.

A call is validated, locks its volume, is timed and logged, and its error becomes a gRPC code. A call that changes a
volume runs to its end even when the caller is gone: threads and mounts cannot be cancelled. So the repeated call is
rejected until the outcome is known.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from urllib.parse import quote

from google.protobuf.message import Message
from prometheus_client import Histogram

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import InUseError
from tonnage.base.observe import trace
from tonnage.base.observe.metrics import CSI_CALLS
from tonnage.csi.errors import Code, CsiError, expected, label_of, to_csi
from tonnage.csi.server import frames, request_text
from tonnage.csi.server.http2 import LARGEST_BODY, Http2Request, Http2Response
from tonnage.csi.server.inflight import InFlight
from tonnage.csi.server.request_text import describe
from tonnage.csi.server.service import PREFIX, Method, Service

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 2000
"""Maximum characters of an error's text: it is sent in a header, and clients reject large ones."""
_TYPES = (b"application/grpc", b"application/grpc+proto")
_START = ((":status", "200"), ("content-type", "application/grpc+proto"))
_HEAD, _OK = frames.block(_START), frames.block([("grpc-status", "0")])
_STOPPED = CsiError(Code.UNAVAILABLE, "the driver has stopped")
_PAUSES = (0.01, 0.05, 0.2, None)  # seconds: a volume may be in use for a moment after its last umount
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # of a grpc-message: the rest is percent-encoded
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

Outcome = Message | CsiError
Reply = Callable[[Outcome], None]


class _Call:
    """A call under way. holds: whether it has locked a key, and so runs to its end even without its caller."""

    def __init__(self, method: Method, message: Message, reply: Reply, started: float) -> None:
        self.method, self.message, self.reply, self.started = method, message, reply, started
        self.holds = False
        self.is_heard = True
        self.task: asyncio.Task[Code] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def leave(self) -> None:
        """The caller is gone."""
        self.is_heard = False
        if self.task is not None and not self.holds:
            self.task.cancel()

    def expire(self) -> None:
        """The caller's deadline has passed."""
        self.reply(CsiError(Code.DEADLINE_EXCEEDED, f"{self.method.name}: no answer in the time that was given"))
        self.leave()


class Calls:
    """Runs the calls that connections receive."""

    def __init__(
        self, owner: str, services: Iterable[Service], in_flight: InFlight, clock: Clock, *, driver: str = ""
    ) -> None:
        """owner: for logs. driver: its name, for the metric, "" for calls that are not counted."""
        methods = (Method(service, found) for service in services for found in service.descriptor.methods)
        self._methods = {method.path: method for method in methods}
        self._in_flight = in_flight
        self._clock = clock
        self._driver = driver
        self._counters: dict[tuple[str, Code], Histogram] = {}
        self._background = Background(f"csi {owner}")
        self._holding: set[asyncio.Task[Code]] = set()

    async def call(self, path: str, message: Message, seconds: float, *, parent: str = "") -> Message:
        """Make a call from this process. parent: the caller's span. Raises: CsiError, as on a socket.

        A call that has begun to change a volume continues when its caller is cancelled.
        """
        method = self._method(path.encode())
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        call = _Call(method, message, lambda outcome: _set(answered, outcome), self._clock.monotonic())
        self._start(call, seconds, parent).add_done_callback(lambda _: _set(answered, _STOPPED))
        try:
            outcome = await answered
        finally:
            if not answered.done() or answered.cancelled():
                call.leave()
        if isinstance(outcome, CsiError):
            raise outcome
        return outcome

    def begin(self, request: Http2Request, reply: Callable[[Http2Response], None]) -> Callable[[], None]:
        """Begin a call; reply() is called with its response. Returns a function to call if the caller goes first."""
        try:
            _check_form(request)
            method = self._method(request.fields.get(b":path", b""))
            seconds = _timeout(request)
            message = method.read(request)
        except _RejectedError as rejection:
            reply(rejection.answer)
            return _nothing
        except CsiError as failure:
            log.info("request not taken path=%s error=%s", request.fields.get(b":path"), failure.message)
            reply(_encoded(failure))
            return _nothing
        call = _Call(method, message, lambda outcome: reply(_encoded(outcome)), self._clock.monotonic())
        self._start(call, seconds, request.fields.get(trace.PARENT.encode(), b"").decode("latin-1"))
        return call.leave

    def _method(self, path: bytes) -> Method:
        if (method := self._methods.get(path)) is None:
            raise CsiError(Code.UNIMPLEMENTED, "there is no such method here")
        return method

    def _start(self, call: _Call, seconds: float | None, parent: str) -> asyncio.Task[Code]:
        work = self._traced(call, parent) if trace.is_on() else self._run(call)
        call.task = self._background.start(work, call.method.name)
        if seconds is not None:
            call.timer = asyncio.get_running_loop().call_later(seconds, call.expire)
        return call.task

    async def _traced(self, call: _Call, parent: str) -> Code:
        name, about = request_text.span_name(call.method.path), request_text.attributes(call.message)
        with trace.span(name, about, kind="server", parent=parent) as span:
            code = await self._run(call)
            span.note("rpc.grpc.status_code", code.value)
            return code

    async def _run(self, call: _Call) -> Code:
        """Run a call and return its outcome."""
        try:
            response = await self._response(call)
        except Exception as failure:
            return self._fail(call, failure)
        else:
            self._observe(call, Code.OK)
            if log.isEnabledFor(logging.DEBUG):
                took = (self._clock.monotonic() - call.started) * 1000
                log.debug("call method=%s code=OK ms=%.1f request=%s", call.method.name, took, describe(call.message))
            self._tell(call, response)
            return Code.OK
        finally:
            if call.timer is not None:
                call.timer.cancel()

    async def _response(self, call: _Call) -> Message:
        service, name, function = call.method.service, call.method.name, call.method.function
        if function is None:
            raise CsiError(Code.UNIMPLEMENTED, f"{name} is not offered by this driver")
        service.check(call.message)
        if service.before is not None:
            await service.before()
        key = service.key(name, call.message)
        if key is None:
            return await function(call.message)
        assert call.task is not None
        for pause in _PAUSES:
            try:
                with self._in_flight.hold(key, name):
                    call.holds = True
                    self._holding.add(call.task)
                    call.task.add_done_callback(self._holding.discard)
                    return await function(call.message)
            except InUseError:
                call.holds = False
                if pause is None or not call.is_heard:
                    raise
                await asyncio.sleep(pause)  # nothing is held: the call that waits may be the NodeUnstageVolume
        raise AssertionError("the last pause is None")

    def _fail(self, call: _Call, failure: Exception) -> Code:
        error = to_csi(failure)
        self._observe(call, error.code)
        unexpected = None if expected(failure) else failure
        log.log(
            logging.ERROR if error.code is Code.INTERNAL else logging.INFO,
            "call failed method=%s code=%s ms=%.1f error=%r request=%s",
            call.method.name,
            label_of(error.code),
            (self._clock.monotonic() - call.started) * 1000,
            error.message,
            describe(call.message),
            exc_info=unexpected,
        )
        self._tell(call, error, error.message)
        return error.code

    def _tell(self, call: _Call, outcome: Outcome, failure: str = "") -> None:
        if call.is_heard:
            call.reply(outcome)
        else:
            detail = f" error={failure!r}" if failure else ""
            log.info("call ended after its caller went away method=%s%s", call.method.name, detail)

    def _observe(self, call: _Call, code: Code) -> None:
        if not self._driver:
            return
        name = call.method.name
        counter = self._counters.get((name, code))
        if counter is None:
            counter = self._counters[name, code] = CSI_CALLS.labels(self._driver, name, label_of(code))
        counter.observe(self._clock.monotonic() - call.started)

    async def drained(self, seconds: float) -> None:
        """Wait until the calls that hold a key have ended and replied, for so many seconds at most."""
        if self._holding:
            await asyncio.wait(self._holding, timeout=seconds)

    async def close(self, seconds: float | None = None) -> None:
        """Cancel what still runs, and wait for its end, for so many seconds at most: a disk may hang. Idempotent."""
        closing = asyncio.ensure_future(self._background.close())
        await asyncio.wait([closing], timeout=seconds)


def _nothing() -> None:
    """Default for a finished call whose caller is gone."""


class _RejectedError(Exception):
    """A request that is not gRPC."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.answer = Http2Response(
            frames.block(
                [(":status", str(status)), ("grpc-status", f"{Code.UNKNOWN.value}"), ("grpc-message", message)]
            )
        )


def _check_form(request: Http2Request) -> None:
    """Check that a request is gRPC.

    Raises _RejectedError with an HTTP status, CsiError if the request is too long.
    """
    fields = request.fields
    if fields.get(b":method") != b"POST":
        raise _RejectedError(405, "want POST")
    if fields.get(b"content-type") not in _TYPES:
        raise _RejectedError(415, "want content-type application/grpc")
    if fields.get(b"te") != b"trailers":
        raise _RejectedError(400, "want te: trailers")
    if request.is_long:
        raise CsiError(Code.RESOURCE_EXHAUSTED, f"a request of more than {LARGEST_BODY} bytes")


def _timeout(request: Http2Request) -> float | None:
    """The caller's timeout in seconds, None for unlimited. Raises: CsiError."""
    text = request.fields.get(b"grpc-timeout")
    if text is None:
        return None
    if (found := _TIMEOUT.fullmatch(text)) is None:
        raise CsiError(Code.UNKNOWN, f"grpc-timeout {text[:20]!r}: want at most 8 digits and a unit")
    return int(found[1]) * _UNITS[found[2]]


def _set(answered: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not answered.done():
        answered.set_result(outcome)


def _encoded(outcome: Outcome) -> Http2Response:
    """The encoded response."""
    if isinstance(outcome, CsiError):
        detail = quote(outcome.message[:LONGEST_MESSAGE], safe=_PLAIN, errors="replace")
        return Http2Response(
            frames.block([*_START, ("grpc-status", f"{outcome.code.value}"), ("grpc-message", detail)])
        )
    body = outcome.SerializeToString()
    return Http2Response(_OK, _HEAD, b"\0" + len(body).to_bytes(PREFIX - 1, "big") + body)
