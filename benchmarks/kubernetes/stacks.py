"""Who makes volumes: tonnage, the Go sidecar with its example driver, or nobody at all at no cost."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import yaml
from benchmarks.kubernetes.plane import RAISED, Plane, forget_pod
from benchmarks.peer import peer
from cluster.processes import Failed, Processes, free_port

from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiAlreadyExistsError, ApiConflictError, ApiNotFoundError, PreconditionError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, VOLUMES
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request
from tonnage.provisioning.claims.bind import bind
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation

GO_DRIVER, GO_CLASS, GO_TOPOLOGY = "hostpath.csi.k8s.io", "csi-hostpath-fast", "topology.hostpath.csi/node"
FREE_DRIVER, FREE_CLASS, FREE_TOPOLOGY = "free.example.com", "free", "free.example.com/node"
DRIVERS = {names.DRIVER: names.TOPOLOGY_NODE, GO_DRIVER: GO_TOPOLOGY, FREE_DRIVER: FREE_TOPOLOGY}
"""Drivers and their topology keys, as nodes list them."""
POOL = "100Gi"
GO_NAMESPACE = "hostpath"
_READY = 180.0
_NOT_INSTALLED = ("DaemonSet", "Deployment", "PodDisruptionBudget")


@dataclass
class Stack:
    """A stack at work. pids: its processes. endpoints: their metrics. storage_class: "" for pods without volumes.

    scheduler: who places its pods, "" for kube-scheduler.
    """

    name: str
    storage_class: str
    pids: Sequence[int] = ()
    endpoints: Sequence[str] = field(default=(), repr=False)
    scheduler: str = ""

    def cpu(self) -> float:
        """Seconds of processor time that it has had."""
        return sum(_cpu(pid) for pid in self.pids)

    def failed(self) -> float:
        """CreateVolume calls that failed."""
        return self._sum("controller_persistentvolumeclaim_provision_failed_total")

    def rescheduled(self) -> float:
        """Claims that were sent back for another node."""
        return self._sum("tonnage_claims_rescheduled_total")

    def _sum(self, metric: str) -> float:
        total = 0.0
        for endpoint in self.endpoints:
            with urllib.request.urlopen(endpoint, timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            total += sum(float(line.split()[-1]) for line in lines if line.startswith(metric))
        return total


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process in MiB (proc(5), smaps_rollup)."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, _, rest = line.partition(":")
        found[key] = int(rest.split()[0]) / 1024
    return found["Rss"], found["Pss"]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def install(plane: Plane) -> None:
    """Objects of all stacks: tonnage's but for what runs as pods, the classes and rights of the others.

    The free provisioner's claims are labelled as tonnage's are, so that it is no worse off.
    """
    chosen = Installation(drivers={FREE_DRIVER: FREE_TOPOLOGY})
    ours = [o for o in yaml.safe_load_all(manifests.render(chosen)) if o and o["kind"] not in _NOT_INSTALLED]
    await plane.apply(yaml.safe_dump_all([*ours, *_others()]))
    await _until_labelled(plane.client)


async def _until_labelled(client: Client) -> None:
    """The API server takes a new policy into use a little later. Raises Failed."""
    body = {
        "metadata": {"name": "probe", "annotations": {names.SELECTED_NODE: "n"}},
        "spec": {
            "accessModes": [names.READ_WRITE_ONCE],
            "storageClassName": FREE_CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    request = Request("POST", CLAIMS.path("default"), {"dryRun": "All"}, msgspec.json.encode({**CLAIMS.head(), **body}))
    deadline = time.monotonic() + _READY
    while names.NODE_LABEL.encode() not in (answer := await client.transport.request(request)).body:
        if time.monotonic() > deadline:
            raise Failed(f"claims are not labelled: {answer.body[:1000]!r}")
        await asyncio.sleep(0.5)


def _others() -> list[Mapping[str, object]]:
    late = {"volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    storage, rbac = "storage.k8s.io/v1", "rbac.authorization.k8s.io/v1"
    account = {"kind": "ServiceAccount", "name": "csi-provisioner", "namespace": GO_NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": GO_NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {k: account[k] for k in ("name", "namespace")}},
        {
            "apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "csi-provisioner"},
            "roleRef": role, "subjects": [account],
        },
        {
            "apiVersion": storage, "kind": "CSIDriver", "metadata": {"name": GO_DRIVER},
            "spec": {"podInfoOnMount": True, "attachRequired": False, "storageCapacity": True},
        },
        {
            "apiVersion": storage, "kind": "StorageClass", "metadata": {"name": GO_CLASS},
            "provisioner": GO_DRIVER, "parameters": {"kind": "fast"}, **late,
        },
        {
            "apiVersion": storage, "kind": "CSIDriver", "metadata": {"name": FREE_DRIVER},
            "spec": {"attachRequired": False},
        },
        {
            "apiVersion": storage, "kind": "StorageClass", "metadata": {"name": FREE_CLASS},
            "provisioner": FREE_DRIVER, **late,
        },
    ]  # fmt: skip


@asynccontextmanager
async def none(plane: Plane, informers: Informers) -> AsyncIterator[Stack]:
    """Pods without volumes."""
    yield Stack("no volumes", "")


@asynccontextmanager
async def tonnage(plane: Plane, informers: Informers, *, room: str = POOL) -> AsyncIterator[Stack]:
    """One `tonnage node` a node, each a process with the token of its pod, over sparse image files.

    room: of each node.
    """
    stack = Stack("tonnage", names.SCRATCH_CLASS)
    async with processes_of(plane, "tonnage", names.SYSTEM_NAMESPACE, "tonnage-node") as (processes, configs):
        for node, config in configs.items():
            folder, port = plane.folder.parent / node, free_port()
            (folder / "k" / "plugins_registry").mkdir(parents=True, exist_ok=True)
            processes.start(
                node,
                [
                    sys.executable, "-m", "tonnage", "node", f"--node-name={node}", f"--kubeconfig={config}",
                    f"--kubelet={folder / 'k'}", f"--metrics=127.0.0.1:{port}", "--log-level=warning", "--scope=label",
                    f"--pool=image:{folder / 'pool'},name=scratch,size={room},sparse=yes,overcommit=yes",
                ],
            )  # fmt: skip
            stack.endpoints = [*stack.endpoints, f"http://127.0.0.1:{port}/metrics"]
        await ready(plane, stack, processes)
        stack.pids = [pid for node in configs if (pid := processes.pid(node))]
        yield stack


@asynccontextmanager
async def go(plane: Plane, informers: Informers, *, room: str = POOL) -> AsyncIterator[Stack]:
    """external-provisioner and csi-driver-host-path on each node, as upstream's kubernetes-distributed has them.

    room: of each node. Raises FileNotFoundError where they cannot be built.
    """
    provisioner, driver = peer.program(peer.PROVISIONER), peer.program()
    if provisioner is None or driver is None:
        raise FileNotFoundError("external-provisioner, csi-driver-host-path")
    stack = Stack("Go", GO_CLASS)
    async with processes_of(plane, "go", GO_NAMESPACE, "csi-provisioner") as (processes, configs):
        for node, config in configs.items():
            folder = plane.folder.parent / f"go-{node}"
            folder.mkdir(exist_ok=True)
            socket, port = folder / "csi.sock", free_port()
            processes.start(
                f"driver-{node}",
                [driver, f"--drivername={GO_DRIVER}", f"--endpoint=unix://{socket}", f"--statedir={folder}/state",
                 f"--nodeid={node}", f"--capacity=fast={room}"],
            )  # fmt: skip
            limits = (*RAISED, *(flag.replace("kube-api", "kube-api-capacity") for flag in RAISED))
            processes.start(
                node,
                [
                    provisioner, f"--csi-address={socket}", f"--kubeconfig={config}", "--enable-capacity",
                    "--capacity-ownerref-level=0", "--node-deployment=true", "--strict-topology=true",
                    "--immediate-topology=false", f"--http-endpoint=127.0.0.1:{port}",
                    *(limits if plane.raised else ()),
                ],
                environment={"NODE_NAME": node, "NAMESPACE": GO_NAMESPACE, "POD_NAME": f"csi-provisioner-{node}"},
            )  # fmt: skip
            stack.endpoints = [*stack.endpoints, f"http://127.0.0.1:{port}/metrics"]
        await ready(plane, stack, processes)
        stack.pids = [pid for name in processes.names() if (pid := processes.pid(name))]
        yield stack


@asynccontextmanager
async def processes_of(
    plane: Plane, stack: str, namespace: str, account: str
) -> AsyncIterator[tuple[Processes, dict[str, Path]]]:
    """A stack's processes, ended afterwards; a kubeconfig for each node."""
    processes = Processes(plane.folder.parent / f"{stack}-processes")
    configs = {node: await plane.identity(namespace, account, node) for node in plane.nodes}
    try:
        yield processes, configs
    finally:
        for name in processes.names():
            await asyncio.to_thread(processes.end, name)
        for node in plane.nodes:  # for a stack that comes again
            await forget_pod(plane.client, f"{account}-{node}", namespace)


