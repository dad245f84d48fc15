"""HTTP/2 as an HTTP/2 library speaks it, and as nobody should."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from tonnage.csi.client.client import CsiClient
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.errors import Code
from tonnage.csi.server import frames
from tonnage.csi.server.frames import END_HEADERS, END_STREAM, PREFACE, FrameType, Reason
from tonnage.csi.server.http2 import AT_ONCE, LARGEST_BODY, LARGEST_HEAD, Http2Request, Http2Response, ServerConnection

SETTINGS = frames.settings([])
PING = frames.frame(FrameType.PING, payload=b"tonnage!")
PONG = frames.frame(FrameType.PING, frames.ACK, payload=b"tonnage!")
HEAD, END = frames.block([(":status", "200")]), frames.block([("grpc-status", "0")])
FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "x"), ("te", "trailers")]
ASKED = frames.block(FIELDS)


class Wire(asyncio.Transport):
    """What the server has sent and not yet been read, and whether it has hung up."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        assert not self.closed
        self.sent += data

    def close(self) -> None:
        """See asyncio."""
        self.closed = True

    def pause_reading(self) -> None:
        """See asyncio."""
        self.paused = True

    def resume_reading(self) -> None:
        """See asyncio."""
        self.paused = False

    def take(self) -> bytes:
        """What was sent since the last time."""
        sent, self.sent = self.sent, b""
        return sent


