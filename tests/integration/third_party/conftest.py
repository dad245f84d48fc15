"""What tests against programs of others need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.programs import found


@pytest.fixture(scope="session")
def go_program() -> Callable[[str], Path]:
    """Finds one of the programs beside this file; skips the test where it is not built."""
    return found
