"""Data services in the box by kubectl, as the README shows them: a pod's volume grows, is snapshotted and restored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.clusters import Cluster

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = pytest.mark.real
MI = 1 << 20
SNAPSHOT = "snapshot.storage.k8s.io/v1"


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """One node; xfs volumes, which grow while they are mounted without any capability."""
    cluster = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=4Gi,sparse=yes")
    cluster.up()
    apply(cluster, storage_class("xfs"))
    rule = {names.AUTOGROW_AT: "30%", names.AUTOGROW_BY: "100%", names.AUTOGROW_MAX: "900Mi"}
    apply(cluster, storage_class("grows", **rule))
    yield cluster
    cluster.down("--purge")


def storage_class(name: str, **parameters: str) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": names.DRIVER,
        "allowVolumeExpansion": True,
        "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
        "parameters": {names.CSI_FSTYPE: "xfs", **parameters},
    }


def claim(name: str, size: str = "320Mi", storage_class: str = "xfs", **spec: Any) -> dict[str, Any]:
    wanted = {"storageClassName": storage_class, "resources": {"requests": {"storage": size}}, **spec}
    spec = {"accessModes": ["ReadWriteOnce"], **wanted}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def pod(name: str) -> dict[str, Any]:
    """A pod that waits for ever, with the claim of its name at /data."""
    mounts = [{"name": "data", "mountPath": "/data"}]
    main = {"name": "main", "image": "x", "command": ["sleep", "infinity"], "volumeMounts": mounts}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    spec = {"terminationGracePeriodSeconds": 0, "containers": [main], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def snapshot(name: str, of: str) -> dict[str, Any]:
    spec = {"source": {"persistentVolumeClaimName": of}}
    return {"apiVersion": SNAPSHOT, "kind": "VolumeSnapshot", "metadata": {"name": name}, "spec": spec}


def apply(box: Cluster, *objects: dict[str, Any]) -> None:
    box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


def run(box: Cluster, *objects: dict[str, Any]) -> None:
    """Apply, and wait until the pods run."""
    apply(box, *objects)
    for one in objects:
        if one["kind"] == "Pod":
            box.kubectl("wait", "--for=condition=Ready", f"pod/{one['metadata']['name']}", "--timeout=120s")


def sh(box: Cluster, pod: str, command: str) -> str:
    return box.kubectl("exec", pod, "--", "sh", "-c", command).strip()


def size_in(box: Cluster, pod: str) -> int:
    """Bytes of the pod's file system."""
    blocks, size = sh(box, pod, "stat -f -c '%b %S' /data").split()
    return int(blocks) * int(size)


def has(box: Cluster, name: str, size: str) -> bool:
    found = box.get("pvc", name)
    volume = box.get("pv", found["spec"]["volumeName"])
    sizes = {to_bytes(found["status"]["capacity"]["storage"]), to_bytes(volume["spec"]["capacity"]["storage"])}
    return sizes == {to_bytes(size)} and not found["status"].get("conditions")


def test_a_running_pods_volume_grows(box: Cluster) -> None:
    run(box, claim("app"), pod("app"))
    before = size_in(box, "app")
    sh(box, "app", "echo kept > /data/file")
    box.kubectl("patch", "pvc", "app", "-p", '{"spec": {"resources": {"requests": {"storage": "640Mi"}}}}')
    box.until("the claim has grown", lambda: has(box, "app", "640Mi"))
    assert size_in(box, "app") >= before + 300 * MI
    assert sh(box, "app", "cat /data/file") == "kept"


def test_a_claim_that_a_person_bound_to_a_volume_grows(box: Cluster) -> None:
    """No scheduler chose its node, and no agent made its PersistentVolume."""
    run(box, claim("first"), pod("first"))
    made = box.get("pv", box.get("pvc", "first")["spec"]["volumeName"])
    name = made["metadata"]["name"]
    sh(box, "first", "echo kept > /data/file && sync")
    box.kubectl("patch", "pv", name, "-p", '{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}')
    box.kubectl("delete", "pod/first", "pvc/first", f"pv/{name}", "--timeout=60s")
    spec = {key: value for key, value in made["spec"].items() if key != "claimRef"}
    spec |= {"persistentVolumeReclaimPolicy": "Delete"}
    apply(box, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "by-hand"}, "spec": spec})
    run(box, claim("again", volumeName="by-hand"), pod("again"))
    assert sh(box, "again", "cat /data/file") == "kept"
    before = size_in(box, "again")
    box.kubectl("patch", "pvc", "again", "-p", '{"spec": {"resources": {"requests": {"storage": "640Mi"}}}}')
    box.until("the claim has grown", lambda: has(box, "again", "640Mi"))
    assert size_in(box, "again") >= before + 300 * MI


def test_a_volume_grows_by_itself(box: Cluster) -> None:
    writer = pod("own")
    script = "for part in 1 2 3 4 5; do head -c 50M /dev/zero >> /data/file; sleep 1; done; sleep infinity"
    writer["spec"]["containers"][0]["command"] = ["sh", "-c", script]
    run(box, claim("own", storage_class="grows"), writer)
    box.until("the claim has grown", lambda: has(box, "own", "640Mi"))
    assert size_in(box, "own") >= 600 * MI


def test_a_snapshot_is_restored_larger_into_another_pod(box: Cluster) -> None:
    run(box, claim("source"), pod("source"))
    sh(box, "source", "echo before > /data/file && sync")
    apply(box, snapshot("monday", "source"))
    box.kubectl("wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/monday", "--timeout=120s")
    sh(box, "source", "echo after > /data/file && sync")
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"}
    run(box, claim("restored", "640Mi", dataSource=source), pod("restored"))
    assert sh(box, "restored", "cat /data/file") == "before"
    assert sh(box, "source", "cat /data/file") == "after"
    assert size_in(box, "restored") >= size_in(box, "source") + 300 * MI
    shown = box.kubectl("get", "volumesnapshot", "monday").split()
    assert shown[:4] == ["NAME", "READYTOUSE", "SOURCEPVC", "SOURCESNAPSHOTCONTENT"]

    box.kubectl("delete", "volumesnapshot", "monday", "--timeout=60s")
    assert box.get("volumesnapshotcontents")["items"] == []
    assert sh(box, "restored", "cat /data/file") == "before", "a restored volume outlives its snapshot"


def test_a_clone_has_what_its_source_has(box: Cluster) -> None:
    run(box, claim("first"), pod("first"))
    sh(box, "first", "echo copied > /data/file && sync")
    run(box, claim("second", dataSource={"kind": "PersistentVolumeClaim", "name": "first"}), pod("second"))
    assert sh(box, "second", "cat /data/file") == "copied"
