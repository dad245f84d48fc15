"""Conditions of a claim's status, as growth, changes of attributes and the kubelet write them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Condition = dict[str, Any]


def without(conditions: Iterable[Condition], kinds: Iterable[str]) -> list[Condition]:
    """Return the conditions of other types."""
    left = frozenset(kinds)
    return [one for one in conditions if one.get("type") not in left]


def true(kind: str, message: str, now: str, *, reason: str = "", known: Iterable[Mapping[str, Any]] = ()) -> Condition:
    """Return a condition that holds from now on, or since it was written where one of the known ones says the same.

    now: RFC 3339. message, reason: "" for none.
    """
    wanted = {"type": kind, "status": "True"}
    wanted |= {key: text for key, text in (("reason", reason), ("message", message)) if text}
    for one in known:
        if {key: one.get(key) for key in ("type", "status", "reason", "message") if one.get(key)} == wanted:
            return dict(one)
    return {**wanted, "lastTransitionTime": now}
