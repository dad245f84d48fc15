"""`tonnage controller --attach-endpoint` on a real control plane, with nothing but its own account's token.

Kubernetes' own attach/detach controller makes the VolumeAttachments. The nodes have no kubelets: what these would report is
written by the test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replicas import Replicas

from tonnage.kubernetes.api import names
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation
from tonnage_box.testing.network_driver import NETWORK_DRIVER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
NODES = ("attach-1", "attach-2")
VOLUME = "attach-v"


class Storage:
    """The driver's process."""

    def __init__(self, folder: Path) -> None:
        self.state, self.socket = folder / "state", folder / "csi.sock"
        self.state.mkdir()
        found = {VOLUME: {"size": 1 << 30, "nodes": {}}}
        (self.state / "volumes.json").write_text(json.dumps(found))
        command = [
            sys.executable,
            "-m",
            "tonnage_box.testing.network_driver",
            str(self.state),
            f"controller={self.socket}",
        ]
        self.process = subprocess.Popen(command)

    def nodes(self) -> list[str]:
        """Ids of the nodes that the volume is attached to."""
        return list(json.loads((self.state / "volumes.json").read_text())[VOLUME]["nodes"])

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(timeout=60)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path)
    yield made
    made.end()


@pytest.fixture
def plane(installed: ControlPlane, storage: Storage) -> Iterator[ControlPlane]:
    """With two nodes, a volume and its claim, and the rights of the role."""
    rights = manifests.render_part("rbac-attach.yaml", Installation(attach_endpoints=[f"unix://{storage.socket}"]))
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": _objects()})
    installed.kubectl("apply", "-f", "-", stdin=rights)
    installed.kubectl("apply", "-f", "-", stdin=objects)
    yield installed
    for kind in ("pod", "pvc"):
        installed.kubectl("delete", kind, "-l", "test=attach", "--force", "--grace-period=0")
    installed.kubectl("delete", "-f", "-", "--wait=false", "--ignore-not-found", stdin=objects)
    installed.kubectl("delete", "-f", "-", stdin=rights)


