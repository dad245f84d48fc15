"""Event conversion: stored as core/v1, also served as events.k8s.io/v1."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

# What core/v1 calls an Event's fields, and what events.k8s.io/v1 calls them.
_WORDS = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_BACK = {new: core for core, new in _WORDS.items()}


def inward(obj: Obj) -> Obj:
    """An events.k8s.io Event as the core one that is stored."""
    return {_BACK.get(k, k): v for k, v in obj.items()} | {"apiVersion": "v1", "kind": "Event"}


def outward(obj: Obj) -> Obj:
    """A stored Event as events.k8s.io shows it."""
    return {_WORDS.get(k, k): v for k, v in obj.items()} | {"apiVersion": "events.k8s.io/v1", "kind": "Event"}
