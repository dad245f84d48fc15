"""The garbage collector during a run."""

from __future__ import annotations

import gc

from tonnage_box.simulate.cluster import heap


def test_what_is_there_is_left_out_and_comes_back() -> None:
    before = gc.get_freeze_count()
    with heap.settled():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0