def _objects() -> list[dict[str, Any]]:
    label = {"labels": {"test": "attach"}}
    managed = {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}
    found: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, **managed}} for node in NODES
    ]
    for node in NODES:
        entry = {"name": NETWORK_DRIVER, "nodeID": f"id-{node}", "topologyKeys": None}
        csi_node = {"metadata": {"name": node}, "spec": {"drivers": [entry]}}
        found.append({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", **csi_node})
    spec: dict[str, Any] = {"attachRequired": True, "storageCapacity": True}
    driver = {"metadata": {"name": NETWORK_DRIVER}, "spec": spec}
    storage_class = {"metadata": {"name": "attach-net"}, "provisioner": NETWORK_DRIVER}
    found.append({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", **driver})
    found.append({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **storage_class})
    both = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    pv = {
        "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": "default", "name": VOLUME},
        "csi": {"driver": NETWORK_DRIVER, "volumeHandle": VOLUME},
    }  # fmt: skip
    found.append({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME}, "spec": {**both, **pv}})
    claim = {**both, "volumeName": VOLUME, "resources": {"requests": {"storage": "1Gi"}}}
    meta = {"name": VOLUME, "namespace": "default", **label}
    return [*found, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim}]


@pytest.fixture
def replicas(plane: ControlPlane, storage: Storage, tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(plane, tmp_path, "controller", f"--attach-endpoint=unix://{storage.socket}")
    try:
        yield made
    finally:
        made.end()


def _pod(plane: ControlPlane, name: str, node: str) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": VOLUME}}]
    containers = [{"name": "main", "image": "none", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]
    spec = {"nodeName": node, "volumes": volumes, "containers": containers}
    meta = {"name": name, "namespace": "default", "labels": {"test": "attach"}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def _gone(plane: ControlPlane, pod: str) -> None:
    """Or was gone: Kubernetes itself removes the pods of a node that is out of service."""
    plane.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--ignore-not-found")


def _attached(plane: ControlPlane, node: str) -> bool:
    """Whether Kubernetes says so, in the attachment and in the node's status."""
    found = {one["spec"]["nodeName"]: one for one in plane.get("volumeattachments")["items"]}
    if node not in found or not found[node].get("status", {}).get("attached"):
        return False
    status = plane.get("node", node)["status"].get("volumesAttached") or []
    return [one["name"] for one in status] == [names.attached_volume(NETWORK_DRIVER, VOLUME)]


def test_kubernetes_and_tonnage_attach_and_detach(plane: ControlPlane, storage: Storage, replicas: Replicas) -> None:
    replicas.start("one")
    _pod(plane, "attach-a", NODES[0])
    plane.until("it is attached", lambda: _attached(plane, NODES[0]))
    assert storage.nodes() == [f"id-{NODES[0]}"]
    (one,) = plane.get("volumeattachments")["items"]
    assert one["metadata"]["finalizers"] == ["external-attacher/network-example-com"]
    assert one["status"]["attachmentMetadata"] == {"token": f"{VOLUME}@id-{NODES[0]}"}

    in_use = {"status": {"volumesInUse": [names.attached_volume(NETWORK_DRIVER, VOLUME)]}}
    plane.kubectl("patch", "node", NODES[0], "--subresource=status", "--type=merge", "-p", json.dumps(in_use))
    _gone(plane, "attach-a")
    _pod(plane, "attach-b", NODES[1])
    plane.until("the second node waits", lambda: "FailedAttachVolume" in _events(plane, "attach-b"))
    assert storage.nodes() == [f"id-{NODES[0]}"], "it is mounted there"
    in_use["status"]["volumesInUse"] = []
    plane.kubectl("patch", "node", NODES[0], "--subresource=status", "--type=merge", "-p", json.dumps(in_use))
    plane.until("it has moved", lambda: _attached(plane, NODES[1]) and storage.nodes() == [f"id-{NODES[1]}"])

    _gone(plane, "attach-b")
    plane.until("nothing is attached", lambda: not plane.get("volumeattachments")["items"] and not storage.nodes())
    plane.kubectl("delete", "pvc", VOLUME)
    plane.kubectl("delete", "pv", VOLUME, "--timeout=60s")


def _events(plane: ControlPlane, pod: str) -> str:
    selector = f"--field-selector=involvedObject.name={pod}"
    return plane.kubectl("get", "events", "-n", "default", selector, "-o", "jsonpath={.items[*].reason}")


def test_a_node_that_is_out_of_service_loses_its_volume(
    plane: ControlPlane, storage: Storage, replicas: Replicas
) -> None:
    replicas.start("one")
    _pod(plane, "attach-a", NODES[0])
    plane.until("it is attached", lambda: _attached(plane, NODES[0]))
    in_use = {"status": {"volumesInUse": [names.attached_volume(NETWORK_DRIVER, VOLUME)]}}
    plane.kubectl("patch", "node", NODES[0], "--subresource=status", "--type=merge", "-p", json.dumps(in_use))
    plane.kubectl("taint", "node", NODES[0], f"{names.OUT_OF_SERVICE_TAINT}=off:NoExecute")
    plane.kubectl("delete", "csinode", NODES[0])
    _gone(plane, "attach-a")
    plane.until("it is detached", lambda: not plane.get("volumeattachments")["items"] and not storage.nodes())


def test_capacity_that_all_nodes_share(plane: ControlPlane, replicas: Replicas) -> None:
    replicas.start("one")

    def published() -> list[Any]:
        found = plane.get("-n", names.SYSTEM_NAMESPACE, "csistoragecapacities")["items"]
        return [(one["nodeTopology"], one["capacity"]) for one in found if one["storageClassName"] == "attach-net"]

    plane.until("it is published", lambda: published() == [({}, "99Gi")])
    plane.kubectl("delete", "csidriver", NETWORK_DRIVER)
    plane.until("it goes with its CSIDriver", lambda: published() == [])
