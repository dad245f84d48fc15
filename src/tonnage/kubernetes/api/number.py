"""Whole numbers in untrusted text: annotations, percentages, query parameters."""

from __future__ import annotations

MAX_DIGITS = 19
"""Those of the largest int64. int() raises ValueError above 4,300 digits."""


def whole(text: str, digits: int = MAX_DIGITS) -> int | None:
    """Parse ASCII digits; None for any other text, and for more than so many digits."""
    if len(text) > digits or not text.isascii() or not text.isdigit():
        return None
    return int(text)


def signed(text: str, digits: int = MAX_DIGITS) -> int | None:
    """Parse digits as whole, with an optional sign."""
    number = whole(text[1:] if text[:1] in ("-", "+") else text, digits)
    return -number if number is not None and text[:1] == "-" else number
