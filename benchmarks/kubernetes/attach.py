"""Attaching and detaching volumes: tonnage's controller beside upstream's external-attacher, on one control plane.

Both serve the same driver, a process that attaches in memory, one after the other. The benchmark makes and deletes the
VolumeAttachments, as Kubernetes does for pods. Time is from there to status.attached, and to the end of the object.
Writes are those of the own account of each, of the API server's audit log.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from benchmarks.figure import Figure
from benchmarks.kubernetes.plane import Plane, plane
from cluster import programs
from cluster.processes import Processes
from tests.integration.third_party import programs as go_programs

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CLAIMS, VOLUMES
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation
from tonnage_box.api.wait import until, until_gone
from tonnage_box.testing.network_driver import NETWORK_DRIVER
from tonnage_box.testing.wait import wait_until_served

MOST_RUNS = 1
MANY = 100
ONE_BY_ONE = 20
WAIT = 120.0
UPSTREAM, OURS = "csi-attacher", "tonnage-controller"


@dataclass
class AttachTimes:
    """Of one stack, in seconds and writes a volume. single: one at a time; many: all at once."""

    attach_one: list[float] = field(default_factory=list)
    detach_one: list[float] = field(default_factory=list)
    attach_many: float = 0.0
    detach_many: float = 0.0
    writes: float = 0.0


async def run() -> list[Figure]:
    """Both, one after the other; none where Kubernetes or external-attacher are not built."""
    attacher = go_programs.program(UPSTREAM).path
    if not attacher.exists():
        print(f"attach: {UPSTREAM} is not built (make programs)", file=sys.stderr)
        return []
    try:
        async with plane(nodes=1, raised=True, drivers={NETWORK_DRIVER: names.HOSTNAME_LABEL}) as cluster:
            await _install(cluster)
            found = {}
            async with _driver(cluster) as socket:
                for name, command in _stacks(attacher, socket).items():
                    found[name] = await _measure(cluster, name, command)
    except programs.Missing as reason:
        print(f"attach: {reason}", file=sys.stderr)
        return []
    return figures(found[OURS], found[UPSTREAM])


def _stacks(attacher: Path, socket: Path) -> dict[str, list[str]]:
    """Account -> command, without the kubeconfig."""
    ours = [sys.executable, "-m", "tonnage", "controller", "--identity=one"]
    raised = ["--kube-api-qps=1000", "--kube-api-burst=2000"]
    return {
        UPSTREAM: [str(attacher), f"--csi-address={socket}", *raised],
        OURS: [*ours, f"--namespace={names.SYSTEM_NAMESPACE}", f"--attach-endpoint=unix://{socket}"],
    }


def figures(ours: AttachTimes, theirs: AttachTimes) -> list[Figure]:
    """Ours beside upstream's."""
    pairs = [
        ("attach one volume, median", statistics.median(ours.attach_one), statistics.median(theirs.attach_one), "s"),
        ("detach one volume, median", statistics.median(ours.detach_one), statistics.median(theirs.detach_one), "s"),
        (f"attach {MANY} volumes", ours.attach_many, theirs.attach_many, "s"),
        (f"detach {MANY} volumes", ours.detach_many, theirs.detach_many, "s"),
        ("API writes for a volume's first attachment and detachment", ours.writes, theirs.writes, ""),
    ]
    return [
        Figure(name, mine, unit, other=other, other_name="external-attacher", at_most=1.0)
        for name, mine, other, unit in pairs
    ]


async def _install(cluster: Plane) -> None:
    chosen = Installation(attach_endpoints=["unix:///none.sock"])
    parts = ("namespace.yaml", "rbac-controller.yaml", "rbac-attach.yaml")
    await cluster.apply("---\n".join(manifests.render_part(part, chosen) for part in parts))
    account = {"name": UPSTREAM, "namespace": names.SYSTEM_NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": UPSTREAM}}
    driver = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": NETWORK_DRIVER}}
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {**head, "roleRef": role, "subjects": [{"kind": "ServiceAccount", **account}]},
        {**driver, "spec": {"attachRequired": True}},
    ]
    await cluster.apply(yaml.safe_dump_all(objects))


