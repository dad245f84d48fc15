"""A status is written by its owner, later."""

from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.shared.strategy import without_status


def test_a_new_object_has_an_empty_status_and_an_old_one_its_own() -> None:
    new: dict[str, Any] = {"status": {"used": 1}}
    without_status(new, None)
    assert new == {"status": {}}
    later: dict[str, Any] = {"status": {"used": 1}}
    without_status(later, new)
    assert later == {"status": {"used": 1}}
