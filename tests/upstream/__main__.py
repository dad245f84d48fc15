"""`make test-upstream`: Kubernetes' own External Storage tests against tonnage on two real kubelets.

For each kind of disk: a cluster, tonnage installed from our image, the suite in five parts, its JUnit files, then a table
in docs/conformance.md. On some disks upstream's snapshot-controller runs, on the others ours. Test code and framework are Kubernetes', unchanged. Ends with 1 where a test failed, where a part
ended without results or without a test, and where a cluster did not start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from cluster import network, programs
from cluster.__main__ import down, up
from cluster.gobuild import build
from cluster.node import Node
from cluster.processes import Failed, Processes
from deploy.image import build as own_image
from deploy.image import debian
from tests.integration.third_party.programs import SNAPSHOTS
from tests.integration.third_party.programs import program as go_program
from tests.upstream import ginkgo, images, results
from tests.upstream.driver import ATTRIBUTES, IMMEDIATE, driver, ungrown
from tests.upstream.ginkgo import Part
from tests.upstream.programs import ensure

from tonnage.kubernetes.api import names
from tonnage.tools.ops.install.options import IMAGE

POOL, SIZE, DISK = "/var/lib/tonnage", "24Gi", 30 << 30
DISKS = ("ext4", "xfs", "btrfs", f"xfs{IMMEDIATE}")
"""File system of the nodes' disks; with IMMEDIATE, the tests use a class that binds at once."""
UNSHARED: Mapping[str, str] = {
    r"\(block volmode\).*should concurrently access the volume and its clone": (
        "a raw block volume that is written to is copied at one moment only where the disk shares blocks"
    ),
}
"""Tests that are left out where the disk does not share blocks."""
PINNED: Mapping[str, str] = {
    r"provisioning should provision storage with pvc data source": (
        "its pods are pinned to one node, and a claim that binds at once may have got its volume on another"
    ),
    r"multiVolume .* two volumes with .* and retain data across pod recreation on the same node": (
        "its pod has two claims, and claims that bind at once may have got their volumes on two nodes"
    ),
}
"""Tests that are left out with IMMEDIATE."""
OF_DISK: Mapping[str, str] = {
    r"should provision correct filesystem size when restoring snapshot to larger size pvc": (
        "statfs(2) of a subvolume reports the size of the disk, whatever the subvolume's limit is"
    ),
}
"""Tests that are left out where volumes are subvolumes of one file system."""
OURS, UPSTREAMS = "ours", "upstream"
SNAPSHOT_CONTROLLERS: Mapping[str, str] = {"ext4": OURS, "xfs": UPSTREAMS, "btrfs": OURS, f"xfs{IMMEDIATE}": UPSTREAMS}
"""Whose snapshot controller the cluster of a disk has."""

ALONE = (r"\[Serial\]", r"\[Disruptive\]")
PARTS = (
    Part("main", r"External.Storage", (*ALONE, r"\[Slow\]", r"\[Feature:")),
    Part("slow", r"External.Storage.*\[Slow\]", (*ALONE, r"\[Feature:")),
    Part("features", r"External.Storage.*\[Feature:", ALONE),
    Part("serial", r"External.Storage.*\[Serial\]", (r"\[Disruptive\]",), 1),
    Part("disruptive", r"External.Storage.*\[Disruptive\]", (), 1),
)


