"""Story 7: a driver that knows nothing of ephemeral volumes serves them: csi-driver-host-path as upstream builds it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.peer import peer
from tests.clusters import Cluster
from tests.stories.objects import apply, ephemeral, pod, run, sh

from tonnage.kubernetes.api.quantity import to_bytes

pytestmark = [pytest.mark.real, pytest.mark.programs]
DRIVER, CLASS, SIZE = "hostpath.csi.k8s.io", "hostpath-slow", "3Gi"


@dataclass
class HostPathBox:
    """The box, and the folder where the driver has its volumes."""

    box: Cluster
    state: Path

    def capacity(self) -> int:
        """Published bytes of the class, -1 for none."""
        found = self.box.get("csistoragecapacities", "-A")["items"]
        return next((to_bytes(item["capacity"]) for item in found if item["storageClassName"] == CLASS), -1)


@pytest.fixture
def hostpath(make_cluster: Callable[..., Cluster], go_program: Callable[[str], Path]) -> Iterator[HostPathBox]:
    program = go_program(peer.HOSTPATH)
    box = make_cluster()
    folder = box.home / "hostpath"
    folder.mkdir()
    socket = f"unix://{folder}/csi.sock"
    box.arguments = ("--csi-endpoint", socket)
    flags = [f"-drivername={DRIVER}", "-nodeid=node-1", f"-endpoint={socket}", f"-statedir={folder}/state"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), *flags, f"-capacity=slow={SIZE}", "-check-volume-lifecycle"], stdout=log, stderr=log
        )
    try:
        box.up()
        spec = {"attachRequired": False, "podInfoOnMount": True, "storageCapacity": True}
        parts = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer", "parameters": {"kind": "slow"}}
        kind = {"apiVersion": "storage.k8s.io/v1"}
        apply(
            box,
            {**kind, "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": spec},
            {**kind, "kind": "StorageClass", "metadata": {"name": CLASS}, **parts},
        )
        yield HostPathBox(box, folder / "state")
    finally:
        box.down("--purge")
        process.terminate()
        process.wait(timeout=120)


def test_story_7_a_driver_without_ephemeral_code_serves_scratch_space(hostpath: HostPathBox) -> None:
    box = hostpath.box
    box.until("its capacity is published", lambda: hostpath.capacity() == to_bytes(SIZE))
    run(box, pod("scratch", ephemeral("data", "1Gi", CLASS)))
    sh(box, "scratch", "echo kept > /data/file")
    assert [file.read_text() for file in hostpath.state.glob("*/file")] == ["kept\n"]
    box.until("its volume is counted", lambda: hostpath.capacity() == to_bytes("2Gi"))

    apply(box, pod("too-large", ephemeral("data", "2500Mi", CLASS)))

    def waits() -> bool:
        conditions = box.get("pod", "too-large")["status"].get("conditions", [])
        return "did not have enough free storage" in json.dumps(conditions)

    box.until("a pod that does not fit waits", waits)
    box.kubectl("delete", "pod", "scratch", "too-large", "--grace-period=1", "--timeout=60s")
    box.until("nothing is left", lambda: not box.get("pvc,pv")["items"] and not list(hostpath.state.glob("*/")))
    box.until("all capacity is published again", lambda: hostpath.capacity() == to_bytes(SIZE))
