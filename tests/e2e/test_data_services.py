"""A running pod's volume on a real kubelet: it grows by itself, gets other attributes, and is restored in another pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e import pods
from tests.e2e.control_plane import release
from tests.e2e.machines import SYSTEM, Machines
from tests.e2e.processes import events, until

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
MIB = 1 << 20
XFS = {names.CSI_FSTYPE: "xfs"}
ATTRIBUTES = "volumeattributesclasses"
FLAG = "--snapshot-controller"


def storage_class(name: str, **parameters: str) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": names.DRIVER,
        "allowVolumeExpansion": True,
        "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
        "parameters": {**XFS, **parameters},
    }


def test_a_running_pods_volume_grows_by_itself(machines: Machines) -> None:
    rule = {names.AUTOGROW_AT: "40%", names.AUTOGROW_BY: "50%", names.AUTOGROW_MAX: "1Gi"}
    machines.plane.apply(storage_class("fills", **rule))
    with pods.removed(machines, "pod/fills", "pvc/fills", "storageclass/fills"):
        pods.claim(machines, "fills", "fills", "512Mi")
        machines.plane.apply(pods.pod("fills", "fills", command=pods.LOOP))
        pods.wait_ready(machines, "fills")
        before = _size(machines, "fills")
        machines.shell("fills", "dd if=/dev/zero of=/data/much bs=1M count=350 && sync")
        until(machines.plane, "the claim has grown", lambda: _capacity(machines, "fills") >= 768 * MIB)
        assert _size(machines, "fills") >= before + 240 * MIB
        assert "Autogrow" in [reason for reason, _ in events(machines.plane, "default", "fills")]
        pods.goes_on(machines, "fills")


def test_a_running_pods_volume_gets_other_attributes(machines: Machines) -> None:
    plane = machines.plane
    served = plane.send("GET", "/apis/storage.k8s.io/v1").body.get("resources", [])
    if ATTRIBUTES not in [resource["name"] for resource in served]:
        pytest.skip(f"Kubernetes {'.'.join(map(str, release()))} does not serve VolumeAttributesClass v1 (1.34 does)")
    plane.apply(storage_class("tuned"), _attributes("slow", iops="500"), _attributes("wrong", iops="many"))
    objects = ("pod/tuned", "pvc/tuned", "storageclass/tuned", f"{ATTRIBUTES}/slow", f"{ATTRIBUTES}/wrong")
    with pods.removed(machines, *objects):
        pods.claim(machines, "tuned", "tuned", "512Mi")
        plane.apply(pods.pod("tuned", "tuned", command=pods.LOOP))
        pods.wait_ready(machines, "tuned")
        _ask_for(machines, "tuned", "slow")
        until(plane, "it has the class", lambda: _status(machines, "tuned").get(_CURRENT) == "slow")
        assert not _status(machines, "tuned").get("modifyVolumeStatus")
        _ask_for(machines, "tuned", "wrong")
        until(plane, "the class is rejected", lambda: _change(machines, "tuned") == ("Infeasible", "wrong"))
        assert _status(machines, "tuned")[_CURRENT] == "slow"
        _ask_for(machines, "tuned", "slow")
        until(plane, "it has the class again", lambda: _change(machines, "tuned") == ("", ""))
        pods.goes_on(machines, "tuned")


def test_a_snapshot_is_restored_in_another_pod(machines: Machines, snapshots: None) -> None:
    plane = machines.plane
    plane.apply(storage_class("saved"))
    objects = ("pod/copy", "pvc/copy", "volumesnapshot/monday", "pod/saved", "pvc/saved", "storageclass/saved")
    with pods.removed(machines, *objects):
        pods.claim(machines, "saved", "saved", "512Mi")
        plane.apply(pods.pod("saved", "saved", command=pods.LOOP))
        node = pods.wait_ready(machines, "saved")
        machines.shell("saved", "echo then > /data/word && sync")
        plane.apply(_snapshot("monday", "saved"))
        until(plane, "the snapshot is ready", lambda: _is_usable(machines, "monday"))
        machines.shell("saved", "echo now > /data/word && sync")
        plane.apply(_restored("copy", "monday", "saved", "768Mi"))
        plane.apply(pods.pod("copy", "copy"))
        assert pods.wait_ready(machines, "copy") == node
        assert machines.shell("copy", "cat /data/word").split() == ["then"]
        assert _size(machines, "copy") >= _size(machines, "saved") + 240 * MIB
        lines = machines.shell("copy", "cat /data/log").splitlines()
        assert lines == [str(number) for number in range(1, len(lines) + 1)]
        assert pods.written(machines, "saved") > len(lines)
        pods.goes_on(machines, "saved")


@pytest.fixture
def snapshots(machines: Machines) -> Iterator[None]:
    """The kinds, a class, and the controller's snapshot role; without that role again afterwards."""
    plane, chosen = machines.plane, Installation(snapshot_controller=True, snapshot_class=True)
    plane.kubectl("apply", "--server-side", "-f", "-", stdin=manifests.template("snapshot-crds.yaml"))
    crds = [f"crd/{name}.snapshot.storage.k8s.io" for name in ("volumesnapshots", "volumesnapshotclasses")]
    plane.kubectl("wait", "--for=condition=Established", *crds, "crd/volumesnapshotcontents.snapshot.storage.k8s.io")
    for file in ("rbac-snapshots.yaml", "snapshotclass.yaml"):
        plane.kubectl("apply", "-f", "-", stdin=manifests.render_part(file, chosen))
    given = _arguments(machines)
    _controller(machines, [*given, FLAG])
    try:
        yield
    finally:
        _controller(machines, given)


