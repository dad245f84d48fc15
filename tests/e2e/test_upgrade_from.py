"""From an earlier commit to this one and back, under pods that write all the time: `make test-upgrade FROM=6914cf6a`.

Two real kubelets, the earlier commit's image, objects and agents, then ours. The option --before names a checkout of that
commit, with its virtual environment in .venv.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster import programs
from cluster.__main__ import down, up
from deploy.image.build import build
from tests.e2e import pods
from tests.e2e.control_plane import ControlPlane
from tests.e2e.machines import POOL_TEXT, POOL_VALUES, SYSTEM, Machines
from tests.e2e.processes import events, until
from tests.programs import found

from tonnage.kubernetes.api import names
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import IMAGE

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
OLD_IMAGE = "tonnage.dev/tonnage:before"
CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "grows"},
    "provisioner": names.DRIVER,
    "allowVolumeExpansion": True,
    "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
    "parameters": {names.CSI_FSTYPE: "xfs"},  # which grows without CAP_SYS_RESOURCE
}
_CRDS = ("volumesnapshots", "volumesnapshotclasses", "volumesnapshotcontents")


@dataclass(frozen=True)
class Version:
    """One of the two: where its tree is, the Python that runs it, and its image."""

    tree: Path
    python: Path
    image: str


@dataclass
class Watched:
    """What the agents published at any moment. gaps: samples in which a node's capacity was missing, one a second."""

    samples: int = 0
    gaps: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, machines: Machines) -> None:
        """Look once a second until stopped."""
        while not self.stop.wait(1.0):
            self.samples += 1
            self.gaps += set(machines.capacities()) != set(machines.names)


@pytest.fixture(scope="module")
def versions(request: pytest.FixtureRequest) -> tuple[Version, Version]:
    """The earlier version and ours."""
    tree = request.config.getoption("--before")
    if tree is None:
        pytest.skip("needs --before, a checkout of an earlier commit (make test-upgrade)")
    before = Path(tree).absolute()
    return Version(before, before / ".venv/bin/python", OLD_IMAGE), Version(ROOT, Path(sys.executable), IMAGE)


