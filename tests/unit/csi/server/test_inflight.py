"""Calls under way, and waiting for them."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.base.errors import BusyError
from tonnage.csi.server.inflight import InFlight


def test_a_second_call_for_a_volume_is_rejected() -> None:
    calls = InFlight()
    with (
        calls.hold("a", "CreateVolume"),
        pytest.raises(BusyError, match="CreateVolume is under way"),
        calls.hold("a", "x"),
    ):
        pass
    with calls.hold("a", "x"):
        pass


async def test_who_waits_for_the_calls_of_now_does_not_wait_for_later_ones() -> None:
    calls = InFlight()
    await calls.drained()
    with calls.hold("a", "CreateVolume"):
        waiting = asyncio.ensure_future(calls.drained())
        await asyncio.sleep(0)
        assert not waiting.done()
        later = calls.hold("b", "CreateVolume")
        later.__enter__()
    await waiting
    later.__exit__(None, None, None)
