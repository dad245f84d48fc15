"""Clocks for tests."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tonnage_box.testing.clock import ManualClock, VirtualPolicy, run_virtual

T = TypeVar("T")


async def test_a_manual_clock_moves_with_sleeps_and_with_the_test() -> None:
    clock = ManualClock(100.0)
    await clock.sleep(5)
    clock.now += 1
    assert (clock.time(), clock.monotonic()) == (106.0, 106.0)


def test_a_day_of_sleep_takes_no_time() -> None:
    async def day() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - began

    assert run_virtual(day()) >= 86_400  # else this test does not end


def _run(main: Callable[[], Coroutine[Any, Any, T]], slowness: random.Random | None) -> T:
    loop = VirtualPolicy(slowness).new_event_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("is_slow", [False, True])
def test_turns_of_a_slow_loop_take_a_while(*, is_slow: bool) -> None:
    async def turns() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    taken = _run(turns, random.Random(1) if is_slow else None)
    assert (0 < taken < 1) if is_slow else taken == 0


async def _order_of_sockets() -> tuple[int, ...]:
    """Ten sockets get their byte in the same turn: the order in which they are seen to be ready."""
    loop, seen, pairs = asyncio.get_running_loop(), list[int](), [socket.socketpair() for _ in range(10)]

    def read(number: int) -> None:
        pairs[number][0].recv(1)
        seen.append(number)

    for number, (here, there) in enumerate(pairs):
        loop.add_reader(here, read, number)
        there.send(b"x")
    while len(seen) < len(pairs):
        await asyncio.sleep(0)
    for pair in pairs:
        loop.remove_reader(pair[0])
        for end in pair:
            end.close()
    return tuple(seen)


@pytest.mark.parametrize("is_slow", [False, True])
def test_the_sockets_of_a_slow_loop_are_ready_in_any_order(*, is_slow: bool) -> None:
    found = {_run(_order_of_sockets, random.Random(seed) if is_slow else None) for seed in range(20)}
    assert (len(found) > 1) is is_slow
