"""Volumes of Cinder's LVM driver in a box, by kubectl, as docs/cinder.md tells a new user. Run in user-mode Linux."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.clusters import Cluster, tonnage
from tests.docs.pages import Command, blocks
from tests.docs.walking import ROOT, Shell, walk

PAGE, SECTION = ROOT / "docs" / "cinder.md", "In a box"
GROUP, DISK = "storage", "/dev/ubda"
SOCKET, SECOND = Path("/run/tonnage-cinder.sock"), Path("/run/tonnage-cinder-2.sock")
PATIENCE = 400.0
"""Seconds; far above what anything takes, so that it only ends what hangs."""
Obj = dict[str, Any]
pytestmark = pytest.mark.timeout(1400)


def typed() -> Iterator[Command]:
    """The section for one node, from its first command to its last; what it applies is typed as it says."""
    for block in blocks(PAGE):
        if block.heading == SECTION and block.language == "console" and not block.place:
            yield from block.commands()
        elif block.heading == SECTION and "apiVersion" in block.text:
            yield Command(f"kubectl apply -f - <<'END'\n{block.text}END", "")


class Box:
    """A box, the driver's process, and what the kernel has of its volumes."""

    def __init__(self, folder: Path, command: str) -> None:
        self.cluster = Cluster(Path("/var/lib/tonnage"), (), folder)
        self.shell = _shell(folder)
        self._driver = command
        self.other: subprocess.Popen[bytes] | None = None
        self.start_driver()

    def start_driver(self) -> None:
        self.process = self._start(self._driver)

    def start_node_driver(self) -> None:
        """The driver of another node: without the controller part."""
        options = f"--kubelet-root /var/lib/tonnage --endpoint {SECOND} --state /var/lib/tonnage-cinder-2"
        self.other = self._start(f"tonnage cinder {options}")

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PATH": f"{self.cluster.home}/bin:{os.environ['PATH']}"}
        return subprocess.Popen(["sh", "-c", f"exec {command}"], env=environment)

    def kill_driver(self) -> None:
        """As by a crash. Its children end with it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def apply(self, *objects: Obj) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def ready(self, pod: str) -> None:
        try:
            self.until(f"{pod} is ready", lambda: _is_ready(self.cluster.get("pod", pod)))
        except AssertionError:
            print(self.cluster.kubectl("describe", f"pod/{pod}"), self.cluster.kubectl("get", "events", "-A"))
            print((self.cluster.data / "tonnage.log").read_text()[-5000:])
            raise

    def until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.5)

    def exec(self, pod: str, script: str, *, fails: bool = False) -> str:
        return self.cluster.kubectl("exec", pod, "--", "sh", "-c", script, fails=fails)

    def delete(self, *objects: str) -> None:
        self.cluster.kubectl("delete", *objects, "--timeout=300s")

    def told(self, about: str, pattern: str) -> str:
        """The first message about an object that has the pattern, once it is there."""
        found: list[str] = []

        def is_there() -> bool:
            listed = self.cluster.get("events", "--field-selector", f"involvedObject.name={about}")["items"]
            found[:] = [f"{one['reason']}: {one['message']}" for one in listed]
            return any(re.search(pattern, one) for one in found)

        try:
            self.until(f"{about}: {pattern}", is_there)
        except AssertionError as failure:
            raise AssertionError(f"{failure}; told: {found}") from None
        return next(one for one in found if re.search(pattern, one))

    def detached(self) -> None:
        self.until("no attachment is left", lambda: not self.cluster.get("volumeattachments")["items"])
        assert (targets(), sessions()) == ([], [])

    def deleted(self) -> None:
        self.until("no PersistentVolume is left", lambda: not self.cluster.get("pv")["items"])
        assert logical_volumes() == []


def _shell(folder: Path) -> Shell:
    """Runs what the page says, as root, with a Python for the driver that has cinderlib."""
    programs = folder / "bin"
    programs.mkdir()
    scripts = {
        "sudo": 'exec "$@"',
        "tonnage": f'[ "$1" != cinder ] || set -- "$@" --interpreter {os.environ["TONNAGE_CINDER_PYTHON"]}\n'
        f'exec {sys.executable} -m tonnage "$@"',
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder)}

    def run(text: str, _typed: list[str]) -> tuple[int, str]:
        command = ["bash", "-c", text.replace("/dev/sdb", DISK)]
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    return run


def _is_ready(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


def logical_volumes() -> list[str]:
    """All but the pool of which Cinder makes thin ones."""
    command = ["lvm", "lvs", "--noheadings", "-o", "lv_name", GROUP]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return sorted(set(found) - {f"{GROUP}-pool"})


def targets() -> list[str]:
    folder = Path("/sys/kernel/config/target/iscsi")
    return [path.name for path in folder.glob("iqn*")] if folder.exists() else []


def sessions() -> list[str]:
    return [path.name for path in Path("/sys/class/iscsi_session").glob("session*")]


def claim(name: str, size: str = "1Gi", source: str = "", storage_class: str = "network") -> Obj:
    spec: Obj = {"storageClassName": storage_class, "accessModes": ["ReadWriteOnce"]}
    spec["resources"] = {"requests": {"storage": size}}
    if source:
        spec["dataSource"] = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": source}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def pod(name: str, of: str, node: str = "") -> Obj:
    container = {
        "name": "main", "image": "busybox", "command": ["sleep", "1000000"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }  # fmt: skip
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": of}}]
    spec: Obj = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The page's box, with its group of volumes, driver, class, claim and pod."""
    (backends,) = (b.text for b in blocks(PAGE) if "lioadm" in b.text)
    Path("/etc/tonnage").mkdir(exist_ok=True)
    Path("/etc/tonnage/cinder.yaml").write_text(backends)
    (driver,) = (one.text for one in typed() if one.text.startswith("sudo tonnage cinder "))
    address = yaml.safe_load(backends)["backends"][0]["target_ip_address"]
    subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    folder = tmp_path_factory.mktemp("home")
    made = Box(folder, driver)
    made.cluster.environment = {**os.environ, "KUBECONFIG": f"{folder}/tonnage.kubeconfig", "HOME": str(folder)}
    try:
        yield made
    finally:
        tonnage("down", "--purge")
        for process in filter(None, (made.process, made.other)):
            process.terminate()
            process.wait()


