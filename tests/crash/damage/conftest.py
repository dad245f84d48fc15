"""How many of the changes of a record are tried at a real start."""

from __future__ import annotations

import pytest

DEFAULT = 12


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--damage", type=int, default=DEFAULT, help="changed records to start with, for each kind of pool; 0: all"
    )


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    """Changed records for each kind; more with `pytest --damage 200 tests/crash/damage`."""
    return int(request.config.getoption("--damage", DEFAULT))
