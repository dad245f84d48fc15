"""A cluster with real kubelets, tonnage installed on it from our own image, and what a node has of volumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cluster import network, programs
from cluster.__main__ import BUSYBOX
from cluster.node import PLUGINS, Node
from cluster.processes import Processes
from deploy.release.build import chart
from tests.e2e.control_plane import ControlPlane

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

SYSTEM = names.SYSTEM_NAMESPACE
AGENTS = "app.kubernetes.io/component=node"
POOL = "/var/lib/tonnage"
POOL_SIZE = "6Gi"
POOL_TEXT = f"image:{POOL},name=scratch,rootfs=yes,keep=1Gi,size={POOL_SIZE}"
POOL_VALUES = {"name": "scratch", "kind": "image", "path": POOL, "rootfs": True, "keep": "1Gi", "size": POOL_SIZE}
_FLEX = ("--flexvolume", PLUGINS)
_VERSION = ("--kubernetes", programs.version())
GIB = 2**30
WRITER = "n=0; while n=$((n + 1)); do echo $n >> /data/log && sync /data/log || exit 1; sleep 0.1; done"


@dataclass(frozen=True)
class Machines:
    """The cluster and its nodes' names."""

    plane: ControlPlane
    names: tuple[str, ...]

    def node(self, name: str) -> Node:
        """What starts and stops a node's parts."""
        folder = self.plane.folder
        number = int(name.rpartition("-")[2])
        return Node(folder, number, programs.folder(), Processes(folder / "processes"), network.of(folder))

    def install(self, helm: Path | None) -> None:
        """From the chart, or from `tonnage manifests` where there is no helm; the same objects (test_helm.py).

        Returns when the agents have taken their nodes' start-up taint off.
        """
        self.plane.kubectl("taint", "node", *self.names, f"{names.STARTUP_TAINT}=:NoSchedule")
        if helm:
            self._install_chart(helm)
        else:
            made = _run(sys.executable, "-m", "tonnage", "manifests", "--pool", POOL_TEXT, *_FLEX, *_VERSION)
            self.plane.kubectl("apply", "--validate=strict", "-f", "-", stdin=made)
        self.plane.until("capacity is published", lambda: set(self.capacities()) == set(self.names))
        self.plane.until("nodes have no start-up taint", lambda: not self.tainted())

    def _install_chart(self, helm: Path) -> None:
        self.plane.kubectl("create", "namespace", SYSTEM)
        self.plane.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=privileged")
        self._chart(helm, "install")

    def _chart(self, helm: Path, verb: str, **more: object) -> None:
        flags = (f"--kubeconfig={self.plane.kubeconfig}", "--namespace", SYSTEM)
        values = {"pools": [POOL_VALUES], "config": {"flexvolume": PLUGINS}, **more}
        given = [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
        package = chart(self.plane.folder, 0)  # as a release has it
        _run(helm, verb, "tonnage", package, *flags, *given, home=self.plane.folder / "helm")

    def change(
        self, helm: Path | None, *, drivers: Mapping[str, str] = MappingProxyType({}), inline: Sequence[str] = (),
        stores: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Install the same once more, with inline drivers and agents serving drivers of others: name -> topology key.

        stores: image stores of the nodes. Returns when the agents have begun anew.
        """
        if helm:
            more = {"csiDrivers": dict(drivers), "inlineDrivers": list(inline), "imageStores": list(stores)}
            self._chart(helm, "upgrade", **more)
            self.restart_agents()
            return
        flags = [f"--driver={name}={key}" for name, key in drivers.items()]
        flags += [f"--inline={text}" for text in inline] + [f"--image-store={store}" for store in stores]
        made = _run(sys.executable, "-m", "tonnage", "manifests", "--pool", POOL_TEXT, *_FLEX, *_VERSION, *flags)
        self.plane.kubectl("apply", "--validate=strict", "-f", "-", stdin=made)
        self.restart_agents()

    def restart_agents(self) -> None:
        """Have all agents begin anew, as after an upgrade."""
        self.plane.kubectl("-n", SYSTEM, "rollout", "restart", "daemonset/tonnage-node")
        self.plane.kubectl("-n", SYSTEM, "rollout", "status", "daemonset/tonnage-node", "--timeout=300s")
        self.plane.until("agents are ready", lambda: set(self.agents()) == set(self.names))

    def tainted(self) -> list[str]:
        """Nodes whose agent is not ready."""
        found = self.plane.get("nodes")["items"]
        return [
            node["metadata"]["name"]
            for node in found
            if names.STARTUP_TAINT in [taint["key"] for taint in node["spec"].get("taints", [])]
        ]

    def agents(self) -> dict[str, Any]:
        """Node -> its agent's pod, of those that are ready and stay."""
        pods = self.plane.get("-n", SYSTEM, "pods", "-l", AGENTS)["items"]
        return {
            pod["spec"]["nodeName"]: pod for pod in pods if ready(pod) and "deletionTimestamp" not in pod["metadata"]
        }

    def capacities(self) -> dict[str, int]:
        """Node -> bytes that it says it has for the class of pods here."""
        found = self.plane.get("-n", SYSTEM, "csistoragecapacities")["items"]
        return {
            item["nodeTopology"]["matchLabels"][names.TOPOLOGY_NODE]: to_bytes(item["capacity"])
            for item in found
            if item["storageClassName"] == names.SCRATCH_CLASS
        }

    def start(self, name: str, size: str = "4Gi", *, command: str = "sleep 100000", node: str = "") -> None:
        """A pod with a disk of its own at /data. node: the only one where it may go, if any."""
        self.plane.apply(pod(name, size, command, node))

    def is_ready(self, name: str) -> bool:
        """Whether a pod runs."""
        return ready(self.plane.get("pod", name))

    def wait_ready(self, name: str) -> str:
        """Wait until a pod runs; its node."""
        self.plane.until(f"{name} is ready", lambda: self.is_ready(name))
        return str(self.plane.get("pod", name)["spec"]["nodeName"])

    def uid(self, claim: str) -> str:
        """A claim's uid, which is in every name that its volume has."""
        return str(self.plane.get("pvc", claim)["metadata"]["uid"])

    def shell(self, name: str, command: str) -> str:
        """What a command in a pod says, errors included; it must not fail."""
        return self.plane.kubectl("exec", name, "--", "sh", "-c", f"{{ {command}; }} 2>&1")

    def inside(self, node: str, command: str) -> str:
        """What a command on a node says."""
        return self.node(node).inside("sh", "-c", command)

    def mounts(self, node: str, uid: str) -> list[str]:
        """The mounts of a volume on its node, each with the mount's number, which a new one would not have."""
        table = self.inside(node, "cat /proc/self/mountinfo").splitlines()
        device = {line.split()[2] for line in table if uid in line}
        return sorted(" ".join(line.split()[:5]) for line in table if line.split()[2] in device)

    def left(self, uid: str) -> list[str]:
        """Everything that there is of a volume, anywhere."""
        volumes = [item["metadata"]["name"] for item in self.plane.get("pv")["items"]]
        claims = [item["metadata"]["uid"] for item in self.plane.get("pvc", "-A")["items"]]
        found = [
            f"{kind} {name}" for kind, all_ in (("pv", volumes), ("claim", claims)) for name in all_ if uid in name
        ]
        backing = Path("/sys/block").glob("loop*/loop/backing_file")
        found += [f"loop device of {text}" for file in backing if uid in (text := _text(file))]
        for node in self.names:
            search = f"find {POOL} /var/lib/kubelet -xdev -name '*{uid}*'; grep {uid} /proc/self/mountinfo || true"
            found += [f"{node}: {line}" for line in self.inside(node, search).splitlines()]
        return found

    @contextmanager
    def removed(self, *pods: str) -> Iterator[None]:
        """Afterwards those pods are away, whatever happened."""
        try:
            yield
        finally:
            self.plane.kubectl("delete", "pod", "--ignore-not-found", *pods)
            whole = to_bytes(POOL_SIZE)
            self.plane.until("all room is back", lambda: set(self.capacities().values()) == {whole})


def pod(name: str, size: str, command: str, node: str = "") -> dict[str, Any]:
    """A pod with a generic ephemeral volume. node: as of Machines.start()."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": names.SCRATCH_CLASS,
        "resources": {"requests": {"storage": size}},
    }
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sh", "-c", command],
        "volumeMounts": [{"name": "disk", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "containers": [container],
            "volumes": [{"name": "disk", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}],
        },
    }


def ready(body: Any) -> bool:
    """Whether a pod says that it is."""
    conditions = body["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def container(body: Any) -> tuple[str, int]:
    """The one container of a pod that runs, and how often it was started again."""
    (status,) = body["status"]["containerStatuses"]
    return str(status["containerID"]), int(status["restartCount"])


def _run(*command: str | Path, home: Path = Path("/nonexistent")) -> str:
    environment = {**os.environ, "HOME": str(home)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # detached while we looked
        return ""
