"""Checks that tests share."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tonnage.csi.errors import Code, CsiError


@contextmanager
def raises_nothing() -> Iterator[None]:
    """What is done inside must pass: for rules whose only result is an error."""
    try:
        yield
    except Exception as failure:
        raise AssertionError(f"this must be allowed: {failure}") from failure


async def rejected(call: Awaitable[Any], code: Code, *texts: str) -> CsiError:
    """Await a call of a driver, which must fail with code and a message that has all texts."""
    with pytest.raises(CsiError) as raised:
        await call
    assert raised.value.code is code, raised.value
    for text in texts:
        assert text in raised.value.message
    return raised.value
