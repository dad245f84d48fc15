"""Attaching in a box with drivers and sidecars of others: csi-driver-host-path, and upstream's external-attacher."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peer import peer
from tests.clusters import Cluster
from tests.integration.test_attach import NetworkBox, claim, network, pod
from tests.integration.third_party.sidecar_stack import SPACE, SidecarStack

from tonnage_box.testing.network_driver import NETWORK_DRIVER

pytestmark = [pytest.mark.real, pytest.mark.programs, pytest.mark.timeout(900)]
__all__ = ["network"]
HOSTPATH = "hostpath.csi.k8s.io"
OBJECTS = f"""
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {HOSTPATH}}}
spec: {{attachRequired: true, podInfoOnMount: true}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: net}}
provisioner: {HOSTPATH}
volumeBindingMode: WaitForFirstConsumer
"""


@pytest.fixture
def hostpath(make_cluster: Callable[..., Cluster], go_program: Callable[[str], Path]) -> Iterator[Cluster]:
    """A box with csi-driver-host-path, which rejects to mount what is not attached."""
    program = go_program(peer.HOSTPATH)
    box = make_cluster()
    socket = f"unix://{box.home}/csi.sock"
    box.arguments = ("--csi-endpoint", socket)
    flags = [f"-drivername={HOSTPATH}", "-nodeid=node-1", f"-endpoint={socket}", f"-statedir={box.home}/state"]
    with (box.home / "hostpath.log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), *flags, "-enable-attach", "-check-volume-lifecycle", "-v=5"], stdout=log, stderr=log
        )
    try:
        box.up()
        box.kubectl("apply", "-f", "-", stdin=OBJECTS)
        yield box
    finally:
        box.down("--purge")
        process.terminate()
        process.wait(timeout=60)


def _apply(box: Cluster, *objects: dict[str, Any]) -> None:
    box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def test_host_path_attaches_without_external_attacher(hostpath: Cluster) -> None:
    _apply(hostpath, claim("kept"), pod("first", "kept", "node-1", "echo first > /data/file"))
    hostpath.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=180s")
    (one,) = hostpath.get("volumeattachments")["items"]
    assert one["status"]["attached"] is True
    assert one["metadata"]["finalizers"] == ["external-attacher/hostpath-csi-k8s-io"]
    hostpath.kubectl("delete", "pod/first", "--timeout=120s")
    hostpath.until("it is detached", lambda: not hostpath.get("volumeattachments")["items"])
    log = (hostpath.home / "hostpath.log").read_text()
    assert log.index("NodeUnstageVolume") < log.rindex("ControllerUnpublishVolume"), "never while it is mounted"
    _apply(hostpath, pod("second", "kept", "node-1"))
    hostpath.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=180s")
    assert hostpath.kubectl("exec", "second", "--", "cat", "/data/file") == "first\n"
    hostpath.kubectl("delete", "pod/second", "pvc/kept", "--timeout=120s")
    hostpath.until("nothing is left", lambda: not hostpath.get("pv,volumeattachments")["items"])


@pytest.fixture
def beside(network: NetworkBox, go_program: Callable[[str], Path]) -> Iterator[SidecarStack]:
    """Upstream's external-attacher for the driver that the box serves."""
    go_program("csi-attacher")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    _apply(network.box, namespace)
    stack = SidecarStack(network.box, go_program)
    stack.add_sidecar("csi-attacher", "beside", socket=network.box.home / "node-1.sock")
    yield stack
    stack.close()


def test_both_attach_and_nothing_is_lost(network: NetworkBox, beside: SidecarStack) -> None:
    (sidecar,) = beside.processes.values()
    network.box.until("the sidecar serves the driver", lambda: NETWORK_DRIVER in sidecar.text)
    for number in range(4):
        node = f"node-{1 + number % 2}"
        network.apply(claim(f"both-{number}"), pod(f"both-{number}", f"both-{number}", node))
    for number in range(4):
        network.box.kubectl("wait", "--for=condition=Ready", f"pod/both-{number}", "--timeout=180s")
    assert sorted(nodes for found in network.volumes().values() for nodes in found) == [
        "node-1", "node-1", "node-2", "node-2",
    ]  # fmt: skip
    network.box.kubectl("delete", *(f"pod/both-{number}" for number in range(4)), "--timeout=180s")
    network.detached()
    network.box.kubectl("delete", *(f"pvc/both-{number}" for number in range(4)), "--timeout=180s")
    network.box.until("nothing is left", lambda: not network.box.get("pv")["items"])


def test_a_sidecar_that_ends_leaves_its_volumes_to_tonnage(network: NetworkBox, beside: SidecarStack) -> None:
    network.apply(claim("moved"), pod("moved", "moved", "node-1"))
    network.box.kubectl("wait", "--for=condition=Ready", "pod/moved", "--timeout=180s")
    (one,) = network.box.get("volumeattachments")["items"]
    assert one["metadata"]["finalizers"] == ["external-attacher/network-example-com"]
    beside.close()
    beside.processes.clear()
    network.box.kubectl("delete", "pod/moved", "pvc/moved", "--timeout=180s")
    network.detached()
