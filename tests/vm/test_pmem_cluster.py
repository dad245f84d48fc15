"""PMEM-CSI's walk-through with persistent memory and a real kubelet: the node is a guest with an NVDIMM, the control
plane runs outside, and the agent is a pod of our own image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import network, programs
from cluster.__main__ import BUSYBOX, down, up
from cluster.processes import free_port
from deploy.image import debian
from deploy.image.build import build
from tests.e2e.control_plane import ControlPlane
from tests.e2e.machines import SYSTEM, ready
from tests.vm.guests import HERE, Rig

from tonnage.kubernetes.api import names
from tonnage.tools.ops.install.options import GROUP_LABEL, IMAGE

pytestmark = [pytest.mark.qemu, pytest.mark.alone, pytest.mark.real, pytest.mark.timeout(2400)]
EXAMPLES = HERE.parent.parent / "examples" / "pmem-csi"
CLASS = "pmem-csi-sc-late-binding"
POOL = "pmem:pmem:region0,mode=lvm,name=pmem,size=30716Mi"
NODE = "node-2"
APP, CLAIM = "my-csi-app", "pmem-csi-pvc-late-binding"
PATIENCE = 1500.0
"""Seconds: a guest is ten times slower than the machine, which may do other things as well."""


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory, qemu: Rig) -> Iterator[ControlPlane]:
    """A cluster of a node without persistent memory and a guest with it, tonnage installed on both."""
    if qemu.missing:
        pytest.skip(qemu.missing)
    if os.geteuid() != 0:
        pytest.skip("needs root: kubelets and containers")
    place = tmp_path_factory.mktemp("p")  # a short name: paths of sockets have at most 104 bytes
    folder = place / "cluster"
    try:
        kubectl, image = programs.kubectl(), build(place / "tonnage.tar", IMAGE)
        found = up(folder, 1, images=[image.file], guests=1)
    except (programs.Missing, debian.Missing) as reason:
        pytest.skip(f"no real Kubernetes: {reason}")
    try:
        with guest(folder, image.file):
            made = ControlPlane(folder, Path(str(found["kubeconfig"])), str(found["server"]), kubectl)
            install(made)
            yield made
    finally:
        down(folder)


@contextmanager
def guest(folder: Path, image: Path) -> Iterator[None]:
    """The second node in QEMU. Connections to its address on this machine come to its kubelet."""
    (folder / "guest").mkdir()
    address, own_port = network.of(folder).node(2), str(free_port())
    port = json.loads((folder / "cluster.json").read_text())["server"].rpartition(":")[2]
    images = (folder / "pause.tar", folder / "busybox.tar", image)
    node = [sys.executable, "-m", "tests.vm.guest_node", str(folder), "2", port, own_port, *map(str, images)]
    words = [sys.executable, str(HERE / "qemu.py"), "--nvdimm", "32G", "--memory", "4G", "--timeout", str(PATIENCE)]
    words += ["--forward", f"127.0.0.1:{own_port}", "--", *node]
    # The guest has that address as well, and drops what comes from it: what it gets has to come from loopback.
    forward = [sys.executable, "-I", str(Path(network.__file__).with_name("forward.py")), address, "10250"]
    with held_address(address), running(folder / "forward.log", [*forward, "127.0.0.1", own_port]) as passing:
        with running(folder / "guest.log", words) as machine:
            try:
                yield
            finally:
                (folder / "stop").touch()
                code = machine.wait(PATIENCE)
                passing.terminate()
        assert code == 0, (folder / "guest.log").read_text(errors="replace")[-4000:]


@contextmanager
def held_address(address: str) -> Iterator[None]:
    """An address of this machine."""
    subprocess.run(["ip", "addr", "replace", f"{address}/32", "dev", "lo"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "addr", "del", f"{address}/32", "dev", "lo"], check=True)


@contextmanager
def running(output: Path, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until it has ended."""
    with output.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=HERE.parent.parent) as process:
        yield process


def install(plane: ControlPlane) -> None:
    """Our objects. The guest is of the group of nodes with persistent memory."""
    plane.until(
        "the guest's kubelet is there", lambda: not plane.try_kubectl("get", "node", NODE).returncode, seconds=PATIENCE
    )
    plane.kubectl("label", "node", NODE, f"{GROUP_LABEL}=pmem")
    words = [sys.executable, "-m", "tonnage", "manifests", "--group", POOL, "--class", f"{CLASS},pool=pmem"]
    words += ["--kubernetes", programs.version()]
    made = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    plane.kubectl("apply", "--validate=strict", "-f", "-", stdin=made)
    plane.until("capacity is published", lambda: set(capacities(plane)) == {NODE}, seconds=PATIENCE)


def capacities(plane: ControlPlane) -> dict[str, str]:
    """Node -> its capacity for the class, of nodes that have any."""
    return {
        item["nodeTopology"]["matchLabels"][names.TOPOLOGY_NODE]: item["capacity"]
        for item in plane.get("-n", SYSTEM, "csistoragecapacities")["items"]
        if item["storageClassName"] == CLASS and item["capacity"] != "0"
    }


def app() -> dict[str, Any]:
    """The walk-through's pod, with an image that is there."""
    import yaml

    body: dict[str, Any] = yaml.safe_load((EXAMPLES / "pmem-app-late-binding.yaml").read_text())
    body["spec"]["containers"][0]["image"] = BUSYBOX
    body["spec"]["terminationGracePeriodSeconds"] = 0
    return body


def test_the_walk_through_with_late_binding(plane: ControlPlane) -> None:
    assert capacities(plane) == {NODE: "30716Mi"}
    plane.kubectl("apply", "-f", str(EXAMPLES / "pmem-pvc-late-binding.yaml"))
    assert plane.get("pvc", CLAIM)["status"]["phase"] == "Pending"
    plane.apply(app())
    plane.until("the pod runs", lambda: ready(plane.get("pod", APP)), seconds=PATIENCE)
    assert plane.get("pod", APP)["spec"]["nodeName"] == NODE
    plane.until("capacity is less", lambda: capacities(plane) == {NODE: "26620Mi"}, seconds=PATIENCE)
    assert "dax" in plane.kubectl("exec", APP, "--", "grep", " /data ", "/proc/mounts")
    assert int(plane.kubectl("exec", APP, "--", "df", "-m", "/data").split()[-5]) >= 4096

    plane.kubectl("delete", "pod", APP)
    plane.kubectl("delete", "pvc", CLAIM)
    plane.until("all capacity is back", lambda: capacities(plane) == {NODE: "30716Mi"}, seconds=PATIENCE)
