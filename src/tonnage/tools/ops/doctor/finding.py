"""Finding of a check: severity, one sentence, and the next step."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Level(StrEnum):
    """Severity: OK; WARN, works but needs attention; FAIL, does not work as installed."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(msgspec.Struct, frozen=True):
    """Result of one check. about: the object. todo: the next step, "" if there is none."""

    check: str
    about: str
    level: Level
    text: str
    todo: str = ""


def ok(check: str, about: str, text: str) -> Finding:
    """As it should be."""
    return Finding(check, about, Level.OK, text)


def warn(check: str, about: str, text: str, todo: str) -> Finding:
    """Works, but needs attention."""
    return Finding(check, about, Level.WARN, text, todo)


def fail(check: str, about: str, text: str, todo: str) -> Finding:
    """Does not work as installed."""
    return Finding(check, about, Level.FAIL, text, todo)


def few(items: Iterable[str], most: int = 5) -> str:
    """Names for a sentence: all of them, or the first ones and the number of the rest."""
    found = list(items)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
