"""Volumes of drivers with requiresRepublish."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.kubelet.machine import Eventually

from tonnage.kubernetes.api.kinds import CSI_DRIVERS, PODS, SECRETS

DRIVER = "csi.tonnage.dev"
CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def _record(machine: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the driver is asked to publish from now on."""
    await eventually(lambda: machine.kubelet.drivers.find(DRIVER))
    client = machine.kubelet.drivers.get(DRIVER).client
    real = client.publish
    asked: list[dict[str, Any]] = []

    async def publish(*arguments: Any, **more: Any) -> None:
        asked.append(dict(more["context"]))
        await real(*arguments, **more)

    monkeypatch.setattr(client, "publish", publish)
    return asked


async def test_is_published_again_and_again(
    machine: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.kubelet.workers.republish_every = 0.05
    await machine.client.patch(CSI_DRIVERS, DRIVER, {"spec": {"requiresRepublish": True}})
    await eventually(lambda: machine.kubelet._csi_drivers.cache.get(DRIVER).spec.requires_republish)
    asked = await _record(machine, eventually, monkeypatch)
    await machine.volume("a")
    inline = {"name": "scratch", "csi": {"driver": DRIVER, "volumeAttributes": {"size": "1Gi"}}}
    await machine.pod("p", volumes=[*CLAIM, inline, {"name": "e", "emptyDir": {}}])
    await machine.phase("p", "Running")
    await eventually(lambda: len(asked) >= 6)
    assert {context["csi.storage.k8s.io/pod.name"] for context in asked} == {"p"}
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
    count = len(asked)
    await machine.pod("q")
    await machine.phase("q", "Running")
    assert len(asked) == count


async def test_others_are_published_once(machine: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.kubelet.workers.republish_every = 0.0
    asked = await _record(machine, eventually, monkeypatch)
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    machine.kubelet.workers.controller.enqueue(machine.kubelet.workers.pods()[0].metadata.uid)
    await machine.pod("q")
    await machine.phase("q", "Running")
    assert len(asked) == 1


async def test_a_failure_is_told_and_the_pod_runs_on(
    machine: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.kubelet.workers.republish_every = 0.05
    await machine.client.patch(CSI_DRIVERS, DRIVER, {"spec": {"requiresRepublish": True}})
    await eventually(lambda: machine.kubelet._csi_drivers.cache.get(DRIVER).spec.requires_republish)
    await machine.client.create(SECRETS, {"metadata": {"name": "key"}, "stringData": {"a": "b"}}, "default")
    source = {"driver": DRIVER, "volumeAttributes": {"size": "1Gi"}, "nodePublishSecretRef": {"name": "key"}}
    await machine.pod("p", volumes=[{"name": "s", "csi": source}])
    await machine.phase("p", "Running")
    await machine.client.delete(SECRETS, "key", "default")
    event = await machine.event("FailedMount")
    assert event.message == 'MountVolume.SetUp failed for volume "s" : secret "default/key" not found'
    pod = await machine.client.get(PODS, "p", "default")
    assert (pod.status.phase, pod.status.container_statuses[0].restart_count) == ("Running", 0)
