"""Pods on a node with the runtime that runs nothing: volumes, statuses and the way back."""

from __future__ import annotations

from typing import Any

from tests.unit.box.kubelet.machine import Eventually

from tonnage.kubernetes.api.kinds import PODS

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def test_a_pod_with_a_volume_runs_and_goes(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    pod = await machine.phase("p", "Running")

    target = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~csi/pv-a"
    assert (target / "mount").is_dir()
    assert (target / "vol_data.json").is_file()
    conditions = {c.type: c.status for c in pod.status.conditions}
    assert conditions == dict.fromkeys(
        ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"), "True"
    )

    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
