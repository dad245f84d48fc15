"""Checks that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raises_nothing() -> Iterator[None]:
    """What is done inside must pass: for rules whose only result is an error."""
    try:
        yield
    except Exception as failure:
        raise AssertionError(f"this must be allowed: {failure}") from failure
