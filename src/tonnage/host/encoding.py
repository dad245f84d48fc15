"""Encoding of pods' text for the kernel and bwrap, rejecting what cannot be passed.

bwrap reads its options joined by NUL, so a NUL inside one would start another. The kernel ends every path, argument and
variable at a NUL.
"""

from __future__ import annotations

from tonnage.base.errors import InvalidError


def encode(text: str, what: str) -> bytes:
    """Encode one path, argument, option or value; surrogate escapes become the original bytes.

    what: names the text in the message, which never shows the text itself: it may be a secret. Raises: InvalidError for
    NUL and for text that is not UnicodeError (lone surrogates).
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as failure:
        raise InvalidError(f"{what} is not valid Unicode at character {failure.start}: correct it") from None
    if b"\0" in data:
        raise InvalidError(f"{what} contains a NUL byte at {data.index(0)}: remove it")
    return data
