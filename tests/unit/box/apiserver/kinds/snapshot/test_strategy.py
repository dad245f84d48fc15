"""What clients may not set, when an object is made or updated."""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api.snapshot import AS_SOURCE, BOUND
from tonnage_box.apiserver.kinds.snapshot import strategy

Obj = dict[str, Any]


def test_snapshots_are_protected_from_the_start() -> None:
    new: Obj = {"metadata": {"finalizers": ["a.b/c"]}, "spec": {}, "status": {"readyToUse": True}}
    strategy.snapshot(new, None)
    strategy.snapshot(new, None)
    assert new == {"metadata": {"finalizers": ["a.b/c", AS_SOURCE, BOUND]}, "spec": {}}
    later: Obj = {"metadata": {}, "spec": {}, "status": {"readyToUse": True}}
    strategy.snapshot(later, new)
    assert later == {"metadata": {}, "spec": {}, "status": {"readyToUse": True}}
