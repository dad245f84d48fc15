"""Class parameter for lost nodes: `keep` or `release-after:<time>`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tonnage.api import names
from tonnage.errors import Invalid

KEEP = "keep"
_RELEASE = "release-after:"
_TIME = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,6})s)?")
_UNITS = (86400, 3600, 60, 1)
_SHORTEST = 60
"""Minimum seconds: a node that registers again is gone for a moment."""


def release_after(parameters: Mapping[str, str]) -> float | None:
    """Return seconds until volumes of a lost node are released; None: never.

    Raises: Invalid for other text.
    """
    text = parameters.get(names.ON_NODE_GONE, KEEP)
    if text == KEEP:
        return None
    match = _TIME.fullmatch(text.removeprefix(_RELEASE)) if text.startswith(_RELEASE) else None
    if match is None or not any(match.groups()):
        raise Invalid(
            f"parameter {names.ON_NODE_GONE} {text[:60]!r}: want {KEEP}, or {_RELEASE}TIME as {_RELEASE}1h30m"
            " (d, h, m, s)"
        )
    seconds = sum(int(number or 0) * unit for number, unit in zip(match.groups(), _UNITS, strict=True))
    if seconds < _SHORTEST:
        raise Invalid(f"parameter {names.ON_NODE_GONE} {text[:60]!r}: the shortest time is 1m")
    return float(seconds)
