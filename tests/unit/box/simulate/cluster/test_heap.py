"""The garbage collector during a run."""

from __future__ import annotations

import gc

import pytest

from tonnage_box.simulate.cluster import heap


@pytest.mark.parametrize("enabled", [True, False])
def test_no_collection_while_objects_are_made(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with heap.growing():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_what_is_there_is_left_out_and_comes_back() -> None:
    before = gc.get_freeze_count()
    with heap.settled():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0
