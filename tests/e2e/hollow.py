"""A node without a kubelet where pods with ephemeral volumes are placed by the real scheduler, and nothing runs; and the
parts of a control plane of one's own, which are killed and started again.

The scheduler binds such a pod only when its claim is bound: a pod that has its node has its volume.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import programs
from cluster.__main__ import down, up
from cluster.control_plane import answers
from cluster.processes import Processes
from tests.e2e.agents import Nodes
from tests.e2e.control_plane import ControlPlane, install
from tests.e2e.processes import Agent
from tests.processes import arguments

from tonnage.kubernetes.api import names

CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
PODS = 110


class Parts:
    """The processes of a control plane that is nobody else's."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._processes = Processes(plane.folder / "processes")
        self._commands: dict[str, list[str]] = {}

    def kill(self, *parts: str) -> None:
        """At once, as the machine that they run on would die."""
        for part in parts:
            pid = self._processes.pid(part)
            assert pid is not None, f"{part} does not run"
            self._commands[part] = arguments(pid)
            self._processes.end(part, sign=signal.SIGKILL)

    def start(self, *parts: str) -> None:
        """Those that were killed, as they were; waits until the API server is ready, if it is one of them."""
        for part in parts:
            self._processes.start(part, self._commands[part])
            if part == "kube-apiserver":
                self._processes.wait(part, lambda: answers(f"{self.plane.server}/readyz"), 120)

    def backup(self, folder: Path) -> None:
        """What etcd has now; it is stopped for a moment, as a copy of its files asks for."""
        self.kill("etcd")
        shutil.copytree(self.plane.folder / "etcd", folder)
        self.start("etcd")
        self.plane.until("the API server works again", self._works)

    def restore(self, folder: Path) -> None:
        """etcd becomes what it was; all parts of the control plane are started anew, as etcd's guide tells to."""
        everything = ("etcd", "kube-apiserver", *CONTROLLERS)
        self.kill(*reversed(everything))
        shutil.rmtree(self.plane.folder / "etcd")
        shutil.copytree(folder, self.plane.folder / "etcd")
        self.start(*everything)
        self.plane.until("the API server works again", self._works)

    def _works(self) -> bool:
        return self.plane.try_kubectl("get", "--raw", "/readyz").returncode == 0


@contextmanager
def own_plane(folder: Path) -> Iterator[Parts]:
    """A control plane of one's own with tonnage's objects. Skips where there is no real Kubernetes."""
    try:
        kubectl = programs.kubectl()
        found = up(folder, 0)
    except programs.Missing as reason:
        pytest.skip(f"no real Kubernetes: {reason}")
    try:
        plane = ControlPlane(folder, Path(str(found["kubeconfig"])), str(found["server"]), kubectl)
        yield Parts(install(plane))
    finally:
        down(folder)


class Hollow:
    """A node of `nodes` that the scheduler uses, and pods there that all have one volume of some size."""

    def __init__(self, nodes: Nodes, number: int) -> None:
        self.nodes, self.plane, self.node = nodes, nodes.plane, nodes.add(number)
        labels = {names.TOPOLOGY_NODE: self.node, "kubernetes.io/hostname": self.node}
        self.plane.send("PATCH", f"/api/v1/nodes/{self.node}", {"metadata": {"labels": labels}})
        room = {"cpu": "64", "memory": "64Gi", "pods": str(PODS)}
        path = f"/api/v1/nodes/{self.node}/status"
        assert self.plane.send("PATCH", path, {"status": {"capacity": room, "allocatable": room}}).status == 200
        driver = {"name": names.DRIVER, "nodeID": self.node, "topologyKeys": [names.TOPOLOGY_NODE]}
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": self.node}}
        self.plane.create({**body, "spec": {"drivers": [driver]}})

    def run(self, *pods: str, size: str = "32Mi") -> None:
        """Ask for pods."""
        self.plane.apply(*(self._pod(name, size) for name in pods))

    def _pod(self, name: str, size: str) -> dict[str, Any]:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": names.SCRATCH_CLASS,
            "resources": {"requests": {"storage": size}},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.nodes.namespace},
            "spec": {
                "nodeSelector": {names.TOPOLOGY_NODE: self.node},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": "none.invalid/none"}],
                "volumes": [{"name": "disk", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}],
            },
        }

    def placed(self) -> list[str]:
        """Pods that have their node, and so their volume."""
        pods = self.plane.get("-n", self.nodes.namespace, "pods")["items"]
        return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]

    def claims(self) -> dict[str, str]:
        """Claims by name: their uid."""
        found = self.plane.get("-n", self.nodes.namespace, "pvc")["items"]
        return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in found}

    def sent(self) -> list[str]:
        """uids of the claims that the scheduler has sent here."""
        found = self.plane.get("-n", self.nodes.namespace, "pvc")["items"]
        return [c["metadata"]["uid"] for c in found if names.SELECTED_NODE in c["metadata"].get("annotations", {})]

    def volumes(self) -> list[str]:
        """Names of the PersistentVolumes of this node, sorted."""
        found = self.plane.get("pv", "-l", f"{names.NODE_LABEL}={self.node}")["items"]
        return sorted(volume["metadata"]["name"] for volume in found)

    def end_pods(self) -> None:
        """Delete all pods at once; nobody has to stop anything first."""
        flags = ("--all", "--grace-period=0", "--force", "--wait=false")
        self.plane.kubectl("-n", self.nodes.namespace, "delete", "pods", *flags)

    def remove(self) -> None:
        """What Nodes does not know of."""
        self.plane.kubectl("delete", "csinode", self.node, "--ignore-not-found")


def in_pool(agent: Agent) -> dict[str, int]:
    """What the driver says that it has, once it answers: names of volumes, and bytes."""
    deadline = time.monotonic() + 60
    while "no driver answers" in (ended := agent.volumes("list", "-o", "json")).stderr:
        assert time.monotonic() < deadline, ended.stderr
        time.sleep(0.1)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout).get("volumes", [])
    return {volume["id"].rpartition("/")[2]: volume["size"] for volume in found}


def measured(port: int, metric: str) -> float:
    """The sum over all labels of a metric that a process serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.partition("{")[0].partition(" ")[0] == metric)


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