@pytest.fixture(scope="module")
def upgraded(versions: tuple[Version, Version], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two nodes with the images of both versions, and the kinds of snapshots. Nothing is installed."""
    folder = tmp_path_factory.mktemp("upgrade")
    old, new = folder / "old.tar", build(folder / "new.tar", IMAGE).file
    command = [str(versions[0].python), "-m", "deploy.image", "--name", OLD_IMAGE, "--output", str(old)]
    subprocess.run(command, cwd=versions[0].tree, check=True)
    try:
        made = up(folder / "cluster", 2, images=[old, new])
        plane = ControlPlane(folder / "cluster", Path(str(made["kubeconfig"])), str(made["server"]), programs.kubectl())
        plane.kubectl("apply", "--server-side", "-f", "-", stdin=manifests.template("snapshot-crds.yaml"))
        crds = [f"crd/{name}.snapshot.storage.k8s.io" for name in _CRDS]
        plane.kubectl("wait", "--for=condition=Established", *crds)
        plane.apply(CLASS)
        yield Machines(plane, ("node-1", "node-2"))
    finally:
        down(folder / "cluster")
        old.unlink(missing_ok=True)
        new.unlink()


Install = Callable[[Machines, Version], None]


def by_chart(machines: Machines, version: Version) -> None:
    """Install or upgrade the chart, as a user who gives all values each time."""
    values = {
        "image": {"tag": version.image.rpartition(":")[2]},
        "pools": [POOL_VALUES],
        "snapshotClass": True,
        "controller": {"snapshotController": True},
    }
    given = [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
    flags = (f"--kubeconfig={machines.plane.kubeconfig}", "--namespace", SYSTEM)
    chart = version.tree / "deploy/helm/tonnage"
    _run(found("helm"), "upgrade", "--install", "tonnage", chart, *flags, *given, home=machines.plane.folder / "helm")


def by_manifests(machines: Machines, version: Version) -> None:
    """Apply the version's own manifests."""
    flags = ("--pool", POOL_TEXT, "--snapshot-class", "--snapshot-controller", "--kubernetes", programs.version())
    text = _run(version.python.with_name("tonnage"), "manifests", "--image", version.image, *flags)
    machines.plane.kubectl("apply", "--validate=strict", "-f", "-", stdin=text)


def _rollback(machines: Machines) -> None:
    flags = (f"--kubeconfig={machines.plane.kubeconfig}", "--namespace", SYSTEM)
    _run(found("helm"), "rollback", "tonnage", *flags, home=machines.plane.folder / "helm")


def _run(*command: str | Path, home: Path = Path("/nonexistent")) -> str:
    environment = {**os.environ, "HOME": str(home)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@contextmanager
def installed(machines: Machines, install: Install, version: Version) -> Iterator[None]:
    """That version installed, and away afterwards."""
    plane = machines.plane
    plane.kubectl("create", "namespace", SYSTEM)
    plane.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=privileged")
    install(machines, version)
    try:
        until(plane, "capacity is published", lambda: set(machines.capacities()) == set(machines.names))
        yield
    finally:
        plane.kubectl("delete", "namespace", SYSTEM, "--timeout=200s")
        plane.kubectl("delete", "csidriver,storageclass,clusterrole,clusterrolebinding,volumesnapshotclass", "-l", "app.kubernetes.io/name=tonnage")  # fmt: skip


def rolled_out(machines: Machines, version: Version) -> None:
    """Wait until every agent and controller is of that version."""
    for what in ("daemonset/tonnage-node", "deployment/tonnage-controller"):
        machines.plane.kubectl("-n", SYSTEM, "rollout", "status", what, "--timeout=200s")

    def all_are() -> bool:
        agents = machines.agents()
        images = {pod["spec"]["containers"][0]["image"] for pod in agents.values()}
        return set(agents) == set(machines.names) and images == {version.image}

    until(machines.plane, f"all agents are {version.image}", all_are)


def grow(machines: Machines, claim: str, size: str) -> None:
    """Request a larger volume."""
    path = f"/api/v1/namespaces/default/persistentvolumeclaims/{claim}"
    answer = machines.plane.send("PATCH", path, {"spec": {"resources": {"requests": {"storage": size}}}})
    assert answer.status == 200, answer.message


def snapshot(machines: Machines, name: str, claim: str) -> None:
    """Request a snapshot."""
    spec = {"volumeSnapshotClassName": names.SNAPSHOT_CLASS, "source": {"persistentVolumeClaimName": claim}}
    kind = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot"}
    machines.plane.apply({**kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec})


def finished(machines: Machines, claim: str, size: str, snapshot: str) -> None:
    """Wait for both."""
    plane = machines.plane

    def capacity() -> Any:
        return plane.get("pvc", claim)["status"]["capacity"]["storage"]

    until(plane, f"{claim} has {size}", lambda: capacity() == size)
    until(plane, f"{snapshot} is ready", lambda: bool(plane.get("volumesnapshot", snapshot).get("status", {}).get("readyToUse")))  # fmt: skip


@pytest.mark.parametrize("install", [by_chart, by_manifests])
def test_up_and_back_under_pods_that_write(
    upgraded: Machines, versions: tuple[Version, Version], install: Install, tell: Callable[[str], None]
) -> None:
    """Nothing is unmounted, no write is lost, no container starts again; growth and snapshots begun before end after."""
    machines, (old, new) = upgraded, versions
    plane, running = machines.plane, {f"runs-{node}": node for node in machines.names}
    objects = (*(f"pod/{name}" for name in running), "pod/grows", "pod/later", "pod/restored",
               "pvc/restored", "volumesnapshot/before", "volumesnapshot/after", "pvc/grows")  # fmt: skip
    with installed(machines, install, old), pods.removed(machines, *objects):
        plane.apply(*(pods.pod(name, command=pods.LOOP, node=node) for name, node in running.items()))
        pods.claim(machines, "grows", "grows", "512Mi")
        plane.apply(pods.pod("grows", "grows", command=pods.LOOP))
        writers = [*running, "grows"]
        nodes = {name: pods.wait_ready(machines, name) for name in writers}
        uids = {name: machines.uid("grows" if name == "grows" else f"{name}-disk") for name in writers}
        mounts = {name: machines.mounts(nodes[name], uids[name]) for name in writers}
        assert all(mounts.values())

        def still_the_same(version: Version) -> None:
            rolled_out(machines, version)
            for name in writers:
                pods.goes_on(machines, name)
                assert machines.mounts(nodes[name], uids[name]) == mounts[name]

        with watched(machines) as capacity:
            grow(machines, "grows", "768Mi")
            snapshot(machines, "before", "grows")
            install(machines, new)
            still_the_same(new)
            finished(machines, "grows", "768Mi", "before")
            machines.start("later", "512Mi")
            pods.wait_ready(machines, "later")
            grow(machines, "grows", "1Gi")
            snapshot(machines, "after", "grows")
            _rollback(machines) if install is by_chart else install(machines, old)
            still_the_same(old)
            finished(machines, "grows", "1Gi", "after")
            restore(machines, "restored", of="after")
        tell(f"upgrade {install.__name__}: capacity of a node was missing in {capacity.gaps} of {capacity.samples} s")
        assert capacity.gaps <= 15
        assert not [text for reason, text in events(plane, "default", "grows") if reason.endswith("Failed")]
    assert [machines.left(uid) for uid in uids.values()] == [[], [], []]


def restore(machines: Machines, name: str, *, of: str) -> None:
    """A pod with a copy of a snapshot, which has what was written until then."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "grows",
        "resources": {"requests": {"storage": "1Gi"}},
        "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": of},
    }
    machines.plane.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
    )
    machines.plane.apply(pods.pod(name, name))
    pods.wait_ready(machines, name)
    assert pods.written(machines, name) > 0


@contextmanager
def watched(machines: Machines) -> Iterator[Watched]:
    """Look at published capacity meanwhile."""
    seen = Watched()
    thread = threading.Thread(target=seen.run, args=(machines,))
    thread.start()
    try:
        yield seen
    finally:
        seen.stop.set()
        thread.join()
