"""A node with a kubelet, and the two sets of programs that serve its claims and snapshots, one after the other.

tonnage: one agent, and our controller as the snapshot controller. Upstream: csi-driver-host-path with
external-provisioner, external-resizer and csi-snapshotter on the node, and the snapshot-controller with distributed
snapshots. Each program has an account of its own, by which the audit log tells them apart.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from benchmarks.kubernetes import stacks
from benchmarks.kubernetes.plane import Plane
from benchmarks.kubernetes.stacks import GO_DRIVER, GO_NAMESPACE
from benchmarks.peer import peer
from cluster.processes import Failed, Processes
from tests.integration.third_party import programs

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CSI_NODES
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation

ROOMY = "100Gi"
READY = 120.0
KUBELET = "/var/lib/kubelet"
_OWN_FOLDER = "/var/lib/bench"
_ACCOUNTS = ("csi-resizer", "csi-snapshotter", "snapshot-controller")
_REGISTRAR = """
import asyncio, sys
from pathlib import Path
from tonnage.csi.driver.registration import Registration

async def main():
    await Registration(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""
"""In the place of node-driver-registrar, which is no Go module that can be built."""


@dataclass(frozen=True)
class Served:
    """Programs that work. storage_class, snapshot_class: of their driver."""

    name: str
    driver: str
    storage_class: str
    snapshot_class: str
    processes: Processes


async def install(cluster: Plane) -> None:
    """Objects of both: kinds of snapshots, classes, accounts and rights."""
    await stacks.install(cluster)
    await cluster.apply(manifests.template("snapshot-crds.yaml"))
    await cluster.apply(manifests.render_part("rbac-snapshots.yaml", Installation(snapshot_controller=True)))
    await cluster.apply(yaml.safe_dump_all([*_accounts(), *map(_storage_class, _CLASSES)]))
    await _until("the kinds of snapshots are served", lambda: _applied(cluster))


_CLASSES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "grows-tonnage": (names.DRIVER, {names.CSI_FSTYPE: "xfs"}),
    "grows-upstream": (GO_DRIVER, {"kind": "fast"}),
}
"""Storage classes with their driver and parameters; snapshot classes have the same names."""


def _storage_class(name: str) -> dict[str, Any]:
    driver, parameters = _CLASSES[name]
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": driver,
        "parameters": dict(parameters),
        "allowVolumeExpansion": True,
        "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
    }


async def _applied(cluster: Plane) -> bool:
    """Whether the snapshot classes could be made: a new kind is served a little later."""
    head = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "deletionPolicy": "Delete"}
    made = [{**head, "metadata": {"name": name}, "driver": driver} for name, (driver, _) in _CLASSES.items()]
    try:
        await cluster.apply(yaml.safe_dump_all(made))
    except RuntimeError:
        return False
    return True


