"""The wire format, against the protobuf library."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from tonnage_box.apiserver.protobuf import wire


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_number_comes_back(value: int) -> None:
    data = wire.varint(value)
    assert UInt64Value.FromString(b"\x08" + data).value == value % 2**64
    assert wire.read_varint(data, 0, len(data)) == (value % 2**64, len(data))
    if value < 2**63:
        assert wire.signed(value % 2**64) == value


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",
        b"\xff" * 11,
        b"\x00\x01",
        b"\x08",
        b"\x0a\x05abc",
        b"\x09abc",
        b"\x0b",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_malformed_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        list(wire.fields(data, 0, len(data)))


def test_fields_end_where_their_message_ends() -> None:
    data = wire.delimited(1, b"ab") + wire.delimited(2, b"c")
    assert [(tag >> 3, data[start:stop]) for tag, start, stop, _ in wire.fields(data, 0, 4)] == [(1, b"ab")]
    with pytest.raises(wire.WireError, match="cut off"):
        list(wire.fields(data, 0, 6))


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_an_error(data: bytes) -> None:
    try:
        ends = [stop for _, _, stop, _ in wire.fields(data, 0, len(data))]
    except wire.WireError:
        return
    assert ends == sorted(ends)
    assert not data or ends[-1] == len(data)
