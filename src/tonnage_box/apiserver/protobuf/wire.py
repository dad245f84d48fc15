"""Wire format of protobuf: numbers of variable length, tags, length-delimited fields (protobuf.dev, "Encoding")."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIRE_TYPES = (VARINT, FIXED64, BYTES, FIXED32)
_SIZES = {FIXED64: 8, FIXED32: 4}
_MASK = (1 << 64) - 1


class WireError(ValueError):
    """Bytes that are no protobuf message, or none of the expected type."""


def varint(value: int) -> bytes:
    """A whole number of 64 bits; negative ones as their two's complement."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    value &= _MASK
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_SMALL = [bytes([value]) for value in range(0x80)]


def delimited(number: int, data: bytes | bytearray) -> bytes:
    """A length-delimited field: bytes, text or a message."""
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at a place, unsigned, and where it ends. Raises: WireError."""
    result = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & _MASK, at
        shift += 7
        if shift > 63:
            raise WireError("a number has more than 64 bits")
    raise WireError("a number is cut off")


def signed(value: int) -> int:
    """The two's complement of 64 bits as a number with a sign."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Tag, number or start, end, and the place behind each field. Raises: WireError.

    A VARINT field has its value in place of its start. The bounds are those of the message.
    """
    while at < end:
        tag = data[at]
        if tag < 0x80:  # as nearly all, and nearly all sizes
            at += 1
        else:
            tag, at = read_varint(data, at, end)
        wire = tag & 7
        if tag < 8 or tag > 0xFFFFFFFF:
            raise WireError(f"field number {tag >> 3} does not exist")
        if wire == BYTES:
            if at < end and data[at] < 0x80:
                size = data[at]
                at += 1
            else:
                size, at = read_varint(data, at, end)
        elif wire == VARINT:
            value, at = read_varint(data, at, end)
            yield tag, value, at, at
            continue
        elif wire in _SIZES:
            size = _SIZES[wire]
        else:
            raise WireError(f"field {tag >> 3} has the unknown wire type {wire}")
        if size > end - at:
            raise WireError(f"field {tag >> 3} is cut off")
        yield tag, at, at + size, at + size
        at += size
