"""Frames of HTTP/2 (RFC 9113) and header blocks (RFC 7541), as far as unary gRPC calls need them. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from hpack import Encoder, NeverIndexedHeaderTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_SIZE = 16384
"""Maximum bytes of a frame's payload: the minimum that RFC 9113 allows (6.5.2)."""
LARGEST_WINDOW = 2**31 - 1
ACK, END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
"""Flags of frames (6)."""
_HEAD = struct.Struct(">HBBBL")  # two of the length's three bytes, the last, kind, flags, stream


class FrameType(IntEnum):
    """Frame types (6)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Settings in use (6.5.2)."""

    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Reason(IntEnum):
    """Error codes of streams and connections (7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class FrameError(Exception):
    """A violation of HTTP/2 by the peer: its connection must be closed."""

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(f"{reason.name}: {what}")
        self.reason = reason


class Frame(NamedTuple):
    """A frame, possibly of an unknown type."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    def content(self) -> bytes:
        """The payload of DATA and HEADERS without padding and priority. Raises: FrameError."""
        payload, start, end = self.payload, 0, len(self.payload)
        if self.flags & PADDED:
            start, end = 1, end - (payload[0] if payload else 0)
        if self.flags & PRIORITY and self.kind == FrameType.HEADERS:
            start += 5
        if start > end:
            raise FrameError(Reason.PROTOCOL_ERROR, "more padding than payload")
        return payload[start:end]

    def number(self) -> int:
        """The payload of RST_STREAM and WINDOW_UPDATE. Raises: FrameError."""
        if len(self.payload) != 4:
            raise FrameError(Reason.FRAME_SIZE_ERROR, f"{len(self.payload)} bytes in a frame of kind {self.kind}")
        return int.from_bytes(self.payload, "big") & LARGEST_WINDOW

    def settings(self) -> Iterator[tuple[int, int]]:
        """The payload of SETTINGS: numbers and values. Raises: FrameError."""
        if self.stream or len(self.payload) % 6 or (self.flags & ACK and self.payload):
            raise FrameError(Reason.FRAME_SIZE_ERROR, "settings that are none")
        return struct.iter_unpack(">HL", self.payload)


class Frames:
    """Splits a client's data into frames."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._is_greeted = False

    def read(self, data: bytes) -> Iterator[Frame]:
        """The frames that this data completes.

        Raises: FrameError for data that is not HTTP/2, or a frame that is too long.
        """
        unread = self._unread
        unread += data
        if not self._is_greeted:
            if not PREFACE.startswith(unread[: len(PREFACE)]):
                raise FrameError(Reason.PROTOCOL_ERROR, "no HTTP/2")
            if len(unread) < len(PREFACE):
                return
            self._is_greeted = True
            del unread[: len(PREFACE)]
        start = 0
        while len(unread) - start >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(unread, start)
            if (size := high << 8 | low) > FRAME_SIZE:
                raise FrameError(Reason.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            end = start + _HEAD.size + size
            if len(unread) < end:
                break
            yield Frame(kind, flags, stream & LARGEST_WINDOW, bytes(unread[start + _HEAD.size : end]))
            start = end
        del unread[:start]


def frame(kind: FrameType, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def number(kind: FrameType, stream: int, value: int) -> bytes:
    """A frame whose payload is a number: RST_STREAM, WINDOW_UPDATE."""
    return frame(kind, 0, stream, value.to_bytes(4, "big"))


def settings(values: Iterable[tuple[Setting, int]]) -> bytes:
    """A SETTINGS frame."""
    return frame(FrameType.SETTINGS, payload=b"".join(struct.pack(">HL", *pair) for pair in values))


def goaway(last: int, reason: Reason) -> bytes:
    """The GOAWAY frame that ends a connection. last: the last processed stream."""
    return frame(FrameType.GOAWAY, payload=struct.pack(">LL", last, reason))


def block(fields: Iterable[tuple[str, str]]) -> bytes:
    """A header block that leaves the dynamic table unchanged, so it can be sent at any time."""
    return Encoder().encode([NeverIndexedHeaderTuple(*field) for field in fields], huffman=False)
