"""CSI volumes: staged, published and taken away in order, also after a kill and a power cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.box.kubelet.machine import Eventually

from tonnage.kubernetes.api.kinds import PODS, VOLUMES

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def test_vol_data_names_the_volume(machine: Any) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    pod = await machine.phase("p", "Running")
    published = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~csi/pv-a"
    data = json.loads((published / "vol_data.json").read_text())
    assert data["driverName"] == "csi.tonnage.dev"
    assert data["specVolID"] == "pv-a"
    assert data["volumeLifecycleMode"] == "Persistent"
    (staged,) = (machine.root / "plugins/kubernetes.io/csi/csi.tonnage.dev").iterdir()
    assert (staged / "globalmount").is_dir()
    assert json.loads((staged / "vol_data.json").read_text()) == data


async def test_two_pods_share_a_volume_and_the_last_one_unstages(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.pod("q", volumes=CLAIM)
    await machine.phase("p", "Running")
    await machine.phase("q", "Running")
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    assert any(path.endswith("globalmount") for path in machine.left())
    await machine.client.delete(PODS, "q", "default")
    await machine.gone("q")
    await eventually(lambda: machine.left() == [])


@pytest.mark.parametrize("is_block", [False, True])
async def test_a_volume_for_one_pod_waits_until_the_other_has_gone(machine: Any, is_block: bool) -> None:
    """ReadWriteOncePod, and pods that no scheduler has looked at."""
    await machine.volume("a", block=is_block, accessModes=["ReadWriteOncePod"])
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    machine.kubelet.workers.patience = 0.0
    await machine.pod("q", volumes=CLAIM)
    event = await machine.event("FailedMount")
    assert event.message.endswith(
        'failed for volume "pv-a" : volume uses the ReadWriteOncePod access mode and is already in use by another pod'
    )
    assert event.involved_object.name == "q"
    await machine.client.delete(PODS, "p", "default")
    await machine.phase("q", "Running")


async def test_the_drivers_rejection_is_told_and_leaves_nothing(machine: Any) -> None:
    await machine.volume("a")
    await machine.client.delete(VOLUMES, "pv-a")
    made = await machine.client.get(VOLUMES, "pv-a")
    assert made.metadata.deleting
    for volume in await machine.pool.list():
        await machine.pool.delete(volume.name)
    await machine.pod("p", volumes=CLAIM)
    event = await machine.event("FailedMount")
    assert event.message.startswith(
        'MountVolume.MountDevice failed for volume "pv-a" : rpc error: code = NotFound desc = '
    )
    assert [path for path in machine.left() if path.endswith("vol_data.json")] == []


async def test_what_was_staged_for_nobody_is_unstaged_at_the_start(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    pod = await machine.phase("p", "Running")
    await machine.kill()
    # As if killed between the pod's unpublish and the unstage.
    folder = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~csi/pv-a"
    (folder / "mount").rmdir()
    (folder / "vol_data.json").unlink()
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.start()
    await eventually(lambda: machine.left() == [])


async def test_a_block_volume_is_mapped_and_unmapped(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a", block=True)
    container = {
        "name": "c",
        "image": "i",
        "command": ["x"],
        "volumeDevices": [{"name": "data", "devicePath": "/dev/x"}],
    }
    await machine.pod("p", volumes=CLAIM, containers=[container])
    pod = await machine.phase("p", "Running")
    uid = pod.metadata.uid
    base = machine.root / "plugins/kubernetes.io/csi/volumeDevices"
    link = machine.root / f"pods/{uid}/volumeDevices/kubernetes.io~csi/pv-a"
    assert link.readlink() == base / "publish/pv-a" / uid
    assert (base / "pv-a/data/vol_data.json").is_file()
    assert (base / "staging/pv-a").exists()
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
    assert not (base / "staging/pv-a").exists()
    assert not (base / "publish/pv-a").exists()


async def test_what_cannot_be_unstaged_at_the_start_is_tried_again(machine: Any, eventually: Eventually) -> None:
    for name in ("a", "b"):
        await machine.volume(name)
        claim = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
        await machine.pod(f"p{name}", volumes=claim)
    pods = [await machine.phase(f"p{name}", "Running") for name in ("a", "b")]
    await machine.kill()
    for pod, name in zip(pods, ("a", "b"), strict=True):
        folder = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~csi/pv-{name}"
        (folder / "mount").rmdir()
        (folder / "vol_data.json").unlink()
        await machine.client.delete(PODS, pod.metadata.name, "default", grace_seconds=0)
    with machine.endpoint.driver.in_flight.hold("a", "DeleteVolume"):
        await machine.start()
        await eventually(lambda: len([path for path in machine.left() if path.endswith("vol_data.json")]) == 1)
    await eventually(lambda: machine.left() == [])


async def test_a_power_cut_may_empty_the_files_of_volumes(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.volume("b")
    await machine.pod("p", volumes=CLAIM)
    await machine.pod("gone", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "b"}}])
    for name in ("p", "gone"):
        await machine.phase(name, "Running")
    await machine.kill()
    for file in machine.root.rglob("vol_data.json"):
        file.write_bytes(b"")
    await machine.client.delete(PODS, "gone", "default", grace_seconds=0)
    await machine.start()
    await eventually(lambda: len(list(machine.root.glob("pods/*"))) == 1)
    await machine.pod("q", volumes=CLAIM)
    await machine.phase("q", "Running")
    for name in ("p", "q"):
        await machine.client.delete(PODS, name, "default")
        await machine.gone(name)
    await eventually(lambda: machine.left() == [])


async def test_stop_does_not_end_inline_volumes(machine: Any, eventually: Eventually) -> None:
    volume = {"name": "v", "csi": {"driver": "csi.tonnage.dev", "volumeAttributes": {"size": "1Mi"}}}
    await machine.pod("p", volumes=[volume])
    pod = await machine.phase("p", "Running")
    made = (await machine.endpoint.driver.first_pool.list())[0]
    file = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~csi/v/mount/file"
    file.write_text("kept")
    await machine.stop()
    await machine.start()
    await eventually(file.exists)
    assert file.read_text() == "kept"
    assert (await machine.endpoint.driver.first_pool.list())[0] == made
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
    assert list(await machine.endpoint.driver.first_pool.list()) == []