def _accounts() -> list[dict[str, Any]]:
    """Of upstream's sidecars, with all rights: what they may do is not of interest here."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    found: list[dict[str, Any]] = []
    for name in _ACCOUNTS:
        account = {"name": name, "namespace": GO_NAMESPACE}
        binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
        subjects = [{"kind": "ServiceAccount", **account}]
        found.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        found.append({**binding, "metadata": {"name": name}, "roleRef": role, "subjects": subjects})
    return found


@asynccontextmanager
async def tonnage(cluster: Plane) -> AsyncIterator[Served]:
    """Our agent on the node, and our controller."""
    (node,) = cluster.nodes
    agent = await cluster.identity(names.SYSTEM_NAMESPACE, "tonnage-node", node)
    ours, inside = [sys.executable, "-m", "tonnage"], enter(cluster, node)
    pool = f"image:{_OWN_FOLDER}/pool,name=scratch,size={ROOMY},sparse=yes,overcommit=yes"
    async with started(cluster, "tonnage") as processes:
        processes.start(
            "agent",
            [*inside, *ours, "node", f"--node-name={node}", f"--kubeconfig={agent}", f"--kubelet={KUBELET}",
             "--log-level=warning", "--scope=label", f"--pool={pool}"],
        )  # fmt: skip
        await start_controller(cluster, processes)
        served = Served("tonnage", names.DRIVER, "grows-tonnage", "grows-tonnage", processes)
        await _ready(cluster, served)
        yield served


async def start_controller(cluster: Plane, processes: Processes) -> None:
    """Our controller as the snapshot controller."""
    config = await cluster.identity(names.SYSTEM_NAMESPACE, "tonnage-controller", cluster.nodes[0])
    processes.start(
        "controller",
        [sys.executable, "-m", "tonnage", "controller", f"--kubeconfig={config}", "--identity=one",
         f"--namespace={names.SYSTEM_NAMESPACE}", "--snapshot-controller"],
    )  # fmt: skip


@asynccontextmanager
async def upstream(cluster: Plane) -> AsyncIterator[Served]:
    """csi-driver-host-path with upstream's sidecars. Raises FileNotFoundError where they are not built."""
    built = _programs()
    (node,) = cluster.nodes
    place = f"{KUBELET}/plugins/{GO_DRIVER}"
    socket, inside = f"{place}/csi.sock", enter(cluster, node)
    names_of = ("csi-provisioner", *_ACCOUNTS)
    configs = {name: await cluster.identity(GO_NAMESPACE, name, node) for name in names_of}
    environment = {"NODE_NAME": node, "NAMESPACE": GO_NAMESPACE, "POD_NAME": f"csi-provisioner-{node}"}
    flags = {
        "csi-provisioner": [
            "--enable-capacity", "--capacity-ownerref-level=0", "--node-deployment=true", "--strict-topology=true",
            "--immediate-topology=false", "--feature-gates=Topology=true",
        ],
        "csi-resizer": [],
        "csi-snapshotter": ["--node-deployment=true"],
    }  # fmt: skip
    async with started(cluster, "upstream") as processes:
        await _call(*inside, "mkdir", "-p", place, f"{_OWN_FOLDER}/hostpath")
        processes.start(
            "driver",
            [*inside, built["hostpath"], f"--drivername={GO_DRIVER}", f"--endpoint=unix://{socket}",
             f"--statedir={_OWN_FOLDER}/hostpath", f"--nodeid={node}", f"--capacity=fast={ROOMY}"],
        )  # fmt: skip
        registry = f"{KUBELET}/plugins_registry"
        processes.start("registrar", [*inside, sys.executable, "-c", _REGISTRAR, GO_DRIVER, socket, registry])
        for name, more in flags.items():
            command: list[str | Path] = [
                *inside,
                built[name],
                f"--csi-address={socket}",
                f"--kubeconfig={configs[name]}",
                *more,
            ]
            processes.start(name, command, environment=environment)
        processes.start(
            "snapshot-controller",
            [built["snapshot-controller"], f"--kubeconfig={configs['snapshot-controller']}",
             "--enable-distributed-snapshotting=true"],
        )  # fmt: skip
        served = Served("upstream", GO_DRIVER, "grows-upstream", "grows-upstream", processes)
        await _ready(cluster, served)
        yield served


def _programs() -> dict[str, Path]:
    """By name. Blocking. Raises FileNotFoundError."""
    found = {
        "hostpath": peer.program(),
        "csi-provisioner": peer.program(peer.PROVISIONER),
        "csi-snapshotter": peer.program(peer.SNAPSHOTTER),
        **{name: programs.program(name).path for name in ("csi-resizer", programs.SNAPSHOTS)},
    }
    if missing := [name for name, path in found.items() if path is None or not path.exists()]:
        raise FileNotFoundError(f"{', '.join(missing)}: not built (make programs)")
    return {name: path for name, path in found.items() if path is not None}


def enter(cluster: Plane, node: str) -> list[str]:
    """The command that runs another one inside the node."""
    found = json.loads((cluster.folder / "cluster.json").read_text())
    return list(found["nodes"][node]["enter"])


async def _call(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        raise Failed(f"{' '.join(command)} ended with {process.returncode}")


@asynccontextmanager
async def started(cluster: Plane, name: str) -> AsyncIterator[Processes]:
    """The processes of a stack, ended afterwards."""
    processes = Processes(cluster.folder.parent / f"{name}-processes")
    try:
        yield processes
    finally:
        for one in reversed(processes.names()):
            await asyncio.to_thread(processes.end, one)


async def _ready(cluster: Plane, served: Served) -> None:
    """Until the kubelet lists the driver and its capacity is published. Raises Failed."""

    async def holds() -> bool:
        if ended := [name for name in served.processes.names() if served.processes.pid(name) is None]:
            tail = served.processes.log(ended[0]).read_text(errors="replace")[-2000:]
            raise Failed(f"{ended[0]} ended: {tail}")
        listed = (await cluster.client.get(CSI_NODES, cluster.nodes[0])).spec.drivers
        capacities = (await cluster.client.list(CAPACITIES)).items
        classes = {found.storage_class_name for found in capacities}
        return served.driver in {driver.name for driver in listed} and served.storage_class in classes

    await _until(f"{served.name} is ready", holds)


async def _until(what: str, holds: Any) -> None:
    """Raises Failed."""
    deadline = time.monotonic() + READY
    while not await holds():
        if time.monotonic() > deadline:
            raise Failed(f"not so after {READY:.0f} s: {what}")
        await asyncio.sleep(0.2)
