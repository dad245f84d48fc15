"""Times as text."""

from __future__ import annotations

from tonnage.base.aio.clock import parse_rfc3339, rfc3339, time_of


def test_times_print_as_kubernetes_prints_them() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00Z"
    assert rfc3339(1.5, micro=True) == "1970-01-01T00:00:01.500000Z"
    assert parse_rfc3339("1970-01-01T00:01:00Z") == 60.0


def test_a_time_that_is_missing_or_invalid_is_none() -> None:
    assert time_of("1970-01-01T00:01:00Z") == 60.0
    assert [time_of(text) for text in (None, "", "soon")] == [None] * 3
