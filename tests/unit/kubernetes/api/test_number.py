"""Whole numbers in text: any text has an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.kubernetes.api.number import signed, whole


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_number_of_64_bits(number: int) -> None:
    assert signed(str(number)) == number
    assert whole(str(number)) == (number if number >= 0 else None)


@given(st.text())
def test_any_text_is_a_number_or_none(text: str) -> None:
    assert whole(text) is None or int(text) == whole(text)
    assert signed(text) is None or int(text) == signed(text)


@pytest.mark.parametrize("text", ["", "-", "+", "--1", "9" * 20, "9" * 5000, "1_0", " 1", "٣", "²", "1.0"])
def test_what_is_no_number(text: str) -> None:
    assert whole(text) is None
    assert signed(text) is None