def main(prepare: Callable[[], Path] | None = None) -> int:
    """The command line. prepare: builds all programs and returns the suite's folder. Raises Missing, RuntimeError."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("disks", nargs="*", metavar="DISK", help=f"of {', '.join(DISKS)} (default: all)")
    parser.add_argument("--part", action="append", choices=[part.name for part in PARTS], help="repeatable")
    parser.add_argument("--focus", help="a regular expression of tests, instead of the parts")
    parser.add_argument("--snapshots", choices=[OURS, UPSTREAMS], help="the snapshot controller, on all disks")
    parser.add_argument("--reports", type=Path, default=Path("dist/upstream"), help="where JUnit files and logs go")
    options = parser.parse_args()
    if wrong := sorted(set(options.disks) - set(DISKS)):
        parser.error(f"disk {wrong[0]}: want one of {', '.join(DISKS)}")
    parts = [part for part in PARTS if not options.part or part.name in options.part]
    if options.focus:
        parts = [Part("focus", options.focus, (), must_pass=True)]
    try:
        suite = (prepare or _build)()
    except (programs.Missing, RuntimeError) as failure:
        print(f"test-upstream: {failure}", file=sys.stderr)
        return 1
    reports, chosen = options.reports.absolute(), options.snapshots
    failed = sum(_tried(disk, parts, suite, reports, chosen) for disk in options.disks or DISKS)
    if not options.disks and not chosen and parts == list(PARTS):
        columns = [part.name for part in PARTS]
        results.document(
            options.reports, Path("docs/conformance.md"), programs.version(), disks=sorted(DISKS), parts=columns
        )
    return 1 if failed else 0


def _build() -> Path:
    """All programs; the folder with those of the suite. Raises Missing, RuntimeError."""
    programs.ensure()
    build([go_program(SNAPSHOTS)])
    return ensure()


def _tried(disk: str, parts: Sequence[Part], suite: Path, reports: Path, snapshots: str | None = None) -> int:
    """_run(), where a cluster that does not start is a failure of its disk and of no other."""
    try:
        return _run(disk, parts, suite, reports, snapshots or SNAPSHOT_CONTROLLERS[disk])
    except (Failed, programs.Missing, debian.Missing, subprocess.CalledProcessError) as failure:
        print(f"test-upstream: {disk}: {failure}", file=sys.stderr)
        return 1


def _run(disk: str, parts: Sequence[Part], suite: Path, reports: Path, snapshots: str) -> int:
    """Run the parts on one kind of disk; return the number of failures. Raises Failed, Missing, CalledProcessError."""
    reports = reports / disk
    reports.mkdir(parents=True, exist_ok=True)
    for part in parts:  # of an earlier run
        (reports / f"{part.name}.xml").unlink(missing_ok=True)
    failed = 0
    with _cluster(disk, suite, reports, snapshots) as kubeconfig:
        for part in parts:
            began = time.monotonic()
            _say(f"{disk}: {part.name}")
            code = ginkgo.run(part, suite, reports, kubeconfig, _left_out(disk), _ssh(kubeconfig))
            found = results.judge(reports / f"{part.name}.xml", code, must_pass=part.must_pass)
            failed += found.failures
            _say(f"{disk}: {part.name}: {found.line()}, {(time.monotonic() - began) / 60:.0f} min")
            for name in found.failed:
                _say(f"  failed: {name}")
    return failed


def _left_out(disk: str) -> Sequence[str]:
    """Regular expressions of the tests that are left out on a disk."""
    unshared, pinned = UNSHARED if disk == "ext4" else (), PINNED if disk.endswith(IMMEDIATE) else ()
    return [*unshared, *pinned, *(OF_DISK if disk == "btrfs" else ungrown())]


def _ssh(kubeconfig: Path) -> Mapping[str, str]:
    return {"KUBE_SSH_KEY_PATH": str(kubeconfig.with_name("admin.key")), "KUBE_SSH_USER": "root"}


@contextlib.contextmanager
def _cluster(disk: str, suite: Path, reports: Path, snapshots: str) -> Iterator[Path]:
    """Two nodes with tonnage on a disk of that kind each; the administrator's kubeconfig. Raises Failed, Missing."""
    folder = reports / "cluster"
    archives = [*images.build(reports, suite), own_image.build(reports / "tonnage.tar", IMAGE).file]
    (reports / "registries.yaml").write_text(yaml.safe_dump(dict(images.registries())))
    (reports / "driver.yaml").write_text(yaml.safe_dump(driver(disk, programs.version())))
    found = up(folder, 2, images=archives)
    try:
        processes = Processes(folder / "processes")
        for number in (1, 2):
            _prepare(Node(folder, number, programs.folder(), processes, network.of(folder)), disk, folder)
            address = f"{network.of(folder).node(number)}:22"
            command = [
                str(suite / "sshnode"),
                address,
                sys.executable,
                "-m",
                "tests.upstream.remote",
                str(folder),
                str(number),
            ]
            processes.start(f"ssh-{number}", command)
        kubeconfig = Path(str(found["kubeconfig"]))
        _install(kubeconfig, disk, snapshots)
        if snapshots == UPSTREAMS:
            processes.start(SNAPSHOTS, [go_program(SNAPSHOTS).path, f"--kubeconfig={kubeconfig}"])
        yield kubeconfig
    finally:
        down(folder)


def _prepare(node: Node, disk: str, folder: Path) -> None:
    """Give a node its disk, and tell it who holds its namespaces (images.py)."""
    disk = disk.removesuffix(IMMEDIATE)
    image = folder / f"{node.name}.disk"
    image.touch()
    os.truncate(image, DISK)
    subprocess.run([programs.debian(f"mkfs.{disk}"), "-q", image], check=True)
    node.inside("sh", "-c", f"mkdir -p {POOL} && mount -o loop {image} {POOL} && echo {node.holder} >{images.HOLDER}")


_IMMEDIATE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": names.IMMEDIATE_CLASS},
    "provisioner": names.DRIVER,
    "volumeBindingMode": names.IMMEDIATE,
    "allowVolumeExpansion": True,
}


def _install(kubeconfig: Path, disk: str, snapshots: str) -> None:
    _apply(kubeconfig, _manifests("--snapshot-crds"))
    kind = "btrfs" if disk == "btrfs" else "image"
    printed = _manifests(
        *("--pool", f"{kind}:{POOL},name=scratch,size={SIZE}", "--kubernetes", programs.version()),
        *(["--snapshot-controller"] if snapshots == OURS else []),
    )
    if disk.endswith(IMMEDIATE):
        printed += f"---\n{yaml.safe_dump(_IMMEDIATE_CLASS)}"
    _apply(kubeconfig, f"{printed}---\n{yaml.safe_dump(dict(ATTRIBUTES))}")
    ready = ["-n", names.SYSTEM_NAMESPACE, "rollout", "status", "daemonset", "--timeout=300s"]
    kubectl = [str(programs.kubectl()), f"--kubeconfig={kubeconfig}"]
    subprocess.run([*kubectl, *ready], check=True, stdout=subprocess.DEVNULL)


def _manifests(*arguments: str) -> str:
    command = [sys.executable, "-m", "tonnage", "manifests", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _apply(kubeconfig: Path, objects: str) -> None:
    command = [str(programs.kubectl()), f"--kubeconfig={kubeconfig}", "apply", "--validate=strict", "-f", "-"]
    subprocess.run(command, input=objects, text=True, check=True, stdout=subprocess.DEVNULL)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
