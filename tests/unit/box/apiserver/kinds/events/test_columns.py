"""What kubectl get prints, kind by kind."""

from __future__ import annotations

from tests.unit.box.apiserver.kinds.printed import cells

from tonnage_box.apiserver.kinds.events import versions

EVENT = {
    "involvedObject": {"kind": "Pod", "name": "p"},
    "reason": "Withdrawn",
    "type": "Normal",
    "message": "no room\n",
    "firstTimestamp": "2026-01-01T00:00:00Z",
    "lastTimestamp": "2026-01-01T00:59:30Z",
    "count": 3,
    "source": {"component": "tonnage", "host": "n1"},
}


def test_events_look_alike_from_both_versions() -> None:
    assert cells("events.k8s.io/events", versions.outward(EVENT)) == cells("events", EVENT)
