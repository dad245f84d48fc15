"""Go's notation of durations (time.ParseDuration): `2160h`, `1h30m`, `1.5s`.

Used for the attributes duration and renew-before. Values are seconds.
"""

from __future__ import annotations

import re

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.field_error import quote

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)([^\d.]*)", re.ASCII)
_MOST = 2.0**63 * 1e-9


def parse_duration(text: str) -> float:
    """Seconds of a duration. Raises: InvalidError with Go's words."""
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    seconds, at = 0.0, 0
    while at < len(rest) and (part := _PART.match(rest, at)):
        seconds += _part(part[1], part[2], text)
        at = part.end()
    if not rest or at < len(rest) or seconds >= _MOST:
        raise InvalidError(f"time: invalid duration {quote(text)}")
    return sign * seconds


def _part(number: str, unit: str, text: str) -> float:
    if not unit:
        raise InvalidError(f"time: missing unit in duration {quote(text)}")
    if unit not in _UNITS:
        raise InvalidError(f"time: unknown unit {quote(unit)} in duration {quote(text)}")
    if len(number) > 30:
        raise InvalidError(f"time: invalid duration {quote(text)}")
    return float(number) * _UNITS[unit]