class Server:
    """A connection whose requests are kept until the test answers them."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.asked: list[tuple[Http2Request, Callable[[Http2Response], None]]] = []
        self.left: list[int] = []
        self.lost = 0
        self.connection = ServerConnection(self._begin, self._lost)
        self.connection.connection_made(self.wire)

    def _begin(self, request: Http2Request, reply: Callable[[Http2Response], None]) -> Callable[[], None]:
        number = len(self.asked)
        self.asked.append((request, reply))
        return lambda: self.left.append(number)

    def _lost(self, _connection: ServerConnection) -> None:
        self.lost += 1

    def hear(self, *data: bytes) -> None:
        """What a client says."""
        for part in data:
            self.connection.data_received(part)

    def answer(self, number: int, body: bytes) -> None:
        """Answer a request."""
        self.asked[number][1](Http2Response(END, HEAD, body))

    def said(self) -> list[frames.Frame]:
        """The frames sent since the last time."""
        reader = frames.Frames()
        list(reader.read(PREFACE))
        return list(reader.read(self.wire.take()))


class Client:
    """An HTTP/2 library at the other end. window: bytes it takes of an answer before it has read them."""

    def __init__(self, server: Server, *, window: int = 65535, padded: int = 0) -> None:
        self.server = server
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._padded = padded or None
        self._unsent: dict[int, bytes] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: list[int] = []
        self.exchange()

    def ask(self, body: bytes) -> int:
        """Begin a request; the number of its stream."""
        stream = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream, FIELDS)
        self._unsent[stream], self.bodies[stream] = body, b""
        self.exchange()
        return stream

    def exchange(self) -> None:
        """Send and read until nobody has anything to say any more."""
        while True:
            self._send()
            said, heard = self._h2.data_to_send(), self.server.wire.take()
            if not said and not heard:
                return
            self.server.hear(said)
            for event in self._h2.receive_data(heard):
                self._see(event)

    def _send(self) -> None:
        for stream, rest in list(self._unsent.items()):
            extra = 0 if self._padded is None else self._padded + 1
            size = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size) - extra
            if size <= 0 and rest:
                continue
            is_last = size >= len(rest)
            self._h2.send_data(stream, rest[: max(0, size)], end_stream=is_last, pad_length=self._padded)
            self._unsent[stream] = rest[max(0, size) :]
            if is_last:
                del self._unsent[stream]

    def _see(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            self.bodies[event.stream_id] += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, events.StreamEnded):
            self.ended.append(event.stream_id)
        assert not isinstance(event, events.ConnectionTerminated), event


@examples(30)
@given(
    st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 300_000)), min_size=1, max_size=5),
    st.sampled_from([1, 100, 65535, 1 << 20]),
    st.sampled_from([0, 1, 255]),
    st.randoms(use_true_random=False),
)
def test_any_sizes_in_any_windows(
    sizes: Sequence[tuple[int, int]], window: int, padded: int, chance: random.Random
) -> None:
    server = Server()
    least = window < 1000
    asked = [(bytes([n]) * a, bytes([n]) * (b % 3000 if least else b)) for n, (a, b) in enumerate(sizes)]
    client = Client(server, window=window, padded=padded)
    streams = [client.ask(request) for request, _ in asked]
    assert [request.body for request, _ in server.asked] == [request for request, _ in asked]
    order = list(range(len(asked)))
    chance.shuffle(order)
    for number in order:
        server.answer(number, asked[number][1])
    client.exchange()
    assert [client.bodies[stream] for stream in streams] == [answer for _, answer in asked]
    assert sorted(client.ended) == streams
    assert not server.wire.closed


def test_the_longest_request_and_one_longer() -> None:
    server = Server()
    client = Client(server)
    client.ask(bytes(LARGEST_BODY))
    assert (len(server.asked[0][0].body), server.asked[0][0].is_long) == (LARGEST_BODY, False)
    stream = client.ask(bytes(LARGEST_BODY + 1))
    assert (server.asked[1][0].body, server.asked[1][0].is_long) == (b"", True)
    server.answer(1, b"too long")
    server.answer(0, b"good")
    client.exchange()
    assert client.bodies[stream] == b"too long"
    client.ask(b"another")
    assert server.asked[2][0].body == b"another"


def test_a_header_block_in_parts_with_trailers_after_the_body() -> None:
    server = Server()
    server.hear(PREFACE + SETTINGS)
    server.hear(
        frames.frame(FrameType.HEADERS, 0, 1, ASKED[:5]), frames.frame(FrameType.CONTINUATION, 0, 1, ASKED[5:9])
    )
    assert not server.asked
    server.hear(frames.frame(FrameType.CONTINUATION, END_HEADERS, 1, ASKED[9:]))
    server.hear(frames.frame(FrameType.DATA, 0, 1, b"body"), frames.frame(FrameType.DATA, 0, 1))
    assert not server.asked
    server.hear(frames.frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, frames.block([("x", "y")])))
    ((request, _),) = server.asked
    assert (request.body, request.fields[b":path"]) == (b"body", b"/a")


def _asked(server: Server, stream: int, body: bytes = b"b") -> None:
    server.hear(frames.frame(FrameType.HEADERS, END_HEADERS, stream, ASKED))
    server.hear(frames.frame(FrameType.DATA, END_STREAM, stream, body))


def test_who_goes_away_is_told_of() -> None:
    server = Server()
    server.hear(PREFACE + SETTINGS)
    for stream in (1, 3, 5):
        _asked(server, stream)
    server.hear(frames.number(FrameType.RST_STREAM, 3, Reason.NO_ERROR))
    assert server.left == [1]
    server.said()
    server.answer(1, b"too late")
    assert server.said() == []
    server.answer(0, b"in time")
    server.connection.connection_lost(None)
    assert (server.left, server.lost) == ([1, 2], 1)


def test_more_calls_than_allowed_are_rejected_and_the_others_go_on() -> None:
    server = Server()
    server.hear(PREFACE + SETTINGS)
    server.said()
    for number in range(AT_ONCE + 1):
        _asked(server, 2 * number + 1)
    (rejected,) = server.said()
    assert (rejected.kind, rejected.stream, rejected.number()) == (FrameType.RST_STREAM, 201, Reason.REFUSED_STREAM)
    assert len(server.asked) == AT_ONCE
    server.answer(0, b"x")
    _asked(server, 203)
    assert len(server.asked) == AT_ONCE + 1


def test_an_answer_before_the_end_of_the_request_ends_it() -> None:
    server = Server()
    server.hear(PREFACE + SETTINGS)
    server.hear(frames.frame(FrameType.HEADERS, END_HEADERS, 1, ASKED))
    for _ in range(LARGEST_BODY // frames.FRAME_SIZE + 1):
        server.hear(frames.frame(FrameType.DATA, 0, 1, bytes(frames.FRAME_SIZE)))
    server.said()
    server.answer(0, b"")
    assert [(f.kind, f.stream) for f in server.said()] == [
        (FrameType.HEADERS, 1),
        (FrameType.HEADERS, 1),
        (FrameType.RST_STREAM, 1),
    ]
    server.hear(frames.frame(FrameType.DATA, END_STREAM, 1, b"what was on its way"), PING)
    assert server.wire.take() == PONG


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    server = Server()
    server.connection.pause_writing()
    assert server.wire.paused
    server.connection.resume_writing()
    assert not server.wire.paused


def test_hanging_up_says_so_and_nothing_follows() -> None:
    server = Server()
    server.hear(PREFACE + SETTINGS)
    _asked(server, 1)
    server.said()
    server.connection.hang_up()
    server.connection.hang_up()
    assert [f.kind for f in server.said()] == [FrameType.GOAWAY]
    assert server.wire.closed
    server.answer(0, b"x")
    server.hear(PING)
    assert server.wire.take() == b""


def test_hanging_up_before_there_is_a_connection() -> None:
    connection = ServerConnection(lambda _request, _reply: lambda: None, lambda _connection: None)
    connection.hang_up()
    wire = Wire()
    connection.connection_made(wire)
    assert wire.closed


BREAKS = {
    "a stream that is even": (frames.frame(FrameType.HEADERS, END_HEADERS, 2, ASKED), Reason.PROTOCOL_ERROR),
    "a request on no stream": (frames.frame(FrameType.HEADERS, END_HEADERS, 0, ASKED), Reason.PROTOCOL_ERROR),
    "data before a request": (frames.frame(FrameType.DATA, 0, 5, b"x"), Reason.PROTOCOL_ERROR),
    "data after the end": (frames.frame(FrameType.DATA, 0, 1, b"x"), Reason.STREAM_CLOSED),
    "trailers after the end": (
        frames.frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, ASKED),
        Reason.PROTOCOL_ERROR,
    ),
    "a reset of nothing": (frames.number(FrameType.RST_STREAM, 7, 0), Reason.PROTOCOL_ERROR),
    "a short reset": (frames.frame(FrameType.RST_STREAM, 0, 1, b"x"), Reason.FRAME_SIZE_ERROR),
    "no more window": (frames.number(FrameType.WINDOW_UPDATE, 0, 0), Reason.PROTOCOL_ERROR),
    "too large a window": (frames.number(FrameType.WINDOW_UPDATE, 0, 2**31 - 1), Reason.FLOW_CONTROL_ERROR),
    "too large a window of a call": (frames.number(FrameType.WINDOW_UPDATE, 1, 2**31 - 1), Reason.FLOW_CONTROL_ERROR),
    "too large a first window": (
        frames.settings([(frames.Setting.INITIAL_WINDOW_SIZE, 2**31)]),
        Reason.FLOW_CONTROL_ERROR,
    ),
    "too small frames": (frames.settings([(frames.Setting.MAX_FRAME_SIZE, 100)]), Reason.PROTOCOL_ERROR),
    "a short ping": (frames.frame(FrameType.PING, payload=b"x"), Reason.FRAME_SIZE_ERROR),
    "a push": (frames.frame(FrameType.PUSH_PROMISE, 0, 1, b"1234"), Reason.PROTOCOL_ERROR),
    "a continuation of nothing": (frames.frame(FrameType.CONTINUATION, 0, 1), Reason.PROTOCOL_ERROR),
    "a block that is broken off": (
        frames.frame(FrameType.HEADERS, 0, 3, ASKED) + frames.frame(FrameType.DATA, 0, 1),
        Reason.PROTOCOL_ERROR,
    ),
    "a block that is none": (
        frames.frame(FrameType.HEADERS, END_HEADERS, 3, b"\xff\xff\xff\xff\xff"),
        Reason.COMPRESSION_ERROR,
    ),
    "a block without end": (
        frames.frame(FrameType.HEADERS, 0, 3)
        + frames.frame(FrameType.CONTINUATION, 0, 3, bytes(frames.FRAME_SIZE))
        * (LARGEST_HEAD // frames.FRAME_SIZE + 1),
        Reason.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_who_breaks_the_rules_is_told_why_and_hung_up_on(name: str) -> None:
    said, reason = BREAKS[name]
    server = Server()
    server.hear(PREFACE + SETTINGS)
    _asked(server, 1)
    server.said()
    server.hear(said)
    last = server.said()[-1]
    assert (last.kind, int.from_bytes(last.payload[4:8], "big")) == (FrameType.GOAWAY, reason)
    assert server.wire.closed


kinds = st.sampled_from([*FrameType, 77])
spoken = st.builds(
    lambda kind, flags, stream, payload: frames.frame(kind, flags, stream, payload),
    kinds,
    st.integers(0, 255),
    st.integers(0, 9),
    st.one_of(
        st.binary(max_size=40), st.just(ASKED), st.binary(min_size=4, max_size=4), st.binary(min_size=8, max_size=8)
    ),
)


@examples(300)
@given(st.lists(spoken, max_size=30))
def test_any_frames_end_in_nothing_worse_than_a_closed_connection(said: Sequence[bytes]) -> None:
    server = Server()
    server.hear(PREFACE, *said)
    for number in range(len(server.asked)):
        server.answer(number, b"x")
    if not server.wire.closed:
        server.wire.take()
        server.hear(PING)
        if server.wire.closed or not server.wire.sent:  # in the middle of a header block
            return
        assert server.wire.take() == PONG


class _Raw(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: object) -> bytes:
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:
        return data


async def test_frames_of_an_unknown_kind_are_ignored(endpoint: DriverEndpoint) -> None:
    reader, writer = await asyncio.open_unix_connection(str(endpoint.socket))
    writer.write(PREFACE + SETTINGS + b"\0\0\3\xfa\0\0\0\0\0abc" + PING)
    await reader.readuntil(PONG)
    writer.close()
    await writer.wait_closed()


async def test_who_does_not_speak_http2_loses_the_connection_only(
    endpoint: DriverEndpoint, client: CsiClient, caplog: pytest.LogCaptureFixture
) -> None:
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 500, PREFACE + SETTINGS + b"\0" * 500):
        reader, writer = await asyncio.open_unix_connection(str(endpoint.socket))
        writer.write(said)
        await reader.read()
        writer.close()
        await writer.wait_closed()
    assert await client.probe()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_request_that_cannot_be_read_is_answered_as_grpc_does(
    endpoint: DriverEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    async with Channel(path=str(endpoint.socket), codec=_Raw()) as channel:
        method: UnaryUnaryMethod[bytes, bytes] = UnaryUnaryMethod(channel, "/csi.v1.Identity/Probe", bytes, bytes)
        with pytest.raises(GRPCError) as raised:
            await method(b"\xff\xff", timeout=60)
    assert raised.value.status is Code.INTERNAL
    assert "Probe: the request cannot be read" in (raised.value.message or "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