async def ready(plane: Plane, stack: Stack, processes: Processes) -> None:
    """Until all its processes answer and every node's capacity is known. Raises Failed."""
    deadline = time.monotonic() + _READY
    while not (_answer(stack) and await _capacities(plane.client, stack.storage_class) >= len(plane.nodes)):
        ended = [name for name in processes.names() if processes.pid(name) is None]
        if ended or time.monotonic() > deadline:
            tails = "".join(f"\n{name}: {_tail(processes, name)}" for name in ended or processes.names())
            state = f"{', '.join(ended)} ended" if ended else f"it is not ready after {_READY:g} s"
            raise Failed(f"{stack.name}: {state}; the ends of the logs:{tails}")
        await asyncio.sleep(0.2)


def _tail(processes: Processes, name: str) -> str:
    return processes.log(name).read_text(errors="replace")[-1000:]


def _answer(stack: Stack) -> bool:
    try:
        stack.failed()
    except OSError:
        return False
    return True


async def _capacities(client: Client, storage_class: str) -> int:
    found = (await client.list(CAPACITIES)).items
    return sum(obj.storage_class_name == storage_class for obj in found)


@asynccontextmanager
async def free(plane: Plane, informers: Informers) -> AsyncIterator[Stack]:
    """A provisioner that costs nothing: no volume behind any PersistentVolume, but bound as tonnage binds."""
    made = _Free(plane.client, informers)
    await informers.of(CLAIMS).wait_synced()
    try:
        yield Stack("free", FREE_CLASS)
    finally:
        await made.close()


