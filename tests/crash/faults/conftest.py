"""What tests of faults share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests import checks

from tonnage.csi.errors import CsiError


@pytest.fixture
def rejected() -> Callable[..., Awaitable[CsiError]]:
    """See checks.rejected()."""
    return checks.rejected
