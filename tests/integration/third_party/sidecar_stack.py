"""A driver as its authors deploy it: csi-driver-host-path, a registrar, and upstream's sidecars, each a process.

Each sidecar is a service account with a token of its own, and only the rights that upstream's rbac.yaml lists. It talks
protobuf, which is its default.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

DRIVER = "hostpath.csi.k8s.io"
TOPOLOGY = "topology.hostpath.csi/node"
SPACE = "csi"
"""The namespace of the sidecars, their leases and the capacity objects."""
OBJECTS = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {SPACE}}}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {DRIVER}}}
spec: {{attachRequired: ATTACH, podInfoOnMount: true, storageCapacity: true, fsGroupPolicy: File,
  volumeLifecycleModes: [Persistent, Ephemeral]}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: late}}
provisioner: {DRIVER}
parameters: {{kind: fast}}
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: at-once}}
provisioner: {DRIVER}
parameters: {{kind: fast}}
allowVolumeExpansion: true
"""
REGISTRAR = """
import asyncio, sys
from pathlib import Path
from tonnage.csi.driver.registration import Registration

async def main():
    await Registration(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""
"""Stands in for node-driver-registrar, which is not to be had as a module."""
_READ = ["get", "list", "watch"]
_EVENTS = ("", "events", ["list", "watch", "create", "update", "patch"])
_STORAGE = "storage.k8s.io"
RIGHTS: dict[str, list[tuple[str, str, list[str]]]] = {
    "csi-provisioner": [
        ("", "persistentvolumes", [*_READ, "create", "patch", "delete"]),
        ("", "persistentvolumeclaims", [*_READ, "update"]),
        (_STORAGE, "storageclasses", _READ),
        _EVENTS,
        (_STORAGE, "csinodes", _READ),
        ("", "nodes", _READ),
        (_STORAGE, "volumeattachments", _READ),
    ],
    "csi-attacher": [
        ("", "persistentvolumes", [*_READ, "patch"]),
        (_STORAGE, "csinodes", _READ),
        (_STORAGE, "volumeattachments", [*_READ, "patch"]),
        (_STORAGE, "volumeattachments/status", ["patch"]),
    ],
    "csi-resizer": [
        ("", "persistentvolumes", [*_READ, "patch"]),
        ("", "persistentvolumeclaims", _READ),
        ("", "pods", _READ),
        ("", "persistentvolumeclaims/status", ["patch"]),
        _EVENTS,
        (_STORAGE, "volumeattributesclasses", _READ),
    ],
}
"""By sidecar: group, resource and verbs in all namespaces. Left out is what is of snapshots, which have no kind here."""
_LEASES = ("coordination.k8s.io", "leases", [*_READ, "delete", "update", "create"])
OWN_RIGHTS: dict[str, list[tuple[str, str, list[str]]]] = {
    "csi-provisioner": [
        _LEASES,
        (_STORAGE, "csistoragecapacities", [*_READ, "create", "update", "patch", "delete"]),
        ("", "pods", ["get"]),
        ("apps", "replicasets", ["get"]),
    ],
    "csi-attacher": [_LEASES],
    "csi-resizer": [_LEASES],
}
"""The same, in the sidecars' namespace only."""


def access(name: str) -> str:
    """The account of a sidecar and what it may do, as YAML."""
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": SPACE}]
    api = "rbac.authorization.k8s.io"
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SPACE}}
    ]
    for prefix, rights in (("Cluster", RIGHTS[name]), ("", OWN_RIGHTS[name])):
        rules = [{"apiGroups": [group], "resources": [resource], "verbs": verbs} for group, resource, verbs in rights]
        meta = {"name": name} if prefix else {"name": name, "namespace": SPACE}
        role = {"apiGroup": api, "kind": f"{prefix}Role", "name": name}
        objects.append({"apiVersion": f"{api}/v1", "kind": f"{prefix}Role", "metadata": meta, "rules": rules})
        objects.append(
            {
                "apiVersion": f"{api}/v1", "kind": f"{prefix}RoleBinding", "metadata": meta, "subjects": subjects,
                "roleRef": role,
            }
        )  # fmt: skip
    return yaml.safe_dump_all(objects)


