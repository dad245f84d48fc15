"""A kubelet that is killed anywhere, and started again, ends up where it would have been."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.box.kubelet.machine import Eventually

from tonnage.kubernetes.api.kinds import PODS

INLINE = {"driver": "csi.tonnage.dev", "volumeAttributes": {"size": "1Gi"}}
VOLUMES = [
    {"name": "data", "persistentVolumeClaim": {"claimName": "a"}},
    {"name": "scratch", "csi": INLINE},
    {"name": "e", "emptyDir": {}},
]


async def _turns(count: int) -> None:
    """Let the loop go round that often."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(0, 80, 8))
async def test_killed_while_a_pod_starts(machine: Any, eventually: Eventually, turns: int) -> None:
    await eventually(lambda: machine.kubelet.drivers.names() != [])
    await machine.volume("a")
    await machine.pod("p", volumes=VOLUMES)
    await _turns(turns)
    await machine.restart()
    await machine.phase("p", "Running")
    assert len(await machine.pool.list()) == 2
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
    assert [volume.name for volume in await machine.pool.list()] == ["a"]


@pytest.mark.parametrize("turns", range(0, 80, 8))
async def test_killed_while_a_pod_ends(machine: Any, eventually: Eventually, turns: int) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=VOLUMES)
    await machine.phase("p", "Running")
    await machine.client.delete(PODS, "p", "default")
    await _turns(turns)
    await machine.restart()
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
    assert [volume.name for volume in await machine.pool.list()] == ["a"]
