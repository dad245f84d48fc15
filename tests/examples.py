"""How many examples a property test looks at."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

CHECK = 25
"""Examples of a test in the inner loop, where it does not say how many it needs (tests/conftest.py)."""
_LEAST = 10


def examples(count: int, **more: Any) -> settings:
    """Settings of a test that needs so many examples; in the inner loop (`make check`) a tenth of them, 10 at least."""
    is_inner = settings().max_examples == CHECK
    return settings(max_examples=min(count, max(_LEAST, count // 10)) if is_inner else count, **more)
