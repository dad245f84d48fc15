"""Use of volumes: drivers are asked once a minute, and one that fails does not keep the others."""

from __future__ import annotations

from typing import Any

import pytest

from tonnage.kubernetes.api.kinds import PODS
from tonnage_box.kubelet.containers.runtime import Mounted
from tonnage_box.kubelet.stats.volume_stats import FRESH, VolumeStats

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def test_drivers_are_asked_once_a_minute(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await machine.volume("a", 1 << 30)
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    kubelet, clock = machine.kubelet, [0.0]
    client = kubelet.drivers.get("csi.tonnage.dev").client
    asked: list[str] = []
    real = client.volume_use

    async def counted(volume_id: str, path: str) -> Any:
        asked.append(volume_id)
        return await real(volume_id, path)

    monkeypatch.setattr(client, "volume_use", counted)
    stats = VolumeStats(kubelet.paths, kubelet.drivers, kubelet.volumes.mounted, monotonic=lambda: clock[0])
    for moment in (0.0, FRESH - 1, FRESH):
        clock[0] = moment
        (use,) = await stats.of(kubelet.workers.pods())
        assert use.claim == "a"
    assert len(asked) == 2
    assert await stats.of([]) == []


async def test_a_volume_that_fails_is_left_out(machine: Any) -> None:
    await machine.volume("a", 1 << 30)
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    kubelet = machine.kubelet
    (place,) = kubelet.volumes.mounted(kubelet.workers.pods()[0].metadata.uid).values()
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await machine.pod("q", volumes=CLAIM)
    await machine.phase("q", "Running")
    (real,) = kubelet.volumes.mounted(kubelet.workers.pods()[0].metadata.uid).values()
    volumes = {"gone": place, "nowhere": Mounted("/nowhere/mount"), "data": real}
    stats = VolumeStats(kubelet.paths, kubelet.drivers, lambda _uid: volumes)
    assert [use.name for use in await stats.of(kubelet.workers.pods())] == ["data"]
