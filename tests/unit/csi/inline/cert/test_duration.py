"""Durations in Go's notation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("2160h", 7_776_000), ("1h30m", 5400), ("1.5s", 1.5), ("-2m", -120), ("0", 0), ("+1h", 3600), (".5s", 0.5)]
)  # fmt: skip
def test_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.text())
def test_any_text_is_read_or_rejected(text: str) -> None:
    try:
        assert isinstance(parse_duration(text), float)
    except InvalidError as error:
        assert str(error).startswith("time: ")  # noqa: PT017
