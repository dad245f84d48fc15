"""Schedules: when is the next time, and when was the last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError
from tonnage_box.api.cron import parse


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "then"),
    [
        ("* * * * *", "2026-01-01T00:00:30", "2026-01-01T00:01"),
        ("*/15 * * * *", "2026-01-01T00:15", "2026-01-01T00:30"),
        ("5/20 * * * *", "2026-01-01T00:06", "2026-01-01T00:25"),
        ("0 9-17/4 * * mon-fri", "2026-01-02T17:30", "2026-01-05T09:00"),
        ("30 2 1 * *", "2026-01-31T00:00", "2026-02-01T02:30"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("0 0 13 * FRI", "2026-01-01T00:00", "2026-01-02T00:00"),
        ("0 0 */2 * fri", "2026-01-01T00:00", "2026-01-09T00:00"),
        ("0 12 ? jan,dec 0", "2026-01-26T00:00", "2026-12-06T12:00"),
        ("@daily", "2026-01-01T00:00", "2026-01-02T00:00"),
        ("@weekly", "2026-01-01T00:00", "2026-01-04T00:00"),
    ],
)
def test_the_next_time(schedule: str, after: str, then: str) -> None:
    assert parse(schedule).next(at(after)) == at(then)


def test_a_day_that_never_comes() -> None:
    assert parse("0 0 30 2 *").next(at("2026-01-01T00:00")) is None
    assert parse("0 0 30 2 *").latest(at("2020-01-01T00:00"), at("2026-01-01T00:00")) is None


def test_in_a_zone_an_hour_is_leapt_over_and_one_comes_twice() -> None:
    """Berlin 2026: 02:00 to 03:00 is not there on 29 March, and comes twice on 25 October: only the first counts."""
    if "Europe/Berlin" not in available_timezones():
        pytest.skip("needs the time zone database (Debian: tzdata)")
    schedule = parse("30 2 * * *", "Europe/Berlin")
    assert schedule.next(at("2026-03-28T12:00")) == at("2026-03-30T00:30")
    assert schedule.next(at("2026-10-24T12:00")) == at("2026-10-25T00:30")
    assert schedule.next(at("2026-10-25T00:30")) == at("2026-10-26T01:30")


@given(
    schedule=st.sampled_from(["* * * * *", "*/7 3,9 * * *", "0 0 1 */3 *", "15 6 * * sat"]),
    start=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
    minutes=st.integers(0, 60 * 24 * 400),
)
def test_the_last_time_is_the_one_before_the_next(schedule: str, start: datetime, minutes: int) -> None:
    one, after = parse(schedule), start.replace(tzinfo=UTC)
    until = after + timedelta(minutes=minutes)
    last = one.latest(after, until)
    if last is None:
        following = one.next(after)
        assert following is not None
        assert following > until
    else:
        assert after < last <= until
        following = one.next(last)
        assert following is not None
        assert following > until


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "60 * * * *", "* * 0 * *", "* * * * 7", "5-1 * * * *", "*/0 * * * *", "a * * * *", "@every 5m"],
)
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(InvalidError, match="schedule"):
        parse(text)


def test_zones_are_those_of_the_database() -> None:
    for zone in ("Mars/Phobos", "../etc/passwd"):
        with pytest.raises(InvalidError, match="unknown time zone"):
            parse("@daily", zone)


def test_a_schedule_that_is_too_long_is_not_read() -> None:
    minutes = ",".join(str(number) for number in range(60))
    assert parse(f"{minutes} * * * *").minutes == frozenset(range(60))
    with pytest.raises(InvalidError, match="has 2800008 characters, want at most 1024") as raised:
        parse("0," * 1_400_000 + " * * * *")
    assert len(str(raised.value)) < 200
