"""Pauses of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from tonnage.base import collector


def fail() -> None:
    with collector.paused():
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError("in the block")


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_paused_in_the_block_and_afterwards_as_before(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="in the block"):
            fail()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
