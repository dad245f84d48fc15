"""All checks over a view, and one thing broken at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.tools.ops.doctor.ward import Ward

from tonnage.tools.ops.doctor import capacity, claims, installation, registration, snapshots, storage_classes, volumes
from tonnage.tools.ops.doctor.finding import Finding, Level

CHECKS = (installation, registration, storage_classes, capacity, claims, volumes, snapshots)
Break = Callable[[Ward], object]
Broken = tuple[str, Break, Level, str, str]
"""Check, what breaks it, severity, a part of the text, a part of the next step."""


def findings(ward: Ward) -> list[Finding]:
    """The findings of all checks."""
    return [finding for check in CHECKS for finding in check.check(ward.view)]


def setting(name: str, value: Any) -> Break:
    """What sets a field of the view."""
    return lambda ward: setattr(ward.view, name, value)


def assert_found(ward: Ward, broken: Broken) -> None:
    """Break one thing: its check finds it first, with what to do."""
    check, break_it, level, text, todo = broken
    break_it(ward)
    bad = [f for f in findings(ward) if f.level is not Level.OK and f.check == check]

    assert [f.level for f in bad][:1] == [level], bad
    assert text in bad[0].text
    assert todo in bad[0].todo
    assert not [f for f in findings(ward) if f.level is Level.OK and f.check == check and f.about == bad[0].about]
