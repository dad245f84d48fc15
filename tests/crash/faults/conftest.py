"""What tests of faults share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tonnage.csi.errors import Code, CsiError


@pytest.fixture
def rejected() -> Callable[..., Awaitable[CsiError]]:
    """rejected(call, code, *texts): await call, which must fail with code and a message that has all texts."""

    async def check(call: Awaitable[Any], code: Code, *texts: str) -> CsiError:
        with pytest.raises(CsiError) as raised:
            await call
        assert raised.value.code is code, raised.value
        for text in texts:
            assert text in raised.value.message
        return raised.value

    return check
