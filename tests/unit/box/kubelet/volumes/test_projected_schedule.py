"""Projected volumes are written again when they are due or changed, and not once their pod is gone."""

from __future__ import annotations

import asyncio

import pytest

from tonnage.base.errors import NotFoundError
from tonnage.kubernetes.api.meta import ObjectMeta
from tonnage.kubernetes.api.pods import Pod, Volume
from tonnage_box.kubelet.volumes.projected_schedule import ProjectedSchedule, token_wait
from tonnage_box.testing.clock import ManualClock

POD = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u"))
VOLUME = Volume(name="v")


@pytest.mark.parametrize(("life", "due"), [(600, 480), (3607, 2885.6), (10**6, 86400)])
async def test_at_80_percent_of_its_life_or_after_a_day(life: float, due: float) -> None:
    clock, written = ManualClock(), []

    async def rewrite(pod: Pod, volume: Volume) -> None:
        written.append(volume.name)
        schedule.put(pod, volume, token_wait(life))

    schedule = ProjectedSchedule(clock, rewrite)
    assert await schedule.step() is None
    schedule.put(POD, VOLUME, token_wait(life))
    assert await schedule.step() == pytest.approx(due)
    clock.now += due - 1
    assert await schedule.step() == pytest.approx(1)
    assert written == []
    clock.now += 1
    assert await schedule.step() == pytest.approx(due)
    assert written == ["v"]


async def test_a_failure_is_repeated_in_a_minute() -> None:
    clock = ManualClock()

    async def rewrite(pod: Pod, volume: Volume) -> None:
        raise NotFoundError("failed to fetch token")

    schedule = ProjectedSchedule(clock, rewrite)
    schedule.put(POD, VOLUME, 600)
    clock.now += 600
    assert await schedule.step() == pytest.approx(60)


async def test_a_change_while_a_volume_is_written_has_it_written_again() -> None:
    clock, written = ManualClock(), []

    async def rewrite(pod: Pod, volume: Volume) -> None:
        written.append(volume.name)
        if len(written) == 1:
            schedule.hasten(lambda pod, volume: True)
        schedule.put(pod, volume, 600)

    schedule = ProjectedSchedule(clock, rewrite)
    schedule.put(POD, VOLUME, 600)
    schedule.hasten(lambda pod, volume: volume.name == "other")
    assert await schedule.step() == pytest.approx(600)
    schedule.hasten(lambda pod, volume: pod.metadata.uid == "u")
    assert await schedule.step() == 0
    assert await schedule.step() == pytest.approx(600)
    assert written == ["v", "v"]


async def test_a_change_while_a_volume_cannot_be_written_has_it_written_again() -> None:
    """As a trust bundle that is deleted and made again."""
    clock, tries = ManualClock(), []

    async def rewrite(pod: Pod, volume: Volume) -> None:
        tries.append(volume.name)
        if len(tries) == 1:
            schedule.hasten(lambda pod, volume: True)
            raise NotFoundError("clustertrustbundle not found")
        schedule.put(pod, volume, 600)

    schedule = ProjectedSchedule(clock, rewrite)
    schedule.put(POD, VOLUME, 0)
    assert await schedule.step() == 0
    assert await schedule.step() == pytest.approx(600)


async def test_forget_waits_for_a_write_that_is_under_way() -> None:
    clock, begun, go, done = ManualClock(), asyncio.Event(), asyncio.Event(), []

    async def rewrite(pod: Pod, volume: Volume) -> None:
        begun.set()
        await go.wait()
        done.append(volume.name)
        schedule.put(pod, volume, 600)

    schedule = ProjectedSchedule(clock, rewrite)
    schedule.put(POD, VOLUME, 600)
    clock.now += 600
    step = asyncio.ensure_future(schedule.step())
    await begun.wait()
    forgetting = asyncio.ensure_future(schedule.forget("u"))
    await asyncio.sleep(0)
    assert not forgetting.done()
    go.set()
    await forgetting
    assert done == ["v"]
    await step
    assert await schedule.step() is None
    await schedule.forget("u")
