"""When a volume grows by itself, by how much, and when to look again. No I/O.

A StorageClass decides it with parameters of the agent; an annotation of a claim with the same key overrides one. The
request is raised, so ResourceQuota and the class decide as if a person had raised it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tonnage.base.errors import InvalidError
from tonnage.csi.client.types import VolumeUse
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.quantity import from_bytes, to_bytes
from tonnage.kubernetes.api.storage import StorageClass

OFF = "off"
_PERCENT = re.compile(r"(\d{1,3})%")
_DEFAULT_STEP = "20%"
_ROUND = 1 << 20
"""Sizes are whole MiB, so that they are readable."""
SOONEST, LATEST = 1.0, 60.0
"""Seconds between two looks at a volume."""


@dataclass(frozen=True)
class AutogrowRule:
    """at: percent of free bytes or inodes below which the volume grows. by: percent, or bytes. most: bytes."""

    at: int
    by: int
    is_percent: bool
    most: int

    def is_due(self, use: VolumeUse) -> bool:
        """Return whether the volume has too few free bytes or inodes."""
        return self._margin(use) < 0

    def lacks_bytes(self, use: VolumeUse) -> bool:
        """Return whether the volume has too few free bytes, whatever inodes it has."""
        return bool(use.total) and use.available * 100 < self.at * use.total

    def next_size(self, size: int) -> int:
        """Return the bytes to request after `size`, at most `most`; `size` itself where it has them."""
        more = size * self.by // 100 if self.is_percent else self.by
        wanted = -(-(size + max(more, _ROUND)) // _ROUND) * _ROUND
        return max(size, min(wanted, self.most))

    def pause(self, use: VolumeUse, before: VolumeUse | None, seconds: float) -> float:
        """Return the seconds until the next look: half of the time in which the volume would reach the rule.

        before: the use `seconds` ago; None: not known, so look again soon.
        """
        if before is None or seconds <= 0:
            return SOONEST
        spent = (self._margin(before) - self._margin(use)) / seconds
        if spent <= 0:
            return LATEST
        return min(LATEST, max(SOONEST, self._margin(use) / spent / 2))

    def _margin(self, use: VolumeUse) -> float:
        """Return the share of the volume that is free above the rule, the smaller of bytes and inodes."""
        shares = [use.available / use.total] if use.total else []
        shares += [use.inodes_free / use.inodes] if use.inodes else []
        return min(shares, default=1.0) - self.at / 100


def rule_of(claim: PersistentVolumeClaim, storage_class: StorageClass) -> AutogrowRule | None:
    """Return the rule for a claim; None where its class has none, or the claim has switched it off.

    Raises: InvalidError for values that cannot be read.
    """
    if names.AUTOGROW_AT not in storage_class.parameters:
        return None
    notes = claim.metadata.annotations
    given = {key: notes.get(key, storage_class.parameters.get(key, "")) for key in names.AUTOGROW_KEYS}
    return None if given[names.AUTOGROW_AT] == OFF else parse(given)


def check(parameters: Mapping[str, str]) -> None:
    """Check the rule of a class, if it has one. Raises: InvalidError."""
    given = {key: parameters[key] for key in names.AUTOGROW_KEYS if key in parameters}
    if given and names.AUTOGROW_AT not in given:
        raise InvalidError(f"{next(iter(given))} without {names.AUTOGROW_AT}: name the free percentage, as 10%")
    if given:
        parse(given)


def parse(given: Mapping[str, str]) -> AutogrowRule:
    """Return the rule of these values, by key. Raises: InvalidError."""
    at, by, most = (given.get(key, "") for key in names.AUTOGROW_KEYS)
    match = _PERCENT.fullmatch(at)
    if match is None or not 1 <= int(match[1]) <= 90:
        raise InvalidError(f"{names.AUTOGROW_AT} {at[:40]!r}: want a percentage of free bytes, 1% to 90%, or {OFF}")
    if not most:
        raise InvalidError(f"{names.AUTOGROW_MAX} is missing: say how large a volume may become, as 100Gi")
    step = _PERCENT.fullmatch(by or _DEFAULT_STEP)
    if step is not None and not 1 <= int(step[1]) <= 100:
        raise InvalidError(f"{names.AUTOGROW_BY} {by[:40]!r}: want 1% to 100%, or bytes as 10Gi")
    amount = int(step[1]) if step is not None else _bytes(names.AUTOGROW_BY, by)
    return AutogrowRule(int(match[1]), amount, step is not None, _bytes(names.AUTOGROW_MAX, most))


def _bytes(key: str, text: str) -> int:
    try:
        size = to_bytes(text)
    except InvalidError:
        size = 0
    if size <= 0:
        raise InvalidError(f"{key} {text[:40]!r}: want bytes as 10Gi")
    return size


def describe(use: VolumeUse) -> str:
    """Return the free bytes and inodes of a volume, for people."""
    text = f"{from_bytes(use.available)} of {from_bytes(use.total)} free"
    return f"{text}, {use.inodes_free} of {use.inodes} inodes" if use.inodes else text
