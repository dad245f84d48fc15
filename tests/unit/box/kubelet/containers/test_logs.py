"""The query of pods/log: any text has an answer."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tonnage.box.kubelet.containers import logs
from tonnage.errors import ApiError
from tonnage.testing.clock import ManualClock


@pytest.mark.parametrize("key", ["sinceSeconds", "tailLines", "limitBytes"])
@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "-" + "9" * 400, "-1", "x", "1_0", "٣"])
def test_numbers_that_are_none(key: str, text: str) -> None:
    with pytest.raises(ApiError) as refused:
        logs.parse({key: text}, ManualClock())
    assert refused.value.code in (400, 422)


def test_since_ever() -> None:
    everything = b"1970-01-01T00:00:00.000000000Z"
    for query in (
        {"sinceSeconds": str(2**63 - 1)},
        {"sinceTime": "0001-01-01T00:00:00Z"},
        {"sinceTime": "1960-01-01T00:00:00Z"},
    ):
        assert logs.parse(query, ManualClock()).since == everything


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "x"])
def test_since_a_time_at_the_end_of_the_calendar(text: str) -> None:
    with suppress(ApiError):
        assert logs.parse({"sinceTime": text}, ManualClock()).since