def test_the_page(box: Box) -> None:
    steps = [one for one in typed() if not one.text.startswith("sudo tonnage cinder ")]
    walk(box.shell, steps, exactly=True)
    assert (targets(), sessions(), logical_volumes()) == ([], [], [])


def test_one_capacity_object_serves_all_nodes(box: Box) -> None:
    def published() -> list[Obj]:
        items = box.cluster.get("csistoragecapacities", "-A")["items"]
        return [one for one in items if one["storageClassName"] == "network"]

    box.until("it is published", published)
    (found,) = published()
    assert found["nodeTopology"] == {}
    assert found["metadata"]["ownerReferences"][0]["kind"] == "CSIDriver"


def test_data_outlives_its_pod_and_its_size_is_enforced(box: Box) -> None:
    box.apply(claim("data"))
    box.told("data", "WaitForFirstConsumer")
    assert logical_volumes() == []
    box.apply(pod("writer", "data"))
    box.ready("writer")
    (volume,) = box.cluster.get("pv")["items"]
    assert "nodeAffinity" not in volume["spec"]
    (attached,) = box.cluster.get("volumeattachments")["items"]
    assert (attached["spec"]["source"]["persistentVolumeName"], attached["status"]["attached"]) == (
        volume["metadata"]["name"],
        True,
    )
    assert (len(targets()), len(sessions()), len(logical_volumes())) == (1, 1, 1)
    box.exec("writer", "echo one > /data/file; sync")
    full = "fallocate -l 800M /data/reserved && head -c 300000000 /dev/zero > /data/large"  # most of it is not written
    assert "No space left" in box.exec("writer", full, fails=True)
    box.exec("writer", "rm /data/reserved /data/large")
    box.delete("pod/writer")
    box.detached()
    box.apply(pod("reader", "data"))
    box.ready("reader")
    assert box.exec("reader", "cat /data/file") == "one\n"


def test_a_snapshot_is_restored(box: Box) -> None:
    kind = {"apiVersion": "snapshot.storage.k8s.io/v1", "metadata": {"name": "network"}}
    box.apply({**kind, "kind": "VolumeSnapshotClass", "driver": "cinder.tonnage.dev", "deletionPolicy": "Delete"})
    spec = {"volumeSnapshotClassName": "network", "source": {"persistentVolumeClaimName": "data"}}
    box.apply({**kind, "kind": "VolumeSnapshot", "metadata": {"name": "first"}, "spec": spec})
    box.until("it is ready", lambda: box.cluster.get("volumesnapshot", "first").get("status", {}).get("readyToUse"))
    box.exec("reader", "echo two > /data/file; sync")
    box.apply(claim("copy", source="first"), pod("copy", "copy"))
    box.ready("copy")
    assert (box.exec("copy", "cat /data/file"), box.exec("reader", "cat /data/file")) == ("one\n", "two\n")
    box.delete("pod/copy", "pvc/copy", "volumesnapshot/first")
    box.until("only its source is left", lambda: len(logical_volumes()) == 1)


