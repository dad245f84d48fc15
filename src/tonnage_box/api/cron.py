"""Schedules of CronJobs: `minute hour day-of-month month day-of-week` (crontab(5)).

As in Kubernetes: names of months and days, `*`, `?`, lists, ranges and steps, and words such as @daily. Where both days
are restricted, either matches. Sunday is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.number import whole

_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 6))
LONGEST = 1024
"""Characters of a schedule: with all 60 minutes one by one it has some 300."""
_YEARS = 5
"""How far ahead to search: 29 February is at most that far, nearly always."""
_SPANS = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=366), timedelta(days=366 * _YEARS))


@dataclass(frozen=True)
class Schedule:
    """A parsed schedule. Times are in UTC; zone is the time zone of the fields."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    zone: tzinfo = UTC

    def next(self, after: datetime) -> datetime | None:
        """The first point after a time; None if there is none within five years (30 February)."""
        local = after.astimezone(self.zone).replace(tzinfo=None, second=0, microsecond=0)
        end = local + timedelta(days=366 * _YEARS)
        local += timedelta(minutes=1)
        while local < end:
            if local.month not in self.months:
                local = (local.replace(day=1, hour=0, minute=0) + timedelta(days=32)).replace(day=1)
            elif not self._is_day(local):
                local = local.replace(hour=0, minute=0) + timedelta(days=1)
            elif local.hour not in self.hours:
                local = local.replace(minute=0) + timedelta(hours=1)
            elif local.minute not in self.minutes or (found := self._real(local, after)) is None:
                local += timedelta(minutes=1)
            else:
                return found
        return None

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """The last point after one time and not after another, None if there is none."""
        for span in _SPANS:
            found = self.next(max(after, until - span))
            if found is not None and found <= until:
                while (later := self.next(found)) is not None and later <= until:
                    found = later
                return found
            if until - span <= after:
                break
        return None

    def _is_day(self, local: datetime) -> bool:
        day, weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return day or weekday if self.either_day else day and weekday

    def _real(self, local: datetime, after: datetime) -> datetime | None:
        """That local time in UTC; None for a time that daylight saving skips or repeats."""
        moment = local.replace(tzinfo=self.zone).astimezone(UTC)
        there = moment.astimezone(self.zone).replace(tzinfo=None)
        return moment if there == local and moment > after else None


def parse(text: str, zone: str = "") -> Schedule:
    """Read a schedule, in a time zone of the tz database (UTC without). Raises: InvalidError."""
    if len(text) > LONGEST:
        raise InvalidError(f"schedule {text[:60]!r}...: has {len(text)} characters, want at most {LONGEST}")
    fields = _WORDS.get(text, text).split()
    if len(fields) != len(_FIELDS):
        raise InvalidError(
            f"schedule {text!r}: want five fields (minute hour day month weekday) or one of {', '.join(_WORDS)}"
        )
    values = [_field(field, *form) for field, form in zip(fields, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = values
    either = not any(fields[n].startswith(("*", "?")) for n in (2, 4))
    return Schedule(minutes, hours, days, months, weekdays, either, _zone(zone))


def _zone(name: str) -> tzinfo:
    if not name:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidError(f"unknown time zone {name}") from None


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, last = _span(span, name, low, high, open_end=bool(slash))
        every = whole(step) if slash else 1
        if not every:
            raise InvalidError(f"schedule: {part[:60]!r} of the {name}: a step is a number above 0")
        found |= set(range(first, last + 1, every))
    return frozenset(found)


def _span(text: str, name: str, low: int, high: int, *, open_end: bool) -> tuple[int, int]:
    if text in ("*", "?"):
        return low, high
    first, dash, last = text.partition("-")
    start = _number(first, name)
    end = _number(last, name) if dash else high if open_end else start
    if not low <= start <= end <= high:
        raise InvalidError(f"schedule: {text[:60]!r} of the {name}: want {low} to {high}, the smaller number first")
    return start, end


def _number(text: str, name: str) -> int:
    names = {"month": ("", *_MONTHS), "day of week": _DAYS}.get(name, ())
    if (number := whole(text)) is not None:
        return number
    if text and text.lower() in names:
        return names.index(text.lower())
    raise InvalidError(f"schedule: {text[:60]!r} of the {name}: want a number")
