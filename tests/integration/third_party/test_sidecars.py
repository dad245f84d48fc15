"""Upstream's external-provisioner, external-attacher and external-resizer, unmodified, with csi-driver-host-path."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.third_party.sidecar_stack import DRIVER, SPACE, TOPOLOGY, SidecarStack

pytestmark = [pytest.mark.real, pytest.mark.programs, pytest.mark.timeout(900)]
NODE = "node-1"
ROOM = 1 << 30
OBJECTS = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {SPACE}}}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {DRIVER}}}
spec: {{attachRequired: ATTACH, podInfoOnMount: true, storageCapacity: true, fsGroupPolicy: File,
  volumeLifecycleModes: [Persistent, Ephemeral]}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: late}}
provisioner: {DRIVER}
parameters: {{kind: fast}}
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: at-once}}
provisioner: {DRIVER}
parameters: {{kind: fast}}
allowVolumeExpansion: true
"""


LEADER = (
    "--leader-election", f"--leader-election-namespace={SPACE}", "--leader-election-lease-duration=4s",
    "--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s",
)  # fmt: skip


@pytest.fixture(scope="module")
def stack(make_cluster: Callable[..., Any], go_program: Callable[[str], Path]) -> Iterator[SidecarStack]:
    """A node with the driver, which wants its volumes attached, and one of each sidecar."""
    made = SidecarStack(make_cluster(), go_program)
    programs = ("csi-provisioner", "csi-attacher", "csi-resizer")
    for name in ("hostpath", *programs):
        go_program(name)
    made.cluster.up()
    made.cluster.kubectl("apply", "-f", "-", stdin=OBJECTS.replace("ATTACH", "true"))
    try:
        made.add_driver(NODE, "-enable-attach", "-capacity", f"fast={ROOM}")
        made.add_sidecar(
            "csi-provisioner", NODE, *LEADER, "--enable-capacity", "--capacity-ownerref-level=-1",
            "--capacity-poll-interval=1s", "--extra-create-metadata", NAMESPACE=SPACE,
        )  # fmt: skip
        made.add_sidecar("csi-attacher", NODE, *LEADER)
        made.add_sidecar("csi-resizer", NODE, *LEADER)
        yield made
    finally:
        made.cluster.down("--purge")
        made.close()


def claim(name: str, storage_class: str, size: str = "64Mi", **more: Any) -> str:
    """A claim as a manifest."""
    spec = {
        "storageClassName": storage_class, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}}, **more,
    }  # fmt: skip
    return json.dumps({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})


def pod(name: str, script: str, volume: dict[str, Any], *, device: bool = False) -> str:
    """A pod that runs a script and has one volume, as a manifest."""
    container: dict[str, Any] = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
    if device:
        container["volumeDevices"] = [{"name": "data", "devicePath": "/dev/data"}]
    else:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    spec = {"containers": [container], "volumes": [{"name": "data", **volume}], "terminationGracePeriodSeconds": 1}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def of_claim(name: str) -> dict[str, Any]:
    """The volume of a pod that is a claim."""
    return {"persistentVolumeClaim": {"claimName": name}}


def run(stack: SidecarStack, manifest: str) -> None:
    """Make a pod and wait until it has started."""
    name = json.loads(manifest)["metadata"]["name"]
    stack.cluster.kubectl("apply", "-f", "-", stdin=manifest)
    stack.cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=300s")


def nothing_left(stack: SidecarStack) -> bool:
    """Whether there is no volume, neither of the cluster nor of the driver."""
    return not stack.cluster.get("pv,pvc,volumeattachments")["items"] and not stack.state(NODE)


def end(stack: SidecarStack, *objects: str) -> None:
    """Delete objects of the namespace, after which nothing may be left."""
    stack.cluster.kubectl("delete", *objects, "--timeout=300s")
    stack.cluster.until("nothing is left", lambda: nothing_left(stack))


def test_the_driver_is_registered_and_its_room_is_published(stack: SidecarStack) -> None:
    def published() -> list[tuple[str, Any, str]]:
        items = stack.cluster.get("csistoragecapacities", "-n", SPACE)["items"]
        return [(i["storageClassName"], i["nodeTopology"]["matchLabels"], i["capacity"]) for i in items]

    stack.cluster.until("the room is there", lambda: published() == [("late", {TOPOLOGY: NODE}, "1Gi")])
    (node,) = stack.cluster.get("csinodes")["items"]
    assert {"name": DRIVER, "nodeID": NODE, "topologyKeys": [TOPOLOGY]} in node["spec"]["drivers"]


@pytest.mark.parametrize("storage_class", ["late", "at-once"])
def test_a_claim_keeps_its_data_from_pod_to_pod(stack: SidecarStack, storage_class: str) -> None:
    stack.cluster.kubectl("apply", "-f", "-", stdin=claim("kept", storage_class))
    if storage_class == "at-once":
        stack.cluster.until(
            "bound without a pod", lambda: stack.cluster.get("pvc", "kept")["status"]["phase"] == "Bound"
        )
    for name in ("first", "second"):
        run(stack, pod(name, f"echo {name} >> /data/file; exec sleep 1000", of_claim("kept")))
        (attachment,) = stack.cluster.get("volumeattachments")["items"]
        assert attachment["status"]["attached"] is True
        assert attachment["spec"]["attacher"] == DRIVER
        stack.cluster.kubectl("delete", "pod", name, "--timeout=300s")
        stack.cluster.until("it is detached", lambda: not stack.cluster.get("volumeattachments")["items"])

    (volume,) = stack.state(NODE)
    assert (stack.folder / NODE / "state" / volume / "file").read_text() == "first\nsecond\n"
    end(stack, "pvc/kept")
