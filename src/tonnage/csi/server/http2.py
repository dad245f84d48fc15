"""An HTTP/2 server for unary gRPC calls: each request is read whole, each response is one write.

A general HTTP/2 library takes a third of a millisecond per call for features that a unary call never needs: events,
priorities, a state machine for each stream, responses in parts that wake the caller three times. This server implements
what RFC 9113 requires: flow control both ways, settings, pings, padding, resets, trailers, and limits on everything in
memory. Unknown frames are ignored. A client that violates the protocol loses its connection and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from hpack import Decoder, HPACKError

from tonnage.csi.server import frames
from tonnage.csi.server.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    LARGEST_WINDOW,
    Frame,
    FrameError,
    Frames,
    FrameType,
    Reason,
    Setting,
)

log = logging.getLogger(__name__)

AT_ONCE = 100
"""Maximum concurrent calls of one connection."""
LARGEST_HEAD = 64 * 1024
"""Maximum bytes of a request's header fields."""
LARGEST_BODY = 4 * 1024**2 + 5
"""Maximum bytes of a request's body: gRPC's usual limit and the five before each message."""
_WINDOW = 2 * LARGEST_BODY
_SETTINGS = frames.settings(
    (
        (Setting.MAX_CONCURRENT_STREAMS, AT_ONCE),
        (Setting.INITIAL_WINDOW_SIZE, _WINDOW),
        (Setting.MAX_HEADER_LIST_SIZE, LARGEST_HEAD),
    )
)
_FIRST_WINDOW = 65535  # of everything, until SETTINGS change it (6.9.2)


@dataclass(frozen=True)
class Http2Request:
    """A complete request.

    fields: by name; of repeated ones the last. is_long: its body was longer than LARGEST_BODY and is dropped.
    """

    fields: Mapping[bytes, bytes]
    body: bytes
    is_long: bool


@dataclass(frozen=True)
class Http2Response:
    """A response. head and trailers: header blocks of frames.block(). Without a body there are only trailers."""

    trailers: bytes
    head: bytes = b""
    body: bytes = b""


Begin = Callable[[Http2Request, Callable[[Http2Response], None]], Callable[[], None]]
"""Begins a call: gets the request and a reply callback, returns a callback for a caller that goes first."""


@dataclass
class _Stream:
    """A call's stream. window: bytes that may be sent; unsent: bytes without window; received: bytes with padding."""

    number: int
    fields: Mapping[bytes, bytes]
    window: int
    body: bytearray = field(default_factory=bytearray)
    received: int = 0
    is_whole: bool = False
    unsent: bytes | memoryview = b""
    trailers: bytes = b""
    leave: Callable[[], None] = lambda: None


class ServerConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, begin: Begin, lost: Callable[[ServerConnection], None]) -> None:
        """lost: called when it is closed."""
        self._begin = begin
        self._lost = lost
        self._frames = Frames()
        self._decoder = Decoder(LARGEST_HEAD)
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        self._partial: Frame | None = None
        self._window = self._first_window = _FIRST_WINDOW
        self._frame_size = FRAME_SIZE
        self._taken = 0
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        if self._is_over:
            transport.close()
        self._out += (_SETTINGS, frames.number(FrameType.WINDOW_UPDATE, 0, _WINDOW - _FIRST_WINDOW))
        self._flush()

    def connection_lost(self, _failure: Exception | None) -> None:
        """Called by asyncio."""
        self._is_over = True
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.leave()
        self._lost(self)

    def pause_writing(self) -> None:
        """Called by asyncio when the client does not read: stop reading from it."""
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Called by asyncio."""
        assert self._transport is not None
        self._transport.resume_reading()

    def hang_up(self) -> None:
        """Close the connection when all is sent. Idempotent."""
        self._end(Reason.NO_ERROR)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self._is_over:
            return
        try:
            for found in self._frames.read(data):
                self._take(found)
        except FrameError as fault:
            log.info("connection closed, not HTTP/2 error=%s", fault)
            self._end(fault.reason)
        else:
            self._flush()

    def _end(self, reason: Reason) -> None:
        if self._is_over:
            return
        self._out.append(frames.goaway(self._last, reason))
        self._flush()
        self._is_over = True
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._out and not self._is_over and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _take(self, found: Frame) -> None:
        if self._partial is not None:
            self._continuation(found)
            return
        match found.kind:
            case FrameType.HEADERS:
                self._headers(found)
            case FrameType.DATA:
                self._data(found)
            case FrameType.WINDOW_UPDATE:
                self._more_window(found)
            case FrameType.PING:
                self._ping(found)
            case FrameType.SETTINGS:
                self._settings(found)
            case FrameType.RST_STREAM:
                self._reset(found)
            case FrameType.PUSH_PROMISE | FrameType.CONTINUATION:
                raise FrameError(Reason.PROTOCOL_ERROR, f"a frame of kind {found.kind} that nothing led to")

    def _headers(self, found: Frame) -> None:
        whole = found._replace(payload=found.content())
        if found.flags & END_HEADERS:
            self._fields(whole)
        else:
            self._partial = whole

    def _continuation(self, found: Frame) -> None:
        begun = self._partial
        assert begun is not None
        if found.kind != FrameType.CONTINUATION or found.stream != begun.stream:
            raise FrameError(Reason.PROTOCOL_ERROR, "something else in the middle of a header block")
        if len(begun.payload) + len(found.payload) > LARGEST_HEAD:
            raise FrameError(Reason.ENHANCE_YOUR_CALM, "too long a header block")
        self._partial = begun._replace(payload=begun.payload + found.payload)
        if found.flags & END_HEADERS:
            whole, self._partial = self._partial, None
            self._fields(whole)

    def _fields(self, found: Frame) -> None:
        """A request's header fields, or its trailers."""
        try:
            fields = dict(self._decoder.decode(found.payload, raw=True))
        except HPACKError as failure:
            raise FrameError(Reason.COMPRESSION_ERROR, str(failure)) from None
        is_last = bool(found.flags & END_STREAM)
        if (stream := self._streams.get(found.stream)) is not None:
            if not is_last or stream.is_whole:
                raise FrameError(Reason.PROTOCOL_ERROR, "a header block after the end, or in the middle")
            self._whole(stream)
            return
        if found.stream % 2 == 0:
            raise FrameError(Reason.PROTOCOL_ERROR, f"stream {found.stream} is none of a client's")
        if found.stream <= self._last:
            return  # ended by us before the client had sent all
        self._last = found.stream
        if len(self._streams) >= AT_ONCE:
            self._out.append(frames.number(FrameType.RST_STREAM, found.stream, Reason.REFUSED_STREAM))
            return
        stream = self._streams[found.stream] = _Stream(found.stream, fields, self._first_window)
        if is_last:
            self._whole(stream)

    def _data(self, found: Frame) -> None:
        self._check_known(found)
        self._taken += len(found.payload)
        if self._taken * 2 > _WINDOW:
            self._out.append(frames.number(FrameType.WINDOW_UPDATE, 0, self._taken))
            self._taken = 0
        if (stream := self._streams.get(found.stream)) is None:
            return  # ended by us before the client had sent all
        if stream.is_whole:
            raise FrameError(Reason.STREAM_CLOSED, "data after the end")
        stream.received += len(found.payload)
        if stream.received > _WINDOW:
            raise FrameError(Reason.FLOW_CONTROL_ERROR, "more data than there is window")
        if len(stream.body) <= LARGEST_BODY:
            stream.body += found.content()
        if found.flags & END_STREAM or len(stream.body) > LARGEST_BODY:
            self._whole(stream, is_ended=bool(found.flags & END_STREAM))

    def _whole(self, stream: _Stream, *, is_ended: bool = True) -> None:
        """Begin a call. is_ended: whether the client has ended the stream; otherwise it has sent too much."""
        stream.is_whole = is_ended
        is_long = len(stream.body) > LARGEST_BODY
        request = Http2Request(stream.fields, b"" if is_long else bytes(stream.body), is_long)
        stream.body.clear()
        stream.leave = self._begin(request, partial(self._answer, stream))

    def _answer(self, stream: _Stream, answer: Http2Response) -> None:
        """Send a response, unless the stream is closed."""
        if self._streams.get(stream.number) is not stream:
            return
        if answer.head:
            self._out.append(frames.frame(FrameType.HEADERS, END_HEADERS, stream.number, answer.head))
        stream.unsent, stream.trailers = memoryview(answer.body), answer.trailers
        self._send(stream)
        self._flush()

    def _send(self, stream: _Stream) -> None:
        """Send as much of a response as the window allows."""
        while stream.unsent:
            size = min(len(stream.unsent), self._window, stream.window, self._frame_size)
            if size <= 0:
                return
            self._out.append(frames.frame(FrameType.DATA, 0, stream.number, bytes(stream.unsent[:size])))
            stream.unsent = stream.unsent[size:]
            stream.window -= size
            self._window -= size
        self._out.append(frames.frame(FrameType.HEADERS, END_HEADERS | END_STREAM, stream.number, stream.trailers))
        del self._streams[stream.number]
        if not stream.is_whole:
            self._out.append(frames.number(FrameType.RST_STREAM, stream.number, Reason.NO_ERROR))

    def _send_more(self) -> None:
        for stream in [stream for stream in self._streams.values() if stream.trailers]:
            self._send(stream)

    def _check_known(self, found: Frame) -> None:
        if not 0 < found.stream <= self._last:
            raise FrameError(Reason.PROTOCOL_ERROR, f"a frame of kind {found.kind} for stream {found.stream}")

    def _reset(self, found: Frame) -> None:
        self._check_known(found)
        found.number()
        if (stream := self._streams.pop(found.stream, None)) is not None:
            stream.leave()

    def _settings(self, found: Frame) -> None:
        values = dict(found.settings())
        if found.flags & ACK:
            return
        if not FRAME_SIZE <= values.get(Setting.MAX_FRAME_SIZE, FRAME_SIZE) < 2**24:
            raise FrameError(Reason.PROTOCOL_ERROR, f"frames of {values[Setting.MAX_FRAME_SIZE]} bytes")
        self._frame_size = values.get(Setting.MAX_FRAME_SIZE, self._frame_size)
        more = values.get(Setting.INITIAL_WINDOW_SIZE, self._first_window) - self._first_window
        self._first_window += more
        for stream in self._streams.values():
            stream.window += more
        if max(self._first_window, *(stream.window for stream in self._streams.values()), 0) > LARGEST_WINDOW:
            raise FrameError(Reason.FLOW_CONTROL_ERROR, "too large a window")
        self._out.append(frames.frame(FrameType.SETTINGS, ACK))
        self._send_more()

    def _ping(self, found: Frame) -> None:
        if len(found.payload) != 8:
            raise FrameError(Reason.FRAME_SIZE_ERROR, f"a ping of {len(found.payload)} bytes")
        if not found.flags & ACK:
            self._out.append(frames.frame(FrameType.PING, ACK, 0, found.payload))

    def _more_window(self, found: Frame) -> None:
        if (more := found.number()) == 0:
            raise FrameError(Reason.PROTOCOL_ERROR, "no more window")
        if found.stream == 0:
            self._window += more
        else:
            self._check_known(found)
            if (stream := self._streams.get(found.stream)) is None:
                return
            stream.window += more
            more = stream.window
        if max(more, self._window) > LARGEST_WINDOW:
            raise FrameError(Reason.FLOW_CONTROL_ERROR, "too large a window")
        self._send_more()