def _arguments(machines: Machines) -> list[str]:
    found = machines.plane.get("-n", SYSTEM, "deployment", "tonnage-controller")
    return list(found["spec"]["template"]["spec"]["containers"][0]["args"])


def _controller(machines: Machines, arguments: list[str]) -> None:
    """Have the controllers run with these arguments."""
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments}]
    change = ("patch", "deployment", "tonnage-controller", "--type=json", "-p", json.dumps(patch))
    machines.plane.kubectl("-n", SYSTEM, *change)
    machines.plane.kubectl("-n", SYSTEM, "rollout", "status", "deployment", "tonnage-controller", "--timeout=300s")


def _snapshot(name: str, claim: str) -> dict[str, Any]:
    spec = {"volumeSnapshotClassName": names.SNAPSHOT_CLASS, "source": {"persistentVolumeClaimName": claim}}
    kind = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot"}
    return {**kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _restored(name: str, snapshot: str, of: str, size: str) -> dict[str, Any]:
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": of,
        "resources": {"requests": {"storage": size}},
        "dataSource": source,
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def _attributes(name: str, **parameters: str) -> dict[str, Any]:
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass"}
    return {**kind, "metadata": {"name": name}, "driverName": names.DRIVER, "parameters": parameters}


_CURRENT = "currentVolumeAttributesClassName"


def _ask_for(machines: Machines, claim: str, attributes: str) -> None:
    path = f"/api/v1/namespaces/default/persistentvolumeclaims/{claim}"
    answer = machines.plane.send("PATCH", path, {"spec": {"volumeAttributesClassName": attributes}})
    assert answer.status == 200, answer.message


def _change(machines: Machines, claim: str) -> tuple[str, str]:
    """State and class of a change of a claim's attributes, "" without one."""
    found = _status(machines, claim).get("modifyVolumeStatus") or {}
    return found.get("status", ""), found.get("targetVolumeAttributesClassName", "")


def _is_usable(machines: Machines, snapshot: str) -> bool:
    return bool(machines.plane.get("volumesnapshot", snapshot).get("status", {}).get("readyToUse"))


def _status(machines: Machines, claim: str) -> Any:
    return machines.plane.get("pvc", claim)["status"]


def _capacity(machines: Machines, claim: str) -> int:
    return to_bytes(_status(machines, claim)["capacity"]["storage"])


def _size(machines: Machines, pod: str) -> int:
    """Bytes of the pod's file system."""
    return int(machines.shell(pod, "df -k /data | tail -n 1").split()[1]) * 1024
