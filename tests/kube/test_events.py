"""What becomes of an event."""

from __future__ import annotations

from tonnage.kube.events import Correlator


def test_an_object_has_25_events_at_once_and_then_one_every_five_minutes() -> None:
    correlator = Correlator()

    assert sum(correlator.allow("uid", 0.0) for _ in range(100)) == 25
    assert not correlator.allow("uid", 299.0)
    assert correlator.allow("uid", 301.0)
    assert not correlator.allow("uid", 302.0)
    assert correlator.allow("other", 302.0)


def test_many_similar_events_become_one() -> None:
    correlator = Correlator()

    told = [correlator.message("uid", "Failed", f"try {n}", 0.0) for n in range(12)]

    assert told[:10] == [f"try {n}" for n in range(10)]
    assert told[10].startswith("(combined from similar events): ")
    assert correlator.message("uid", "Failed", "again", 700.0) == "again"
