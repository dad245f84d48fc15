"""JSON text with a checksum, for records, jobs and markers.

A text is valid only if it is byte for byte what encode() makes of its object. A missing, unknown or repeated field,
another order or a flipped bit is damage. The checksum is the last field. Format 1 had no checksum; such a text is read
once and rewritten.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

FORMAT = 2
_UNSEALED = 1
_BEFORE, _AFTER = b',"checksum":"', b'"}'
_DIGITS = 64


class _Version(msgspec.Struct):
    version: int


T = TypeVar("T", bound=msgspec.Struct)


def checksum(body: bytes) -> str:
    """The checksum of a text."""
    return hashlib.sha256(body).hexdigest()


def encode(value: msgspec.Struct) -> bytes:
    """Encode an object that has a field `version`: FORMAT, or what a test wants."""
    text = msgspec.json.encode(value)
    if getattr(value, "version", FORMAT) == _UNSEALED:
        return text
    return text[:-1] + _BEFORE + checksum(text).encode() + _AFTER


def decode(text: bytes, kind: type[T]) -> T:
    """Decode a text whose `version` names its format.

    Raises ValueError with the damage found.
    """
    body = _body(text)
    try:
        version = msgspec.json.decode(body or text, type=_Version).version
        if body is not None and version > FORMAT:
            raise ValueError(f"it was made by a newer tonnage (format {version})")
        if version != (_UNSEALED if body is None else FORMAT):
            raise ValueError("it has no checksum" if body is None else f"its format is {version}")
        found = msgspec.json.decode(body or text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as failure:
        raise ValueError(f"it cannot be read: {failure}") from None
    if encode(found) != text:
        raise ValueError("it has missing, unknown or misplaced fields")
    return found


def _body(text: bytes) -> bytes | None:
    """Return the bytes that the checksum covers, None where there is no checksum.

    Raises ValueError when it does not match.
    """
    end = len(text) - len(_AFTER)
    start = end - _DIGITS
    if start < 0 or text[end:] != _AFTER or not text[:start].endswith(_BEFORE):
        return None
    body = text[: start - len(_BEFORE)] + b"}"
    if checksum(body).encode() != text[start:end]:
        raise ValueError("its checksum is wrong")
    return body
