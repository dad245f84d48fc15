from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Obj = dict[str, Any]
Faults = Callable[..., list[str]]


def named(**fields: Any) -> Obj:
    return {"metadata": {"name": "x", "namespace": "ns"}} | fields


NEW_EVENT = named(
    regarding={"kind": "Pod", "name": "p", "namespace": "ns"},
    eventTime="2026-01-01T00:00:00.000000Z",
    reportingController="a.b/c",
    reportingInstance="i",
    action="Act",
    reason="R",
    type="Normal",
)


@pytest.mark.parametrize(
    ("key", "good"),
    [
        pytest.param("events.k8s.io/events", NEW_EVENT, id="new event"),
    ],
)
def test_good_ones_pass(faults: Faults, key: str, good: Obj) -> None:
    assert faults(key, good) == []


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        pytest.param(
            "events.k8s.io/events",
            NEW_EVENT | {"reportingController": ""},
            "reportingController: Required value",
            id="nobody reports",
        ),
    ],
)
def test_wrong_ones_are_told_what_is_wrong(faults: Faults, key: str, wrong: Obj, said: str) -> None:
    assert said in faults(key, wrong)


def test_of_a_new_event_only_the_series_changes(faults: Faults) -> None:
    series = NEW_EVENT | {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}
    assert faults("events.k8s.io/events", series, NEW_EVENT) == []
    assert faults("events.k8s.io/events", NEW_EVENT | {"reason": "Other"}, NEW_EVENT) == [
        'reason: Invalid value: "Other": field is immutable'
    ]
