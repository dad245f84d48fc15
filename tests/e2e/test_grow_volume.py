"""Growth on a real kubelet: a running pod sees its larger volume, and the kubelet has nothing left to do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.e2e import pods
from tests.e2e.control_plane import changes
from tests.e2e.machines import Machines
from tests.e2e.processes import events, until

from tonnage.kubernetes.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "grows-on-kubelet"},
    "provisioner": names.DRIVER,
    "allowVolumeExpansion": True,
    "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
    "parameters": {names.CSI_FSTYPE: "xfs"},
}
MIB = 1 << 20


def test_a_running_pod_sees_its_larger_volume(machines: Machines) -> None:
    plane = machines.plane
    plane.apply(CLASS)
    with pods.removed(machines, "pod/grows", "pvc/grows", "storageclass/grows-on-kubelet"):
        pods.claim(machines, "grows", "grows-on-kubelet", "512Mi")
        plane.apply(pods.pod("grows", "grows", command=pods.LOOP))
        pods.wait_ready(machines, "grows")
        before = _size(machines)
        body = {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}
        path = "/api/v1/namespaces/default/persistentvolumeclaims/grows"
        assert plane.send("PATCH", path, body).status == 200
        until(plane, "the claim has grown", lambda: _status(machines)["capacity"]["storage"] == "1Gi")
        assert _size(machines) >= before + 500 * MIB
        status = _status(machines)
        assert not changes({"status": status}), status
        assert not status.get("allocatedResourceStatuses"), status
        pods.goes_on(machines, "grows")
        reasons = [reason for reason, _ in events(plane, "default", "grows")]
        assert "VolumeResizeSuccessful" in reasons
        assert not {"FileSystemResizeSuccessful", "FileSystemResizeFailed", "VolumeResizeFailed"} & set(reasons)


def _status(machines: Machines) -> Any:
    return machines.plane.get("pvc", "grows")["status"]


def _size(machines: Machines) -> int:
    """Bytes of the pod's file system."""
    return int(machines.shell("grows", "df -k /data | tail -n 1").split()[1]) * 1024
