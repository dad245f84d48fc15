"""What capacity objects say beside their numbers."""

from __future__ import annotations

import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES


@pytest.mark.parametrize(
    ("text", "counted"), [("17", 17), ("0", 0), ("", None), ("-1", None), ("x", None), ("9" * 5000, None)]
)
def test_what_is_counted_is_a_number_or_nothing(text: str, counted: int | None) -> None:
    """Python reads no number of so many digits, and who reads it must not end for that."""
    body = f'{{"metadata": {{"annotations": {{"{names.OBSERVED_CLAIM_VERSION}": "{text}"}}}}}}'
    assert CAPACITIES.decode(body.encode()).counted == counted


def test_nothing_said_is_nothing_counted() -> None:
    assert CAPACITIES.decode(b"{}").counted is None
