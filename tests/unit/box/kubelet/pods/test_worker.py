"""Pod workers: a pod from its start to its tear-down, also when the kubelet was away."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.box.kubelet.conftest import Eventually

from tonnage.api.kinds import PODS

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def test_a_pod_that_never_mounted_goes(machine: Any, eventually: Eventually) -> None:
    await machine.pod("p", volumes=[{"name": "c", "configMap": {"name": "missing"}}])
    event = await machine.event("FailedMount")
    assert event.message == 'MountVolume.SetUp failed for volume "c" : configmap "missing" not found'
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_a_forced_deletion_cleans_up_afterwards(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_a_pod_deleted_while_the_kubelet_is_away_is_taken_down(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    await machine.kill()
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.start()
    await eventually(lambda: machine.left() == [])


async def test_a_restart_keeps_pods_as_they_are(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    before = await machine.phase("p", "Running")
    await machine.restart()
    await eventually(lambda: machine.kubelet.drivers.names() != [])
    await asyncio.sleep(0.1)
    after = await machine.phase("p", "Running")
    assert after.metadata.resource_version == before.metadata.resource_version
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_what_is_left_out_is_said_once(machine: Any) -> None:
    await machine.pod("p", activeDeadlineSeconds=1000)
    await machine.phase("p", "Running")
    event = await machine.event("NotSupported")
    assert event.message == "not done by this kubelet: activeDeadlineSeconds"