class _Free:
    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._tasks = Background("free")
        self._made: set[str] = set()
        self._closed = False
        informers.of(CLAIMS).cache.on_change(lambda old, new: self._claim(new))
        informers.of(VOLUMES).cache.on_change(lambda old, new: self._volume(new))

    def _claim(self, claim: PersistentVolumeClaim | None) -> None:
        if claim is None or self._closed or claim.spec.storage_class_name != FREE_CLASS:
            return
        sent = names.SELECTED_NODE in claim.metadata.annotations
        if sent and not claim.spec.volume_name and claim.metadata.uid not in self._made:
            self._made.add(claim.metadata.uid)
            self._tasks.start(self._provide(claim))

    async def _provide(self, claim: PersistentVolumeClaim) -> None:
        node = claim.metadata.annotations[names.SELECTED_NODE]
        expression = {"key": FREE_TOPOLOGY, "operator": "In", "values": [node]}
        name = names.volume_name(claim.metadata.uid)
        body = {
            "metadata": {"name": name, "annotations": {names.PROVISIONED_BY: FREE_DRIVER}},
            "spec": {
                "storageClassName": FREE_CLASS,
                "persistentVolumeReclaimPolicy": "Delete",
                "capacity": {"storage": "1Gi"},
                "accessModes": claim.spec.access_modes,
                "claimRef": to_builtins(refer(CLAIMS, claim)),
                "csi": {"driver": FREE_DRIVER, "volumeHandle": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
            },
        }
        with suppress(ApiAlreadyExistsError):
            volume = await self._client.create(VOLUMES, body)
            await bind(self._client, claim, volume)

    def _volume(self, volume: PersistentVolume | None) -> None:
        if volume is None or self._closed or volume.spec.storage_class_name != FREE_CLASS:
            return
        if volume.status.phase == "Released" and not volume.metadata.deleting:
            self._tasks.start(self._remove(volume))

    async def _remove(self, volume: PersistentVolume) -> None:
        with suppress(ApiNotFoundError, ApiConflictError, PreconditionError):
            await self._client.delete(VOLUMES, volume.metadata.name)

    async def close(self) -> None:
        self._closed = True
        await self._tasks.close()
