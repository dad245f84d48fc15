"""Volumes of images on real kubelets, from what the node's containerd has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.__main__ import BUSYBOX
from tests.e2e import pods
from tests.e2e.control_plane import helm_program
from tests.e2e.machines import Machines

from tonnage.csi.inline.image.attributes import IMAGE

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(1200)]
DRIVER = "image.tonnage.dev"
SOCKET = "/var/lib/kubelet/containerd.sock"
"""The same path on both nodes; each node's own is in a folder with the node's name."""

STORE = "/var/lib/kubelet/image-store"


@pytest.fixture
def with_images(machines: Machines) -> Iterator[Machines]:
    """The machines with volumes of images; afterwards without."""
    for name in machines.names:
        node = machines.node(name)
        node.inside("touch", SOCKET)
        node.inside("mount", "--bind", node.containerd_socket, SOCKET)
    try:
        machines.change(helm_program(), inline=[f"image,containerd={SOCKET}"], stores=[STORE])
        yield machines
    finally:
        machines.change(helm_program())
        machines.plane.kubectl("delete", "csidriver", DRIVER, "--ignore-not-found")
        for name in machines.names:
            machines.node(name).inside("umount", SOCKET)
            machines.node(name).inside("rm", "-rf", SOCKET, STORE)


def test_pods_share_an_image_that_their_nodes_containerd_has(with_images: Machines) -> None:
    machines, node = with_images, with_images.names[0]
    with pods.removed(machines, "pod/one", "pod/other", "pod/absent"):
        for name, image in (("one", BUSYBOX), ("other", BUSYBOX), ("absent", "test.local/absent:1")):
            body = pods.pod(name, "none", command="sleep 100000", node=node)
            body["spec"]["terminationGracePeriodSeconds"] = 1  # with 0, it is gone before its volume is unmounted
            volume = {"driver": DRIVER, "readOnly": True, "volumeAttributes": {IMAGE: image, "pullPolicy": "Never"}}
            body["spec"]["volumes"] = [{"name": "disk", "csi": volume}]
            machines.plane.apply(body)
        for name in ("one", "other"):
            pods.wait_ready(machines, name)
            machines.shell(name, "cmp /data/bin/busybox /bin/busybox")
            assert "Read-only file system" in machines.shell(name, "touch /data/new || true")
        machines.plane.until("its Event says why it waits", lambda: "test.local/absent:1" in _why(machines, "absent"))
        shared = _layers(machines, node)
        assert len(set(shared)) == 1, "both pods have the same files"
        machines.plane.kubectl("delete", "pod", "one", "--timeout=120s")
        machines.shell("other", "cmp /data/bin/busybox /bin/busybox")
    assert not _layers(machines, node), "no image stays mounted"


def _layers(machines: Machines, node: str) -> list[str]:
    """What mounts show of the store: an image of one layer is that layer's folder."""
    table = machines.inside(node, "cat /proc/self/mountinfo").splitlines()
    return [root for root in (line.split()[3] for line in table) if Path(STORE).name in Path(root).parts]


def _why(machines: Machines, name: str) -> str:
    """The Events of a pod whose volume cannot be mounted."""
    found = machines.plane.get("events", "--field-selector", f"involvedObject.name={name}")["items"]
    return "\n".join(event["message"] for event in found if event["reason"] == "FailedMount")