class Process:
    """A program that is started again whenever it ends, as a kubelet does: sidecars end when they lose their lease."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        self._command, self._environment = command, {**os.environ, **environment}
        self._ending = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)

    def _keep(self) -> None:
        while not self._ending.wait(0.2):
            if self._process.poll() is not None:
                self._process = self._start()

    def kill(self) -> None:
        """Kill it as a machine's trouble does; it is started again."""
        self._process.kill()

    def end(self) -> None:
        """End it. Idempotent."""
        self._ending.set()
        self._keeper.join()
        self._process.terminate()
        self._process.wait(timeout=120)

    @property
    def text(self) -> str:
        """All that it said."""
        return self.log.read_text(errors="replace")


class SidecarStack:
    """The driver's processes on the nodes of a box, and the sidecars beside them."""

    def __init__(self, cluster: Any, find: Callable[[str], Path]) -> None:
        self.cluster = cluster
        self.folder = Path(cluster.home)
        self.processes: dict[str, Process] = {}
        self._find = find

    def add_driver(self, node: str, *arguments: str) -> None:
        """Start the driver for a node, and register it with the node's kubelet."""
        folder = self.folder / node
        folder.mkdir()
        socket = folder / "csi.sock"
        self._start(
            f"driver {node}", str(self._find("hostpath")), "-drivername", DRIVER, "-endpoint", f"unix://{socket}",
            "-statedir", str(folder / "state"), "-nodeid", node, "-check-volume-lifecycle", "-v", "5", *arguments,
        )  # fmt: skip
        self.cluster.until(f"the driver of {node} listens", socket.exists)
        registry = self.cluster.data / "nodes" / node / "kubelet" / "plugins_registry"
        self._start(f"registrar {node}", sys.executable, "-c", REGISTRAR, DRIVER, str(socket), str(registry))

    def add_sidecar(
        self, program: str, node: str, *arguments: str, socket: Path | None = None, **environment: str
    ) -> None:
        """Start a sidecar at a node's driver, or at that of a socket, with the access of its own account."""
        name = f"{program} {node}" if socket is None else f"{program} {socket.stem}"
        self.cluster.kubectl("apply", "-f", "-", stdin=access(program))
        token = self.cluster.kubectl("create", "token", program, "-n", SPACE, "--duration=2h").strip()
        config = yaml.safe_load((self.cluster.data / "kubeconfig").read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        path = self.folder / f"{name.replace(' ', '-')}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        self._start(
            name, str(self._find(program)), "--csi-address", str(socket or self.folder / node / "csi.sock"),
            "--kubeconfig", str(path), "-v", "5", *arguments, **environment,
        )  # fmt: skip

    def _start(self, name: str, *command: str, **environment: str) -> None:
        log = self.folder / f"{name.replace(' ', '-')}.log"
        self.processes[name] = Process(list(command), log, environment)

    def run(self, manifest: str) -> None:
        """Make a pod and wait until it has started."""
        name = json.loads(manifest)["metadata"]["name"]
        self.cluster.kubectl("apply", "-f", "-", stdin=manifest)
        self.cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=300s")

    def state(self, node: str) -> set[str]:
        """What the driver of a node keeps: a folder or file for each volume."""
        return {path.name for path in (self.folder / node / "state").iterdir()} - {"state.json"}

    def close(self) -> None:
        """End all processes, the drivers last."""
        for process in reversed(self.processes.values()):
            process.end()


def claim(name: str, storage_class: str, asked: str = "64Mi", **more: Any) -> str:
    """A claim as a manifest."""
    spec = {
        "storageClassName": storage_class, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": asked}}, **more,
    }  # fmt: skip
    return json.dumps({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})


def pod(name: str, script: str, volume: dict[str, Any], *, device: bool = False) -> str:
    """A pod that runs a script and has one volume, as a manifest."""
    container: dict[str, Any] = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
    if device:
        container["volumeDevices"] = [{"name": "data", "devicePath": "/dev/data"}]
    else:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    spec = {"containers": [container], "volumes": [{"name": "data", **volume}], "terminationGracePeriodSeconds": 1}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def of_claim(name: str) -> dict[str, Any]:
    """The volume of a pod that is a claim."""
    return {"persistentVolumeClaim": {"claimName": name}}