def test_a_volume_grows_while_it_is_used(box: Box) -> None:
    box.cluster.kubectl("patch", "pvc/data", "-p", '{"spec": {"resources": {"requests": {"storage": "1500Mi"}}}}')
    box.until("it has grown", lambda: box.cluster.get("pvc", "data")["status"]["capacity"]["storage"] == "2Gi")
    assert int(box.exec("reader", "df -m /data | tail -1").split()[1]) > 1900
    assert box.exec("reader", "cat /data/file") == "two\n"


def test_a_pod_runs_on_while_the_driver_is_away_and_another_waits(box: Box) -> None:
    box.apply(claim("other"), pod("other", "other"))
    box.ready("other")
    box.exec("other", "echo other > /data/file; sync")
    box.delete("pod/other")
    box.until("it is detached", lambda: len(box.cluster.get("volumeattachments")["items"]) == 1)
    box.kill_driver()
    assert box.exec("reader", "cat /data/file") == "two\n"
    box.apply(pod("late", "other"))
    box.told("late", "FailedAttachVolume: .*cannot reach the driver at /run/tonnage-cinder.sock")
    box.start_driver()
    box.ready("late")
    assert box.exec("late", "cat /data/file") == "other\n"
    box.delete("pod/late")


def test_a_pod_waits_for_a_storage_that_is_away(box: Box) -> None:
    box.delete("pod/reader")
    box.detached()
    subprocess.run(["lvm", "vgrename", GROUP, "elsewhere"], check=True)
    try:
        box.apply(pod("again", "other"))
        box.told("again", f'FailedAttachVolume: .*Volume group "{GROUP}" not found')
        box.apply(claim("new"), pod("new", "new"))
        box.told("new", f'ProvisioningFailed: .*Volume group "{GROUP}" not found')
    finally:
        subprocess.run(["lvm", "vgrename", "elsewhere", GROUP], check=True)
    box.ready("again")
    box.ready("new")
    box.delete("pod/again", "pod/new", "pvc/new", "pvc/other")


def test_a_claim_that_does_not_fit_says_so(box: Box) -> None:
    made = claim("now", "100Gi", storage_class="now")
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "now"}}
    box.apply({**kind, "provisioner": "cinder.tonnage.dev", "volumeBindingMode": "Immediate"}, made)
    box.told("now", "ProvisioningFailed: insufficient storage for 100Gi of class now: maximum volume size is .*Gi")
    box.apply(claim("large", "100Gi"), pod("large", "large"))
    box.told("large", "FailedScheduling: .*did not have enough free storage")
    for name in ("now", "large"):
        assert box.cluster.get("pvc", name)["status"]["phase"] == "Pending"
    box.delete("pod/large", "pvc/large", "pvc/now", "storageclass/now")


def test_a_volume_moves_between_nodes(box: Box) -> None:
    """Each node has a driver of its own, with the one kernel and initiator of this machine. That of node-1 makes volumes for both."""
    box.cluster.down()
    box.start_node_driver()
    box.cluster.arguments = tuple(f"--csi-endpoint=node-{n}={path}" for n, path in ((1, SOCKET), (2, SECOND)))
    environment = box.cluster.environment
    box.cluster.up("--nodes", "2", "--kubeconfig", environment["KUBECONFIG"])
    box.cluster.environment = environment
    box.apply(claim("moving"), pod("first", "moving", node="node-2"))
    box.ready("first")
    box.exec("first", "echo moved > /data/file; sync")
    box.apply(pod("second", "moving", node="node-1"))
    box.told("second", "FailedAttachVolume: Multi-Attach error")
    box.delete("pod/first")
    box.ready("second")
    assert box.exec("second", "cat /data/file") == "moved\n"
    (attached,) = box.cluster.get("volumeattachments")["items"]
    assert attached["spec"]["nodeName"] == "node-1"
    box.delete("pod/second", "pvc/moving")
    box.detached()


def test_nothing_is_left(box: Box) -> None:
    box.cluster.kubectl("delete", "pvc", "--all", "--timeout=300s")
    box.deleted()
    box.detached()