@asynccontextmanager
async def _driver(cluster: Plane) -> AsyncIterator[Path]:
    """The driver's process, with all volumes; its socket."""
    state = cluster.folder.parent / "storage"
    state.mkdir()
    handles = [_name(stack, n) for stack in (UPSTREAM, OURS) for n in range(MANY + ONE_BY_ONE)]
    (state / "volumes.json").write_text(json.dumps({name: {"size": 1 << 30, "nodes": {}} for name in handles}))
    processes = Processes(cluster.folder.parent / "driver-processes")
    socket = state / "csi.sock"
    processes.start("driver", [sys.executable, "-m", "tonnage_box.testing.network_driver", str(state), f"c={socket}"])
    try:
        await wait_until_served(socket, timeout=WAIT)
        yield socket
    finally:
        await asyncio.to_thread(processes.end, "driver")


async def _measure(cluster: Plane, name: str, command: Sequence[str]) -> AttachTimes:
    (node,) = cluster.nodes
    config = await cluster.identity(names.SYSTEM_NAMESPACE, name, node)
    processes = Processes(cluster.folder.parent / f"{name}-processes")
    flow = AttachFlow(cluster, name)
    for number in range(MANY + ONE_BY_ONE):
        await flow.make_volume(_name(name, number))
    for number in range(MANY + ONE_BY_ONE):
        await until(cluster.client, VOLUMES, _name(name, number), lambda one: one.status.phase == "Bound", seconds=WAIT)
    await cluster.audit.writes()
    processes.start("attacher", [*command, f"--kubeconfig={config}"])
    try:
        return await flow.run()
    finally:
        await asyncio.to_thread(processes.end, "attacher")


def _name(stack: str, number: int) -> str:
    return f"{stack}-{number}"


class AttachFlow:
    """What is measured of one stack."""

    def __init__(self, cluster: Plane, name: str) -> None:
        self._cluster, self._client, self._name = cluster, cluster.client, name

    async def make_volume(self, name: str) -> None:
        """A PV of a volume that the driver has, bound to a claim as that of each pod is."""
        csi = {"driver": NETWORK_DRIVER, "volumeHandle": name}
        common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        spec = {
            **common,
            "capacity": {"storage": "1Gi"},
            "csi": csi,
            "claimRef": {"name": name, "namespace": "default"},
        }
        await self._client.create(VOLUMES, {"metadata": {"name": name}, "spec": spec})
        claim = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
        await self._client.create(CLAIMS, {"metadata": {"name": name}, "spec": claim}, "default")

    async def run(self) -> AttachTimes:
        """One at a time, the first as a warm-up; then all at once."""
        found = AttachTimes()
        for number in range(ONE_BY_ONE):
            name = _name(self._name, MANY + number)
            began = time.monotonic()
            await self._attach(name)
            attached = time.monotonic()
            await self._detach(name)
            if number:
                found.attach_one.append(attached - began)
                found.detach_one.append(time.monotonic() - attached)
        many = [_name(self._name, number) for number in range(MANY)]
        began = time.monotonic()
        await asyncio.gather(*map(self._attach, many))
        found.attach_many = time.monotonic() - began
        began = time.monotonic()
        await asyncio.gather(*(self._client.delete(ATTACHMENTS, name) for name in many))
        await until_gone(self._client, ATTACHMENTS, seconds=WAIT)
        found.detach_many = time.monotonic() - began
        account = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{self._name}"
        writes = await self._cluster.audit.writes()
        found.writes = sum(write.done and write.user.username == account for write in writes) / (MANY + ONE_BY_ONE)
        return found

    async def _attach(self, name: str) -> None:
        source = {"persistentVolumeName": name}
        spec = {"attacher": NETWORK_DRIVER, "nodeName": self._cluster.nodes[0], "source": source}
        await self._client.create(ATTACHMENTS, {"metadata": {"name": name}, "spec": spec})
        await until(self._client, ATTACHMENTS, name, lambda one: one.attached, seconds=WAIT)

    async def _detach(self, name: str) -> None:
        await self._client.delete(ATTACHMENTS, name)
        await until_gone(self._client, ATTACHMENTS, seconds=WAIT)
