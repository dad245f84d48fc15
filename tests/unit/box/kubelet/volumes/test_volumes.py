"""Volumes of pods with a real driver behind its socket: order, places, messages, faults, restarts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tonnage.api.kinds import CLAIMS, CONFIG_MAPS, CSI_DRIVERS, PODS, VOLUMES

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


async def test_two_pods_share_a_volume_and_the_last_one_unstages(machine: Any, eventually: Any) -> None:
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


async def test_an_inline_volume_lives_with_its_pod(machine: Any, eventually: Any) -> None:
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


async def test_a_claim_that_is_bound_later_wakes_its_pod(machine: Any) -> None:
    await machine.volume("a")
    await machine.client.patch(CLAIMS, "a", {"status": {"phase": "Pending"}}, "default", subresource="status")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Pending")
    await machine.bind("a")
    async with asyncio.timeout(60):
        await machine.phase("p", "Running")


async def test_a_claim_of_somebody_else_is_not_used(machine: Any) -> None:
    await machine.volume("p-data")
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    await machine.pod("p", volumes=[{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}])
    event = await machine.event("FailedMount")
    assert event.message == (
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process "
        "volumes=[data]: error processing PVC default/p-data: PVC default/p-data was not created for pod default/p "
        "(pod is not owner)"
    )


async def test_a_pv_of_another_node_is_not_mounted(machine: Any) -> None:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["elsewhere"]}]}
    await machine.volume("a", nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
    await machine.pod("p", volumes=CLAIM)
    event = await machine.event("FailedMount")
    assert "NodeAffinity check failed" in event.message
    assert "no matching NodeSelectorTerms" in event.message


async def test_the_drivers_refusal_is_told_and_leaves_nothing(machine: Any) -> None:
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


async def test_a_pod_that_never_mounted_goes(machine: Any, eventually: Any) -> None:
    await machine.pod("p", volumes=[{"name": "c", "configMap": {"name": "missing"}}])
    event = await machine.event("FailedMount")
    assert event.message == 'MountVolume.SetUp failed for volume "c" : configmap "missing" not found'
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_a_config_map_that_comes_later_is_found(machine: Any) -> None:
    await machine.pod("p", volumes=[{"name": "c", "configMap": {"name": "cm"}}])
    await machine.event("FailedMount")
    await machine.client.create(CONFIG_MAPS, {"metadata": {"name": "cm"}, "data": {"k": "v"}}, "default")
    pod = await machine.phase("p", "Running")
    folder = machine.root / f"pods/{pod.metadata.uid}/volumes/kubernetes.io~configmap/c"
    assert (folder / "k").read_text() == "v"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"nfs": {"server": "s", "path": "/"}}, "volumes of kind nfs are not supported"),
        ({"emptyDir": {"medium": "HugePages"}}, "medium 'HugePages' is not supported"),
        ({"hostPath": {"path": "/proc/self/nothing", "type": "Directory"}}, "hostPath type check failed"),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            "projected volume source serviceAccountToken is not supported",
        ),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(machine: Any, source: dict[str, Any], text: str) -> None:
    await machine.pod("p", volumes=[{"name": "v", **source}])
    assert text in (await machine.event("FailedMount")).message


async def test_a_forced_deletion_cleans_up_afterwards(machine: Any, eventually: Any) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_a_pod_deleted_while_the_kubelet_is_away_is_taken_down(machine: Any, eventually: Any) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    await machine.kill()
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.start()
    await eventually(lambda: machine.left() == [])


async def test_a_restart_keeps_pods_as_they_are(machine: Any, eventually: Any) -> None:
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


async def test_what_was_staged_for_nobody_is_unstaged_at_the_start(machine: Any, eventually: Any) -> None:
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


async def test_a_pod_with_a_finalizer_does_not_say_running_after_its_end(machine: Any) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    await machine.client.patch(PODS, "p", {"metadata": {"finalizers": ["example.org/keep"]}}, "default")
    await machine.client.delete(PODS, "p", "default")
    await machine.until("p", lambda p: p.terminated)
    await machine.client.patch(PODS, "p", {"metadata": {"finalizers": []}}, "default")
    await machine.gone("p")


async def test_stop_unmounts_and_keeps_empty_dirs(machine: Any, eventually: Any) -> None:
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


async def test_a_block_volume_is_mapped_and_unmapped(machine: Any, eventually: Any) -> None:
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


async def test_a_block_volume_is_no_place_for_files(machine: Any) -> None:
    await machine.volume("a", block=True)
    container = {"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}
    await machine.pod("p", volumes=CLAIM, containers=[container])
    event = await machine.event("FailedMount")
    assert "volume data has volumeMode Block, but is specified in volumeMounts" in event.message


async def test_what_is_left_out_is_said_once(machine: Any) -> None:
    container = {"name": "c", "image": "i", "command": ["x"], "readinessProbe": {"exec": {"command": ["true"]}}}
    await machine.pod("p", containers=[container], activeDeadlineSeconds=1000)
    await machine.phase("p", "Running")
    event = await machine.event("NotSupported")
    assert event.message == "not done by this kubelet: readinessProbe of container c; activeDeadlineSeconds"


async def test_a_driver_that_nobody_registered_is_named(machine: Any, eventually: Any) -> None:
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


async def test_a_claim_twice_with_different_readonly_says_what_differs(machine: Any, eventually: Any) -> None:
    await machine.volume("a")
    twice = [*CLAIM, {"name": "again", "persistentVolumeClaim": {"claimName": "a", "readOnly": True}}]
    await machine.pod("p", volumes=twice, containers=[{"name": "c", "image": "i"}])
    event = await machine.event("FailedMount")
    assert "readonly=True" in event.message
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_what_cannot_be_unstaged_at_the_start_is_tried_again(machine: Any, eventually: Any) -> None:
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


async def test_a_power_cut_may_empty_the_files_of_volumes(machine: Any, eventually: Any) -> None:
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


async def test_stop_does_not_end_inline_volumes(machine: Any, eventually: Any) -> None:
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
