"""Volumes of pods with a real driver behind its socket: order, places, messages, faults, restarts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.unit.box.kubelet.machine import Eventually

from tonnage.kubernetes.api.kinds import CSI_DRIVERS, PODS

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def test_an_inline_volume_lives_with_its_pod(machine: Any, eventually: Eventually) -> None:
    inline = {"driver": "csi.tonnage.dev", "volumeAttributes": {"size": "1Gi"}}
    await machine.pod("p", volumes=[{"name": "scratch", "csi": inline}])
    pod = await machine.phase("p", "Running")
    folder = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~csi/scratch"
    assert json.loads((folder / "vol_data.json").read_text())["volumeLifecycleMode"] == "Ephemeral"
    assert len(await machine.pool.list()) == 1
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
    assert await machine.pool.list() == []


async def test_an_inline_volume_needs_a_driver_for_that_mode(machine: Any) -> None:
    spec = {"attachRequired": False, "podInfoOnMount": False, "storageCapacity": False}
    await machine.client.create(CSI_DRIVERS, {"metadata": {"name": "other.example.org"}, "spec": spec})
    await asyncio.sleep(0.05)
    await machine.pod("p", volumes=[{"name": "s", "csi": {"driver": "other.example.org"}}])
    event = await machine.event("FailedMount")
    assert event.message == (
        'MountVolume.SetUp failed for volume "s" : volume mode "Ephemeral" not supported by driver other.example.org '
        '(only supports ["Persistent"])'
    )
    pod = await machine.phase("p", "Pending")
    assert pod.status.container_statuses[0].state.waiting == {"reason": "ContainerCreating"}


async def test_a_pv_of_another_node_is_not_mounted(machine: Any) -> None:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["elsewhere"]}]}
    await machine.volume("a", nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
    await machine.pod("p", volumes=CLAIM)
    event = await machine.event("FailedMount")
    assert "NodeAffinity check failed" in event.message
    assert "no matching NodeSelectorTerms" in event.message


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"nfs": {"server": "s", "path": "/"}}, "volumes of kind nfs are not supported"),
        ({"emptyDir": {"medium": "HugePages"}}, "medium 'HugePages' is not supported"),
        ({"hostPath": {"path": "/proc/self/nothing", "type": "Directory"}}, "hostPath type check failed"),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            "failed to fetch token: ",
        ),
    ],
)
async def test_what_is_not_offered_is_rejected_by_name(machine: Any, source: dict[str, Any], text: str) -> None:
    await machine.pod("p", volumes=[{"name": "v", **source}])
    assert text in (await machine.event("FailedMount")).message


async def test_stop_unmounts_and_keeps_empty_dirs(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=[*CLAIM, {"name": "e", "emptyDir": {}}])
    pod = await machine.phase("p", "Running")
    kept = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~empty-dir/e/file"
    kept.write_text("data")
    await machine.stop()
    assert [path for path in machine.left() if path.endswith(("vol_data.json", "mount"))] == []
    assert kept.read_text() == "data"
    await machine.start()
    again = await machine.phase("p", "Running")
    mount = machine.root / f"pods/{again.metadata.uid}/volumes/kubernetes.io~csi/pv-a/mount"
    await eventually(mount.is_dir)


async def test_a_driver_that_nobody_registered_is_named(machine: Any, eventually: Eventually) -> None:
    spec = {"attachRequired": False, "volumeLifecycleModes": ["Ephemeral"]}
    await machine.client.create(CSI_DRIVERS, {"metadata": {"name": "other.example.org"}, "spec": spec})
    await asyncio.sleep(0.05)
    await machine.pod("p", volumes=[{"name": "s", "csi": {"driver": "other.example.org"}}])
    await eventually(lambda: machine.kubelet.workers.find("default", "p") is not None)
    machine.kubelet.workers.find("default", "p").since -= 60
    machine.kubelet.workers.wake("driver other.example.org")
    event = await machine.event("FailedMount")
    assert event.message == (
        'MountVolume.SetUp failed for volume "s" : kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: '
        "driver name other.example.org not found in the list of registered CSI drivers"
    )


async def test_a_claim_twice_with_different_readonly_says_what_differs(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    twice = [*CLAIM, {"name": "again", "persistentVolumeClaim": {"claimName": "a", "readOnly": True}}]
    await machine.pod("p", volumes=twice, containers=[{"name": "c", "image": "i"}])
    event = await machine.event("FailedMount")
    ways = (("writable", True), ("read-only", False))  # volumes are mounted at once: either may be the first
    said = [f"already shows volume a, {shown}; requested a, readonly={wanted}" for shown, wanted in ways]
    assert event.message.endswith(tuple(said))
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
