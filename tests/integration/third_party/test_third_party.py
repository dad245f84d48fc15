"""A CSI driver that is not ours, in Go: registered, provisioned for, mounted, cleaned up after."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.programs]
DRIVER = "mock.example.org"
CLASSIC = "classic.example.org"
OBJECTS = """
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: mock.example.org}
spec: {attachRequired: false, podInfoOnMount: true, storageCapacity: true, volumeLifecycleModes: [Persistent, Ephemeral]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: classic.example.org}
spec: {attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Ephemeral]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: mock}
provisioner: mock.example.org
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: mock-immediate}
provisioner: mock.example.org
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - name: main
    image: any
    command: [sh, -c, '{script}']
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes:
  - name: data
    {volume}
"""
EPHEMERAL = (
    "ephemeral: {volumeClaimTemplate: {spec: {storageClassName: mock, accessModes: [ReadWriteOnce],"
    " resources: {requests: {storage: 4Gi}}}}}"
)


@dataclass
class Third:
    """A driver process and the cluster that uses it."""

    cluster: Any
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        """Every call the driver had, with its answer."""
        return (self.folder / "log").read_text()

    @property
    def volumes(self) -> dict[str, str]:
        """Volume -> what its file holds, as the driver has it."""
        state = self.folder / "state"
        found = {v.name: v / "file" for v in state.iterdir()} if state.exists() else {}
        return {name: file.read_text() if file.exists() else "" for name, file in found.items()}

    def run(self, name: str, script: str, volume: str) -> None:
        """Make a pod and wait until it has started."""
        self.cluster.kubectl("apply", "-f", "-", stdin=POD.format(name=name, script=script, volume=volume))
        self.cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=300s")

    def capacity(self) -> list[tuple[str, dict[str, str], str]]:
        """Class, place and room of the driver's capacity objects."""
        label = f"csi.storage.k8s.io/drivername={DRIVER}"
        items = self.cluster.get("csistoragecapacities", "-A", "-l", label)["items"]
        found = [(i["storageClassName"], i["nodeTopology"]["matchLabels"], i["capacity"]) for i in items]
        return sorted(found, key=lambda entry: entry[0])


def _start(program: Path, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    socket = folder / "csi.sock"
    with (folder / "log").open("wb") as log:
        command = [str(program), "-endpoint", str(socket), "-statedir", str(folder / "state"), *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log)


@pytest.fixture(scope="module")
def third(make_cluster: Callable[..., Any], go_program: Callable[[str], Path]) -> Iterator[Third]:
    """A node with our driver and a third-party one, whose process comes up after the cluster."""
    program = go_program("mockdriver")
    cluster = make_cluster()
    folder = cluster.home / "mock"
    cluster.arguments = ("--csi-endpoint", f"unix://{folder}/csi.sock")
    cluster.up()
    cluster.kubectl("apply", "-f", "-", stdin=OBJECTS)
    process = _start(program, folder, "-drivername", DRIVER)
    try:
        yield Third(cluster, folder, process)
    finally:
        cluster.down("--purge")
        process.terminate()
        process.wait(timeout=120)


def test_it_is_registered_and_its_capacity_published(third: Third) -> None:
    place = {"io.kubernetes.storage.mock/node": "some-mock-node"}
    third.cluster.until("capacity is there", lambda: len(third.capacity()) == 2)
    third.cluster.until("CSINode names it", lambda: DRIVER in third.cluster.kubectl("get", "csinodes", "-o", "yaml"))

    assert third.capacity() == [("mock", place, "1Ti"), ("mock-immediate", place, "1Ti")]
    (node,) = third.cluster.get("csinodes")["items"]
    assert {"name": DRIVER, "nodeID": DRIVER, "topologyKeys": list(place)} in node["spec"]["drivers"]
    assert place.items() <= third.cluster.get("node", "node-1")["metadata"]["labels"].items()


def test_an_ephemeral_volume_lives_and_dies_with_its_pod(third: Third) -> None:
    third.run("scratch", "echo hello > /data/file; exec sleep 1000", EPHEMERAL)
    third.cluster.until("the data is with the driver", lambda: set(third.volumes.values()) == {"hello\n"})
    (volume,) = third.cluster.get("pv")["items"]

    assert volume["spec"]["csi"]["driver"] == DRIVER
    assert [volume["spec"]["csi"]["volumeHandle"]] == list(third.volumes)
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0]["key"] == "io.kubernetes.storage.mock/node"

    third.cluster.kubectl("delete", "pod", "scratch", "--grace-period=1", "--timeout=300s")
    third.cluster.until("nothing is left", lambda: not third.volumes and not third.cluster.get("pvc,pv")["items"])
    calls = [line for line in third.log.splitlines() if "/csi.v1.Node/Node" in line]
    order = ["StageVolume", "PublishVolume", "UnpublishVolume", "UnstageVolume"]
    assert [call for line in calls for call in order if f"Node{call} " in line] == order


