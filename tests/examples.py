"""How many examples a property test looks at."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

PROFILES = {"check": 10, "test": 4}
"""The inner loop (`make check`) and `make test`: which part of the examples of all others they look at (tests/conftest.py)."""
DEFAULT = 100
"""Examples of a test that does not say how many it needs."""
_LEAST = 10


def few(count: int) -> int:
    """How many examples the chosen profile looks at where all are so many; 10 at least."""
    return min(count, max(_LEAST, count // PROFILES.get(settings.get_current_profile_name(), 1)))


def examples(count: int, *, machine: bool = False, **more: Any) -> settings:
    """Settings of a test that needs so many examples. machine: `make test` looks at all of them, as its faults are rare."""
    is_whole = machine and settings.get_current_profile_name() == "test"
    return settings(max_examples=count if is_whole else few(count), **more)
