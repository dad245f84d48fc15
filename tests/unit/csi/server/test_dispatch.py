"""A request that is none, callers that go away or give little time, and what is done with their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import unquote

import pytest
from google.protobuf.message import Message
from hpack import Decoder

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError
from tonnage.csi._proto import csi_pb2
from tonnage.csi.errors import Code
from tonnage.csi.server.dispatch import LONGEST_MESSAGE, Calls
from tonnage.csi.server.http2 import LARGEST_BODY, Http2Request, Http2Response
from tonnage.csi.server.inflight import InFlight
from tonnage.csi.server.service import Service

FIELDS = {b":method": b"POST", b":path": b"/csi.v1.Identity/Probe", b"content-type": b"application/grpc"}
FIELDS |= {b"te": b"trailers"}
EMPTY = b"\0\0\0\0\0"
NONE: Mapping[str, bytes] = {}


class Identity:
    """Probe waits until it is let go; keyed or not."""

    def __init__(self) -> None:
        self.started, self.let_go = asyncio.Event(), asyncio.Event()
        self.ended = ""
        self.failure: Exception | None = None

    async def Probe(self, _request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        """The RPC."""
        self.started.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        if self.failure is not None:
            raise self.failure
        self.ended = "done"
        return csi_pb2.ProbeResponse()


class Caller:
    """Begins calls and keeps their answers."""

    def __init__(self, key: str | None = None) -> None:
        self.identity = Identity()
        service = csi_pb2.DESCRIPTOR.services_by_name["Identity"]

        def key_of(_method: str, _request: Message) -> str | None:
            return key

        services = [Service(service, self.identity, key=key_of)]
        self.calls = Calls("test", services, InFlight(), RealClock())
        self.answers: list[Http2Response] = []
        self.answered = asyncio.Event()

    def _take(self, answer: Http2Response) -> None:
        self.answers.append(answer)
        self.answered.set()

    def ask(
        self, fields: Mapping[str, bytes] = NONE, body: bytes = EMPTY, *, is_long: bool = False
    ) -> Callable[[], None]:
        """Begin a call; an empty field is left out."""
        changed = {**FIELDS, **{name.encode(): value for name, value in fields.items()}}
        kept = {name: value for name, value in changed.items() if value}
        return self.calls.begin(Http2Request(kept, body, is_long), self._take)

    def trailers(self) -> dict[str, str]:
        """Of the last answer."""
        return {str(name): str(value) for name, value in Decoder().decode(self.answers[-1].trailers)}

    def code(self) -> Code:
        """Of the last answer."""
        return Code(int(self.trailers()["grpc-status"]))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({":method": b"GET"}, "405"),
        ({"content-type": b"text/html"}, "415"),
        ({"content-type": b"application/grpc+json"}, "415"),
        ({"content-type": b""}, "415"),
        ({"te": b""}, "400"),
    ],
)
async def test_what_is_no_grpc_is_rejected_as_http_does(fields: dict[str, bytes], status: str) -> None:
    caller = Caller()
    caller.ask(fields)
    assert caller.trailers()[":status"] == status
    assert not caller.answers[-1].head


@pytest.mark.parametrize(
    ("body", "fields", "code", "why"),
    [
        (EMPTY, {":path": b"/csi.v1.Identity/Nothing"}, Code.UNIMPLEMENTED, "no such method"),
        (EMPTY, {":path": b""}, Code.UNIMPLEMENTED, "no such method"),
        (EMPTY, {":path": b"/csi.v1.Identity/GetPluginInfo"}, Code.UNIMPLEMENTED, "not offered"),
        (EMPTY, {"grpc-timeout": b"soon"}, Code.UNKNOWN, "grpc-timeout"),
        (EMPTY, {"grpc-timeout": b"123456789S"}, Code.UNKNOWN, "grpc-timeout"),
        (b"", {}, Code.INVALID_ARGUMENT, "without a request"),
        (b"\1\0\0\0\0", {}, Code.UNIMPLEMENTED, "compressed"),
        (b"\0\0\0", {}, Code.INTERNAL, "cannot be read"),
        (EMPTY + EMPTY, {}, Code.INTERNAL, "no single message"),
        (b"\0\0\0\0\2\xff\xff", {}, Code.INTERNAL, "cannot be read"),
    ],
)
async def test_what_cannot_be_done_has_its_code(body: bytes, fields: dict[str, bytes], code: Code, why: str) -> None:
    caller = Caller()
    caller.ask(fields, body)
    await asyncio.wait_for(caller.answered.wait(), 60)
    assert (caller.code(), caller.trailers()[":status"]) == (code, "200")
    assert why in caller.trailers()["grpc-message"]
    await caller.calls.close()


async def test_a_request_that_was_too_long() -> None:
    caller = Caller()
    caller.ask(body=b"", is_long=True)
    assert caller.code() is Code.RESOURCE_EXHAUSTED
    assert str(LARGEST_BODY) in caller.trailers()["grpc-message"]


async def test_an_answer() -> None:
    caller = Caller()
    caller.identity.let_go.set()
    caller.ask({"grpc-timeout": b"60S"})
    await asyncio.wait_for(caller.answered.wait(), 60)
    (answer,) = caller.answers
    assert answer.body == EMPTY
    head = {str(name): str(value) for name, value in Decoder().decode(answer.head)}
    assert head == {":status": "200", "content-type": "application/grpc+proto"}
    assert caller.trailers() == {"grpc-status": "0"}


async def test_messages_of_failures_travel_in_plain_text_and_are_cut() -> None:
    caller = Caller()
    caller.identity.failure = InvalidError("100 % of größe\n" + "x" * LONGEST_MESSAGE)
    caller.identity.let_go.set()
    caller.ask()
    await asyncio.wait_for(caller.answered.wait(), 60)
    told = caller.trailers()["grpc-message"]
    assert told.isascii()
    assert told.isprintable()
    assert unquote(told) == str(caller.identity.failure)[:LONGEST_MESSAGE]


@pytest.mark.parametrize(("key", "ended"), [(None, "cancelled"), ("v", "done")])
async def test_a_call_that_holds_a_volume_goes_on_when_its_caller_is_gone(key: str | None, ended: str) -> None:
    caller = Caller(key)
    leave = caller.ask()
    await caller.identity.started.wait()
    leave()
    await asyncio.sleep(0)
    caller.identity.let_go.set()
    await caller.calls.drained(60)
    await caller.calls.close()
    assert (caller.identity.ended, caller.answers) == (ended, [])


@pytest.mark.parametrize(("key", "ended"), [(None, "cancelled"), ("v", "done")])
async def test_when_the_time_is_over_the_caller_is_told_and_the_rest_is_the_same(key: str | None, ended: str) -> None:
    caller = Caller(key)
    caller.ask({"grpc-timeout": b"1m"})
    await asyncio.wait_for(caller.answered.wait(), 60)
    assert caller.code() is Code.DEADLINE_EXCEEDED
    caller.identity.let_go.set()
    await caller.calls.drained(60)
    await caller.calls.close()
    assert (caller.identity.ended, len(caller.answers)) == (ended, 1)


async def test_draining_waits_no_longer_than_it_is_given() -> None:
    caller = Caller("v")
    caller.ask()
    await caller.identity.started.wait()
    await caller.calls.drained(0.01)
    await caller.calls.close()
    assert caller.identity.ended == "cancelled"
