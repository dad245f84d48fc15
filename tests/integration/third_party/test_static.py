"""Disks that others prepared, in a box with the real kubectl: a static pool, and local PersistentVolumes made by hand."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tonnage.host import loop, mount

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
MI = 1024**2
CLASS = "tonnage-disks"


@pytest.fixture(scope="module")
def disks() -> Iterator[Path]:
    """A folder for disks; whatever is mounted in it is taken away at the end."""
    made = Path(tempfile.mkdtemp(prefix="tonnage-disks-", dir="/var/tmp"))
    yield made
    for entry in reversed(list(mount.mounts())):
        if entry.target.startswith(f"{made}/"):
            mount.umount(entry.target, lazy=True)
    for index, path in loop.attached():
        if path.startswith(f"{made}/"):
            loop.detach(index)
    for root, folders, files in os.walk(made, topdown=False):
        for name in files:
            os.unlink(os.path.join(root, name))
        for name in folders:
            path = os.path.join(root, name)
            os.unlink(path) if os.path.islink(path) else os.rmdir(path)
    made.rmdir()


def _disk(path: Path, size: int) -> Path:
    path.mkdir(parents=True)
    mount.mount("disk", path, "tmpfs", [f"size={size}"])
    return path


def _device(image: Path, size: int) -> Path:
    image.touch()
    os.truncate(image, size)
    fd = os.open(image, os.O_RDWR)
    try:
        return Path(loop.device(loop.attach(fd, str(image), autoclear=False).index))
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Any], disks: Path) -> Any:
    """A node with the usual pool and one of two disks and a device."""
    node = disks / "pool" / "node-1"
    _disk(node / "small", 40 * MI)
    _disk(node / "big", 200 * MI)
    (node / "raw").symlink_to(_device(disks / "raw.img", 64 * MI))
    image = "image,name=scratch,sparse=yes,overcommit=yes"
    box = make_cluster("--nodes", "1", "--pool", image, "--pool", f"static:{disks}/pool,name=disks")
    box.up()
    return box


def _claim(name: str, size: str, storage_class: str = CLASS, **more: Any) -> dict[str, Any]:
    spec = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
        **more,
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def _pod(name: str, claim: str, command: str, *, block: bool = False) -> dict[str, Any]:
    use = (
        {"volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]}
        if block
        else {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    )
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", f"{command} && sleep 1000"], **use}
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _apply(box: Any, *objects: dict[str, Any]) -> None:
    box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def _run(box: Any, *objects: dict[str, Any]) -> None:
    _apply(box, *objects)
    pods = [o["metadata"]["name"] for o in objects if o["kind"] == "Pod"]
    box.kubectl("wait", "--for=condition=Ready", *(f"pod/{pod}" for pod in pods), "--timeout=300s")


def _holds(box: Any, path: Path, text: str) -> None:
    """Wait until the pod, which is only known to have begun, has written that."""
    box.until(f"{path} has its content", lambda: path.exists() and path.read_bytes().startswith(text.encode()))


def _by_disk(box: Any) -> dict[str, Any]:
    """PersistentVolumes published ahead, by disk."""
    found = {v["metadata"].get("annotations", {}).get("tonnage.dev/disk"): v for v in box.get("pv")["items"]}
    return {disk: volume for disk, volume in found.items() if disk}


def _phases(box: Any) -> dict[str, str]:
    return {disk: volume["status"]["phase"] for disk, volume in _by_disk(box).items()}


def _all_free(box: Any) -> None:
    expected = {"small": "Available", "big": "Available", "raw": "Available"}
    box.until("all disks are free", lambda: _phases(box) == expected)


def test_a_small_claim_gets_the_small_disk_which_is_cleaned_for_the_next(box: Any, disks: Path) -> None:
    _all_free(box)
    volumes = _by_disk(box)
    assert {disk: v["spec"]["capacity"]["storage"] for disk, v in volumes.items()} == {
        "small": "40Mi",
        "big": "200Mi",
        "raw": "64Mi",
    }
    assert {v["spec"]["volumeMode"] for disk, v in volumes.items() if disk != "raw"} == {"Filesystem"}
    assert volumes["raw"]["spec"]["volumeMode"] == "Block"
    _run(box, _claim("data", "10Mi"), _pod("app", "data", "df -m /data | tail -1; echo secret > /data/file"))
    assert box.get("pvc", "data")["spec"]["volumeName"] == volumes["small"]["metadata"]["name"]
    assert box.get("pvc", "data")["status"]["capacity"] == {"storage": "40Mi"}
    assert _phases(box) == {"small": "Bound", "big": "Available", "raw": "Available"}
    _holds(box, disks / "pool" / "node-1" / "small" / "file", "secret\n")
    box.until("the pod has said how large it is", lambda: " 40 " in box.kubectl("logs", "app"))

    box.kubectl("delete", "pod/app", "pvc/data", "--timeout=300s")
    _all_free(box)
    assert os.listdir(disks / "pool" / "node-1" / "small") == []
    assert _by_disk(box)["small"]["metadata"]["uid"] != volumes["small"]["metadata"]["uid"]


def test_a_device_is_handed_out_as_it_is(box: Any, disks: Path) -> None:
    _all_free(box)
    _run(
        box,
        _claim("raw", "1Mi", volumeMode="Block"),
        _pod("writer", "raw", "echo written | dd of=/dev/data bs=512 conv=sync,fsync", block=True),
    )
    assert _phases(box) == {"small": "Available", "big": "Available", "raw": "Bound"}
    _holds(box, disks / "raw.img", "written\n")
    box.kubectl("delete", "pod/writer", "pvc/raw", "--timeout=300s")
    _all_free(box)
    assert not any((disks / "raw.img").read_bytes()[:MI])


def test_a_pod_has_a_disk_and_a_part_of_one_and_both_end_with_it(box: Any, disks: Path) -> None:
    _all_free(box)
    pod = _pod("both", "none", "echo disk > /disk/file; echo part > /part/file")
    pod["spec"]["volumes"] = [
        {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": _claim("", "30Mi", storage_class)["spec"]}}}
        for name, storage_class in (("disk", CLASS), ("part", "tonnage-scratch"))
    ]
    pod["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "disk", "mountPath": "/disk"},
        {"name": "part", "mountPath": "/part"},
    ]
    _run(box, pod)
    small = disks / "pool" / "node-1" / "small"
    _holds(box, small / "file", "disk\n")
    box.down()
    box.up()
    box.kubectl("wait", "--for=condition=Ready", "pod/both", "--timeout=300s")
    _holds(box, small / "file", "disk\n")
    assert _phases(box) == {"small": "Bound", "big": "Available", "raw": "Available"}
    box.kubectl("delete", "pod/both", "--timeout=300s")
    _all_free(box)
    assert os.listdir(small) == []
    assert [v["metadata"]["name"] for v in box.get("pv")["items"] if "static" not in v["metadata"]["name"]] == []


def test_a_claim_waits_until_a_disk_fits(box: Any, disks: Path) -> None:
    _all_free(box)
    _apply(box, _claim("large", "250Mi"), _pod("waiting", "large", "true"))
    box.until("it says why", lambda: "whole disks" in box.kubectl("describe", "pod", "waiting"))
    assert "did not have enough free storage" in box.kubectl("describe", "pod", "waiting")
    assert box.get("pvc", "large")["status"]["phase"] == "Pending"
    _disk(disks / "pool" / "node-1" / "later", 300 * MI)
    # A disk is found at the next look, which the end of another volume brings about.
    _run(box, _claim("data", "10Mi"), _pod("app", "data", "echo x > /data/file"))
    box.kubectl("delete", "pod/app", "pvc/data", "--timeout=300s")
    box.kubectl("wait", "--for=condition=Ready", "pod/waiting", "--timeout=300s")
    assert _phases(box)["later"] == "Bound"
    box.kubectl("delete", "pod/waiting", "pvc/large", "--timeout=300s")
    box.until("it is free again", lambda: _phases(box).get("later") == "Available")


def test_a_disk_that_a_person_removes_from_the_list_comes_back(box: Any) -> None:
    box.until("the disk is free", lambda: _phases(box).get("small") == "Available")
    before = _by_disk(box)["small"]["metadata"]
    box.kubectl("delete", "pv", before["name"], "--timeout=300s")
    box.until("it is published anew", lambda: _phases(box).get("small") == "Available")
    assert _by_disk(box)["small"]["metadata"]["uid"] != before["uid"]


def _local(name: str, path: Path, size: str, *, mode: str = "Filesystem", policy: str = "Retain") -> dict[str, Any]:
    """A PersistentVolume as the local static provisioner makes it."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": policy,
        "storageClassName": "local-storage",
        "volumeMode": mode,
        "local": {"path": str(path)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def local_storage(box: Any) -> Iterator[None]:
    """The class that local volumes made by hand have."""
    _apply(
        box,
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "local-storage"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    yield
    box.kubectl("delete", "sc", "local-storage")


@pytest.mark.usefixtures("local_storage")
def test_local_volumes_of_an_existing_cluster(box: Any, disks: Path) -> None:
    small, large = _disk(disks / "ssd1", 20 * MI), _disk(disks / "ssd2", 80 * MI)
    _apply(box, _local("ssd1", small, "20Mi"), _local("ssd2", large, "80Mi", policy="Delete"))
    _run(
        box,
        _claim("mine", "10Mi", "local-storage"),
        _claim("other", "50Mi", "local-storage"),
        _pod("one", "mine", "echo one > /data/file"),
        _pod("two", "other", "echo two > /data/file"),
    )
    assert box.get("pvc", "mine")["spec"]["volumeName"] == "ssd1"
    assert box.get("pvc", "other")["spec"]["volumeName"] == "ssd2"
    _holds(box, small / "file", "one\n")
    _holds(box, large / "file", "two\n")
    box.kubectl("delete", "pod/one", "pod/two", "pvc/mine", "pvc/other", "--timeout=300s")

    def phases() -> dict[str, str]:
        return {name: box.get("pv", name)["status"]["phase"] for name in ("ssd1", "ssd2")}

    # Kubernetes itself deletes no local volume: that is the business of who made it.
    box.until("both are released", lambda: phases() == {"ssd1": "Released", "ssd2": "Failed"})
    assert "no deletable volume plugin matched" in box.get("pv", "ssd2")["status"]["message"]
    assert ((small / "file").read_text(), (large / "file").read_text()) == ("one\n", "two\n")
    box.kubectl("delete", "pv", "ssd1", "ssd2", "--timeout=300s")


@pytest.mark.usefixtures("local_storage")
def test_a_local_device_and_a_local_path_that_is_not_there(box: Any, disks: Path) -> None:
    node = _device(disks / "local.img", 16 * MI)
    _apply(box, _local("device", node, "16Mi", mode="Block"), _local("missing", disks / "nowhere", "30Mi"))
    _run(
        box,
        _claim("device", "1Mi", "local-storage", volumeMode="Block"),
        _pod("writer", "device", "echo written | dd of=/dev/data bs=512 conv=sync,fsync", block=True),
    )
    _holds(box, disks / "local.img", "written\n")
    _apply(box, _claim("missing", "30Mi", "local-storage"), _pod("stuck", "missing", "true"))
    box.until("it says why", lambda: "does not exist" in box.kubectl("describe", "pod", "stuck"))
    box.kubectl("delete", "pod/writer", "pod/stuck", "pvc/device", "pvc/missing", "--timeout=300s")
    box.kubectl("delete", "pv", "device", "missing", "--timeout=300s")


@pytest.mark.usefixtures("local_storage")
def test_without_a_local_volume_that_fits_nothing_is_made(box: Any) -> None:
    _apply(box, _claim("none", "10Mi", "local-storage"), _pod("waiting", "none", "true"))
    box.until("it says why", lambda: "persistent volumes to bind" in box.kubectl("describe", "pod", "waiting"))
    assert box.get("pvc", "none")["status"]["phase"] == "Pending"
    box.kubectl("delete", "pod/waiting", "pvc/none", "--timeout=300s")


def test_the_end_of_the_cluster_cleans_the_disks_and_leaves_them(box: Any, disks: Path) -> None:
    node = disks / "pool" / "node-1"
    _run(box, _claim("data", "10Mi"), _pod("app", "data", "echo secret > /data/file"))
    _holds(box, node / "small" / "file", "secret\n")
    box.down("--purge")
    assert os.listdir(node / "small") == []
    assert mount.is_mount(node / "small")
    assert sorted(os.listdir(node / ".tonnage")) == [".tonnage-pool"]
