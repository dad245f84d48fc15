"""When inline volumes are due, and how many are filled at once."""

import asyncio

from tonnage.csi.inline.timer import DueTimes, FillLimits, FillRate
from tonnage_box.simulate.virtual_time import LoopClock, VirtualLoop


def test_a_key_is_due_once_at_its_last_time() -> None:
    due = DueTimes()
    due.set("a", 5.0)
    due.set("a", 3.0)
    due.set("b", 4.0)
    due.set("c", 1.0)
    due.set("c", None)
    assert due.next() == 3.0
    assert due.pop(10.0) == ["a", "b"]
    assert due.next() is None
    assert due.pop(10.0) == []


def test_two_hundred_fills_of_two_drivers_stay_below_the_limits() -> None:
    loop = VirtualLoop()
    clock = LoopClock()
    begun: list[float] = []
    running: dict[FillLimits, int] = {}
    most: dict[FillLimits, int] = {}

    async def one(limits: FillLimits) -> None:
        async with limits.hold():
            running[limits] = running.get(limits, 0) + 1
            most[limits] = max(most.get(limits, 0), running[limits])
            begun.append(clock.monotonic())
            await clock.sleep(2.0)
            running[limits] -= 1

    async def all_at_once() -> None:
        rate = FillRate(clock)
        drivers = FillLimits(rate), FillLimits(rate)
        await asyncio.gather(*(one(drivers[number % 2]) for number in range(200)))

    loop.run_until_complete(all_at_once())
    loop.close()
    assert list(most.values()) == [8, 8]
    assert all(sum(at <= other < at + 1 for other in begun) <= 20 for at in begun)


def test_a_few_fills_wait_for_nothing_nor_do_those_that_send_no_requests() -> None:
    loop = VirtualLoop()
    clock = LoopClock()
    begun: dict[str, list[float]] = {"rated": [], "free": []}

    async def main() -> None:
        for name, limits in (("rated", FillLimits(FillRate(clock))), ("free", FillLimits(None))):
            began = clock.monotonic()
            for _ in range(21):
                async with limits.hold():
                    begun[name].append(clock.monotonic() - began)

    loop.run_until_complete(main())
    loop.close()
    assert begun == {"rated": [0.0] * 20 + [1.0], "free": [0.0] * 21}


def test_a_driver_whose_source_hangs_delays_no_other() -> None:
    loop, clock, ended = VirtualLoop(), LoopClock(), []

    async def hangs(limits: FillLimits) -> None:
        async with limits.hold():
            await asyncio.Event().wait()

    async def main() -> None:
        rate = FillRate(clock)
        hanging, others = FillLimits(rate), FillLimits(rate)
        tasks = [asyncio.create_task(hangs(hanging)) for _ in range(50)]
        async with asyncio.timeout(5.0), others.hold():
            ended.append(clock.monotonic())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop.run_until_complete(main())
    loop.close()
    assert len(ended) == 1
