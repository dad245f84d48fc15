"""Volumes of network storage in a box: attached by tonnage, usable from every node, with real mounts and containers.

The storage is a driver of our own: what it has attached where, and which calls it had, are read from it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import Cluster

from tonnage_box.testing.network_driver import NETWORK_DRIVER

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
NODES = ("node-1", "node-2")
OBJECTS = f"""
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {NETWORK_DRIVER}}}
spec: {{attachRequired: true, podInfoOnMount: false, storageCapacity: true}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: net}}
provisioner: {NETWORK_DRIVER}
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: net-now}}
provisioner: {NETWORK_DRIVER}
"""


@dataclass
class NetworkBox:
    """A box of two nodes and its storage."""

    box: Cluster
    state: Path
    process: subprocess.Popen[bytes]
    command: list[str]

    def volumes(self) -> dict[str, list[str]]:
        """Volume -> the nodes that it is attached to, as the storage has it."""
        found = json.loads((self.state / "volumes.json").read_text())
        return {name: list(one["nodes"]) for name, one in found.items()}

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make objects."""
        self.box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def restart(self) -> None:
        """Kill the driver and start it again."""
        self.process.kill()
        self.process.wait()
        self.process = subprocess.Popen(self.command)

    def detached(self) -> None:
        """Wait until nothing is attached."""
        self.box.until("nothing is attached", lambda: not any(self.volumes().values()))
        self.box.until("no attachment is left", lambda: not self.box.get("volumeattachments")["items"])


def claim(name: str, mode: str = "ReadWriteOnce", size: str = "1Gi") -> dict[str, Any]:
    spec = {"storageClassName": "net", "accessModes": [mode], "resources": {"requests": {"storage": size}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def pod(name: str, claim: str, node: str, script: str = "true") -> dict[str, Any]:
    container = {
        "name": "main", "image": "any", "command": ["sh", "-c", f"{script}; exec sleep 1000"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }  # fmt: skip
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    spec = {
        "containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node},
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def network(make_cluster: Callable[..., Cluster]) -> Iterator[NetworkBox]:
    box = make_cluster()
    state = box.home / "storage"
    state.mkdir()
    sockets = {node: box.home / f"{node}.sock" for node in NODES}
    command = [sys.executable, "-m", "tonnage_box.testing.network_driver", str(state)]
    command += [f"{node}={socket}" for node, socket in sockets.items()]
    process = subprocess.Popen(command)
    box.arguments = ("--nodes", "2", *(f"--csi-endpoint={node}={socket}" for node, socket in sockets.items()))
    made = NetworkBox(box, state, process, command)
    try:
        box.up()
        box.kubectl("apply", "-f", "-", stdin=OBJECTS)
        yield made
    finally:
        box.down("--purge")
        made.process.terminate()
        made.process.wait(timeout=60)


def _ready(network: NetworkBox, name: str) -> None:
    network.box.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")


def _gone(network: NetworkBox, *objects: str) -> None:
    network.box.kubectl("delete", *objects, "--timeout=120s")


def test_one_capacity_object_serves_all_nodes(network: NetworkBox) -> None:
    def published() -> list[Any]:
        items = network.box.get("csistoragecapacities", "-A")["items"]
        return [(i["nodeTopology"], i["capacity"]) for i in items if i["storageClassName"] == "net"]

    network.box.until("it is published", lambda: published() == [({}, "100Gi")])


def test_a_claim_of_an_immediate_class_is_bound_without_a_pod(network: NetworkBox) -> None:
    made = claim("now")
    made["spec"]["storageClassName"] = "net-now"
    network.apply(made)
    network.box.until("it is bound", lambda: network.box.get("pvc", "now")["status"].get("phase") == "Bound")
    network.apply(pod("anywhere", "now", "node-2", "echo here > /data/file"))
    _ready(network, "anywhere")
    assert list(network.volumes().values()) == [["node-2"]]
    _gone(network, "pod/anywhere", "pvc/now")
    network.detached()
    network.box.until("nothing is left", lambda: not network.volumes() and not network.box.get("pv")["items"])


def test_data_moves_from_node_to_node_with_the_pod(network: NetworkBox) -> None:
    network.apply(claim("moving"), pod("first", "moving", "node-1", "echo first > /data/file"))
    _ready(network, "first")
    (nodes,) = network.volumes().values()
    assert nodes == ["node-1"]
    (volume,) = network.box.get("pv")["items"]
    assert "nodeAffinity" not in volume["spec"]
    assert "external-attacher/network-example-com" in volume["metadata"]["finalizers"]
    network.apply(pod("second", "moving", "node-2", "cat /data/file > /data/copy"))

    def rejected() -> bool:
        events = network.box.kubectl("get", "events", "--field-selector", "involvedObject.name=second")
        return "Multi-Attach error" in events

    network.box.until("the second node is rejected", rejected)
    _gone(network, "pod/first")
    _ready(network, "second")
    (nodes,) = network.volumes().values()
    assert nodes == ["node-2"]
    assert network.box.kubectl("exec", "second", "--", "cat", "/data/copy") == "first\n"
    _gone(network, "pod/second")
    network.detached()
    _gone(network, "pvc/moving")
    network.box.until("the volume is deleted", lambda: not network.volumes())
    network.box.until("its PV is gone", lambda: not network.box.get("pv")["items"])


def test_a_shared_volume_is_attached_to_both_nodes(network: NetworkBox) -> None:
    pods = [pod(f"on-{node}", "shared", node, f"echo {node} > /data/{node}") for node in NODES]
    network.apply(claim("shared", "ReadWriteMany"), *pods)
    for node in NODES:
        _ready(network, f"on-{node}")
    (nodes,) = network.volumes().values()
    assert sorted(nodes) == list(NODES)
    network.box.until(
        "each sees the other",
        lambda: network.box.kubectl("exec", "on-node-1", "--", "ls", "/data").split() == list(NODES),
    )
    _gone(network, "pod/on-node-1", "pod/on-node-2", "pvc/shared")
    network.detached()


def test_the_driver_and_the_box_may_be_killed_meanwhile(network: NetworkBox) -> None:
    network.apply(claim("lasting"), pod("lasting", "lasting", "node-1", "echo here > /data/file"))
    network.restart()
    _ready(network, "lasting")
    network.box.down()
    network.box.up()
    _ready(network, "lasting")
    assert network.box.kubectl("exec", "lasting", "--", "cat", "/data/file") == "here\n"
    network.box.kubectl("delete", "pod", "lasting", "--wait=false")
    network.restart()
    network.detached()
    _gone(network, "pvc/lasting")
    network.box.until("nothing is left", lambda: not network.volumes() and not network.box.get("pv")["items"])
