"""A CSI driver of others without a single sidecar: the agent provisions for it, registers it, publishes its capacity.

csi-driver-host-path of the Kubernetes project, built from its Go module, runs on one of two real nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peer import peer
from cluster.processes import Processes
from tests.e2e.control_plane import helm_program
from tests.e2e.machines import GIB, SYSTEM, Machines, container, pod
from tests.programs import found

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1800)]
DRIVER, KEY = "hostpath.csi.k8s.io", "topology.hostpath.csi/node"
CLASS = "hostpath-slow"
STATE = "/var/lib/hostpath-test"
SIZE = "3Gi"


def _objects() -> list[dict[str, Any]]:
    spec = {"attachRequired": False, "podInfoOnMount": True, "storageCapacity": True}
    meta = {"metadata": {"name": DRIVER}}
    storage_class = {
        "metadata": {"name": CLASS},
        "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": {"kind": "slow"},
    }
    return [
        {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", **meta, "spec": spec},
        {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", **storage_class},
    ]


def _pod(name: str, size: str) -> dict[str, Any]:
    body = pod(name, size, "sleep 100000")
    body["spec"]["terminationGracePeriodSeconds"] = 1  # with none the pod is gone before its volume is unmounted
    (volume,) = body["spec"]["volumes"]
    volume["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"] = CLASS
    return body


def _listed(machines: Machines, node: str) -> dict[str, list[str]]:
    drivers = machines.plane.get("csinode", node)["spec"]["drivers"]
    return {driver["name"]: driver.get("topologyKeys", []) for driver in drivers or []}


def _capacities(machines: Machines) -> dict[str, int]:
    """Node -> bytes for the class."""
    found = machines.plane.get("-n", SYSTEM, "csistoragecapacities")["items"]
    mine = [item for item in found if item["storageClassName"] == CLASS]
    return {item["nodeTopology"]["matchLabels"][KEY]: to_bytes(item["capacity"]) for item in mine}


@pytest.fixture
def served(machines: Machines) -> Iterator[Machines]:
    """The machines with the driver on the first node, served by the agents; afterwards without."""
    program = found(peer.HOSTPATH)
    node, plane = machines.node("node-1"), machines.plane
    socket = f"/var/lib/kubelet/plugins/{DRIVER}/csi.sock"
    node.inside("mkdir", "-p", str(Path(socket).parent), STATE)
    processes = Processes(plane.folder / "processes")
    flags = [f"-drivername={DRIVER}", "-nodeid=node-1", f"-endpoint=unix://{socket}", f"-statedir={STATE}"]
    try:
        processes.start(
            "hostpath", [*node.enter(), program, *flags, f"-capacity=slow={SIZE}", "-check-volume-lifecycle", "-v=3"]
        )
        plane.apply(*_objects())
        machines.change(helm_program(), drivers={DRIVER: KEY})
        yield machines
    finally:
        plane.kubectl("delete", "storageclass", CLASS, "--ignore-not-found")
        plane.until("its capacity is published no more", lambda: not _capacities(machines))
        plane.kubectl("delete", "csidriver", DRIVER, "--ignore-not-found")
        machines.change(helm_program())
        processes.end("hostpath")
        node.inside("rm", "-rf", str(Path(socket).parent), STATE)
        plane.until("the kubelet has forgotten it", lambda: DRIVER not in _listed(machines, "node-1"))


def test_a_driver_of_others_is_provisioned_for(served: Machines) -> None:
    plane = served.plane
    plane.until("the kubelet lists it", lambda: _listed(served, "node-1").get(DRIVER) == [KEY])
    plane.until("its capacity is published", lambda: _capacities(served) == {"node-1": to_bytes(SIZE)})
    assert DRIVER not in _listed(served, "node-2")
    with served.removed("other", "too-large"):
        plane.apply(_pod("other", "1Gi"))
        assert served.wait_ready("other") == "node-1"
        uid = served.uid("other-disk")
        volume = plane.get("pv", f"pvc-{uid}")
        assert volume["spec"]["csi"]["driver"] == DRIVER
        assert volume["spec"]["csi"]["volumeAttributes"]["storage.kubernetes.io/csiProvisionerIdentity"].endswith(
            f"-{DRIVER}-node-1"
        )
        assert volume["metadata"]["annotations"][names.PROVISIONED_BY] == DRIVER
        assert volume["status"]["phase"] == "Bound"
        served.shell("other", "echo kept > /data/file")
        assert served.inside("node-1", f"cat {STATE}/*/file").strip() == "kept"
        plane.until("its room is counted", lambda: _capacities(served) == {"node-1": to_bytes(SIZE) - GIB})

        plane.apply(_pod("too-large", "2500Mi"))
        plane.until("a pod that does not fit waits", lambda: _waits(served, "too-large"))
        before = container(plane.get("pod", "other"))
        plane.kubectl("delete", "pod", "too-large")

        served.restart_agents()  # an upgrade: the pod goes on, and the new agent deletes what the old one made
        assert container(plane.get("pod", "other")) == before
        assert served.shell("other", "cat /data/file").strip() == "kept"
        plane.kubectl("delete", "pod", "other")
        plane.until("nothing is left", lambda: not _left(served, uid))
        plane.until("its room is back", lambda: _capacities(served) == {"node-1": to_bytes(SIZE)})


def _waits(machines: Machines, name: str) -> bool:
    conditions = machines.plane.get("pod", name)["status"].get("conditions", [])
    return any("did not have enough free storage" in json.dumps(condition) for condition in conditions)


def _left(machines: Machines, uid: str) -> list[str]:
    made = machines.inside("node-1", f"find {STATE} -mindepth 1 -maxdepth 1 -type d").splitlines()
    return machines.left(uid) + made
