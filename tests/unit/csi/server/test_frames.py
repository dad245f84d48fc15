"""What a client sends is cut into frames wherever the socket has cut it, and what is none is rejected."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from tonnage.csi.server import frames
from tonnage.csi.server.frames import PREFACE, Frame, FrameError, Frames, FrameType, Reason, Setting

known = st.builds(
    Frame,
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, frames.LARGEST_WINDOW),
    st.binary(max_size=300),
)


def read(*data: bytes) -> list[Frame]:
    """The frames of a new connection."""
    reader = Frames()
    return [found for part in (PREFACE, *data) for found in reader.read(part)]


@given(st.lists(known, max_size=8), st.lists(st.integers(0, 2000), max_size=8))
def test_frames_come_out_whole_however_they_are_cut(told: list[Frame], cuts: list[int]) -> None:
    written = b"".join(frames.frame(FrameType.DATA, f.flags, f.stream, f.payload) for f in told)
    marks = [0, *sorted(cut for cut in cuts if cut < len(written)), len(written)]
    parts = [written[start:end] for start, end in pairwise(marks)]
    assert read(*parts) == [f._replace(kind=FrameType.DATA) for f in told]


@given(st.integers(0, len(PREFACE)))
def test_the_greeting_may_come_in_parts(cut: int) -> None:
    reader = Frames()
    assert list(reader.read(PREFACE[:cut])) == []
    ping = frames.frame(FrameType.PING, payload=b"tonnage!")
    assert list(reader.read(PREFACE[cut:] + ping)) == [Frame(FrameType.PING, 0, 0, b"tonnage!")]


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", b"\0", b"PRI * HTTP/1"])
def test_what_does_not_greet_is_rejected_at_once(said: bytes) -> None:
    with pytest.raises(FrameError, match="no HTTP/2"):
        list(Frames().read(said))


def test_a_frame_that_is_too_long_is_rejected_before_it_is_there() -> None:
    longest = frames.frame(FrameType.DATA, 0, 1, bytes(frames.FRAME_SIZE))
    assert len(read(longest)) == 1
    with pytest.raises(FrameError, match="16385 bytes"):
        read(frames.frame(FrameType.DATA, 0, 1, bytes(frames.FRAME_SIZE + 1))[:9])


@given(st.binary(max_size=50), st.integers(0, 60))
def test_padding_and_priority_are_left_out(content: bytes, pad: int) -> None:
    padded = bytes([pad]) + content + bytes(pad)
    assert Frame(FrameType.DATA, frames.PADDED, 1, padded).content() == content
    assert Frame(FrameType.DATA, frames.PRIORITY, 1, content).content() == content, "data has none"
    flags = frames.PADDED | frames.PRIORITY
    assert Frame(FrameType.HEADERS, flags, 1, bytes([pad]) + b"12345" + content + bytes(pad)).content() == content


@pytest.mark.parametrize("payload", [b"", b"\1", b"\xff" + bytes(100)])
def test_more_padding_than_there_is(payload: bytes) -> None:
    with pytest.raises(FrameError) as raised:
        Frame(FrameType.DATA, frames.PADDED, 1, payload).content()
    assert raised.value.reason is Reason.PROTOCOL_ERROR


def test_numbers_and_settings_have_their_lengths() -> None:
    assert Frame(FrameType.WINDOW_UPDATE, 0, 0, b"\x80\0\0\7").number() == 7, "the first bit means nothing"
    (found,) = read(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 9), (Setting.MAX_FRAME_SIZE, 20000)]))
    assert list(found.settings()) == [(4, 9), (5, 20000)]
    for wrong in (
        Frame(FrameType.SETTINGS, 0, 0, b"12345"),
        Frame(FrameType.SETTINGS, 0, 1, b""),
        Frame(FrameType.SETTINGS, frames.ACK, 0, b"123456"),
    ):
        with pytest.raises(FrameError):
            wrong.settings()
    with pytest.raises(FrameError):
        Frame(FrameType.RST_STREAM, 0, 1, b"123").number()


@given(st.lists(st.tuples(st.sampled_from([":status", "grpc-message", "x"]), st.text("abc %~", max_size=200))))
def test_header_blocks_mean_the_same_at_any_time(fields: list[tuple[str, str]]) -> None:
    decoder, block = Decoder(), frames.block(fields)
    for _ in range(2):
        assert [(str(name), str(value)) for name, value in decoder.decode(block)] == fields
    assert not decoder.header_table.dynamic_entries
