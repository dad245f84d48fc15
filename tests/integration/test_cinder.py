"""`tonnage cinder` in a box: claims, pods, growth and snapshots, over a child that has loop devices for storage."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.clusters import Cluster
from tests.integration.test_attach import pod
from tests.unit.cinder.child import CHILD

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
OBJECTS = """
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: cinder.tonnage.dev}
spec: {attachRequired: true, podInfoOnMount: false, storageCapacity: true, fsGroupPolicy: File}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: net}
provisioner: cinder.tonnage.dev
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {backend: lvm, csi.storage.k8s.io/fstype: xfs}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: net}
driver: cinder.tonnage.dev
deletionPolicy: Delete
"""
SNAPSHOT = """
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: first}
spec: {volumeSnapshotClassName: net, source: {persistentVolumeClaimName: data}}
"""


class Storage:
    """A box and the folder of its storage."""

    def __init__(self, box: Cluster) -> None:
        self.box, self.folder = box, box.home / "storage"

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return found

    def apply(self, *objects: dict[str, Any]) -> None:
        self.box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def run(self, name: str, claim: str, script: str) -> None:
        """Start a pod with a claim, and wait until its script has succeeded."""
        self.apply(pod(name, claim, "node-1", f"{script} && echo done"))
        self.box.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
        self.box.until(f"{name} is done", lambda: "done" in self.box.kubectl("logs", name), seconds=60)

    def end(self, *objects: str) -> None:
        self.box.kubectl("delete", *objects, "--timeout=120s")


@pytest.fixture
def network(make_cluster: Callable[..., Cluster]) -> Iterator[Storage]:
    box = make_cluster()
    made = Storage(box)
    made.folder.mkdir()
    interpreter = box.home / "python"  # of the child: it is told which file to run, and runs the other child
    interpreter.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, '-I', str(CHILD), str(made.folder)])}\n")
    interpreter.chmod(0o755)
    (box.home / "cinder.yaml").write_text("backends: [{name: lvm, volume_driver: x.Y}]\n")
    socket = box.home / "csi.sock"
    options = ["--endpoint", str(socket), "--config", f"{box.home}/cinder.yaml", "--state", f"{box.home}/state"]
    options += ["--kubelet-root", str(box.data), "--interpreter", str(interpreter)]
    process = subprocess.Popen([sys.executable, "-m", "tonnage", "cinder", *options])
    box.arguments = ("--csi-endpoint", str(socket))
    try:
        box.up()
        box.kubectl("apply", "-f", "-", stdin=OBJECTS)
        yield made
    finally:
        box.down("--purge")
        process.terminate()
        process.wait(timeout=60)


def _claim(name: str, source: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"storageClassName": "net", "accessModes": ["ReadWriteOnce"]}
    spec["resources"] = {"requests": {"storage": "1Gi"}}
    if source:
        spec["dataSource"] = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": source}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def test_a_claims_life(network: Storage) -> None:
    box = network.box
    network.apply(_claim("data"))
    network.run("writer", "data", "echo one > /data/file")
    network.end("pod/writer")
    network.run("reader", "data", "grep one /data/file || exit 1")
    box.kubectl("apply", "-f", "-", stdin=SNAPSHOT)
    box.kubectl("wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/first", "--timeout=120s")
    network.apply(_claim("copy", "first"))
    network.run("copied", "copy", "grep one /data/file || exit 1")
    box.kubectl("patch", "pvc/data", "-p", '{"spec": {"resources": {"requests": {"storage": "1500Mi"}}}}')
    box.until("it grows", lambda: box.get("pvc", "data")["status"]["capacity"]["storage"] == "2Gi")
    blocks = box.kubectl("exec", "reader", "--", "df", "-m", "/data").splitlines()[-1].split()[1]
    assert int(blocks) > 1900
    network.end("pod/reader", "pod/copied", "pvc/copy", "volumesnapshot/first")
    network.end("pvc/data")
    nothing = {"free": 100, "volumes": {}, "snapshots": {}}
    box.until("nothing is left", lambda: network.state() == nothing)