@pytest.mark.parametrize("storage_class", ["mock", "mock-immediate"])
def test_a_claim_keeps_its_data_from_pod_to_pod(third: Third, storage_class: str) -> None:
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"},
        "spec": {"storageClassName": storage_class, "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    third.cluster.kubectl("apply", "-f", "-", stdin=str(claim).replace("'", '"'))
    for name in ("first", "second"):
        third.run(name, f"echo {name} >> /data/file; exec sleep 1000", "persistentVolumeClaim: {claimName: kept}")
        third.cluster.until("it is written", lambda name=name: name in "".join(third.volumes.values()))
        third.cluster.kubectl("delete", "pod", name, "--grace-period=1", "--timeout=300s")

    assert list(third.volumes.values()) == ["first\nsecond\n"]
    third.cluster.kubectl("delete", "pvc", "kept", "--timeout=300s")
    third.cluster.until("nothing is left", lambda: not third.volumes and not third.cluster.get("pv")["items"])


def test_an_inline_volume(third: Third) -> None:
    third.run("inline", "echo inline > /data/file; exec sleep 1000", f"csi: {{driver: {DRIVER}}}")
    third.cluster.until("the data is with the driver", lambda: set(third.volumes.values()) == {"inline\n"})
    third.cluster.kubectl("delete", "pod", "inline", "--grace-period=1", "--timeout=300s")

    assert not third.volumes


def test_its_volumes_outlive_a_kill_and_a_restart_of_the_cluster(third: Third) -> None:
    third.run("lasting", "echo hello >> /data/file; exec sleep 1000", EPHEMERAL)
    third.cluster.until("it is written", lambda: set(third.volumes.values()) == {"hello\n"})
    os.kill(third.cluster.pid(), signal.SIGKILL)
    third.cluster.up()
    third.cluster.kubectl("wait", "--for=condition=Ready", "pod/lasting", "--timeout=300s")
    assert set(third.volumes.values()) == {"hello\n"}  # the container went on

    third.cluster.down()
    assert str(third.cluster.data) not in Path("/proc/mounts").read_text()
    third.cluster.up()
    third.cluster.until("it is written again", lambda: set(third.volumes.values()) == {"hello\nhello\n"})
    third.cluster.kubectl("delete", "pod", "lasting", "--grace-period=1", "--timeout=300s")
    third.cluster.until("nothing is left", lambda: not third.volumes and not third.cluster.get("pvc,pv")["items"])


def test_volumes_that_the_driver_had_before_are_left_alone(third: Third) -> None:
    assert "ListVolumes" in third.log
    deleted = [line for line in third.log.splitlines() if "DeleteVolume" in line]
    assert deleted
    assert not [line for line in deleted if any(f'volume_id:"{number}"' in line for number in (1, 2, 3))]


def test_a_driver_that_registers_itself(third: Third, go_program: Callable[[str], Path]) -> None:
    folder = third.cluster.home / "classic"
    registry = third.cluster.data / "nodes" / "node-1" / "kubelet" / "plugins_registry"
    process = _start(
        go_program("mockdriver"), folder, "-drivername", CLASSIC, "-topology=false",
        "-register", str(registry / f"{CLASSIC}-reg.sock"),
    )  # fmt: skip
    try:
        third.cluster.until("the kubelet took it", lambda: "registered=true" in (folder / "log").read_text())
        third.run("classic", "echo classic > /data/file; exec sleep 1000", f"csi: {{driver: {CLASSIC}}}")
        third.cluster.until("it is written", lambda: bool(list((folder / "state").glob("*/file"))))
        third.cluster.kubectl("delete", "pod", "classic", "--grace-period=1", "--timeout=300s")
        (registry / f"{CLASSIC}-reg.sock").unlink()
        third.cluster.until(
            "the kubelet let it go", lambda: CLASSIC not in third.cluster.kubectl("get", "csinodes", "-o", "yaml")
        )
    finally:
        process.terminate()
        process.wait(timeout=120)
