"""Velero keeps a namespace and brings it back: its own server and commands, its CSI path, on real kubelets.

`make test-velero` builds the two programs and runs this. The server runs outside of the cluster, as the administrator;
backups go to a bucket on this machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from cluster.__main__ import BUSYBOX
from tests.e2e import bucket, pods
from tests.e2e.machines import POOL, Machines
from tests.e2e.processes import until
from tests.e2e.test_data_services import snapshots, storage_class
from tests.integration.third_party.programs import VELERO
from tests.programs import found

pytestmark = [pytest.mark.e2e, pytest.mark.velero, pytest.mark.timeout(1800)]
__all__ = ["snapshots"]
PROGRAM, PLUGIN = VELERO
NAMESPACE, BUCKET = "velero", "backups"
SHOP = "shop"


@dataclass(frozen=True)
class Velero:
    """Its program, and the cluster that it works on."""

    machines: Machines
    program: Path
    folder: Path

    def run(self, *arguments: str) -> str:
        """A command of its client; what it prints. It must not fail."""
        flags = (f"--kubeconfig={self.machines.plane.kubeconfig}", f"--namespace={NAMESPACE}")
        ended = subprocess.run(
            [self.program, *arguments, *flags], capture_output=True, text=True, timeout=600, env=self.environment()
        )
        assert ended.returncode == 0, f"velero {' '.join(arguments)}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def environment(self) -> dict[str, str]:
        """Credentials that nobody checks, and no settings of the person who runs the tests."""
        keys = self.folder / "credentials"
        keys.write_text("[default]\naws_access_key_id=some\naws_secret_access_key=some\n")
        given = {
            "HOME": str(self.folder),
            "AWS_SHARED_CREDENTIALS_FILE": str(keys),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return {"PATH": os.environ["PATH"], **given}

    def phase(self, kind: str, name: str) -> str:
        """How far a backup or restore is."""
        return str(self.get(kind, name).get("status", {}).get("phase", ""))

    def get(self, kind: str, name: str) -> Any:
        return self.machines.plane.get("-n", NAMESPACE, f"{kind}.velero.io", name)


@pytest.fixture
def velero(machines: Machines, snapshots: None, tmp_path: Path) -> Iterator[Velero]:
    """Installed, and its server at work."""
    made = Velero(machines, found(PROGRAM), tmp_path)
    plane = machines.plane
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / PLUGIN).symlink_to(found(PLUGIN))
    plane.kubectl(
        "apply", "--server-side", "-f", "-", stdin=made.run("install", "--crds-only", "--dry-run", "-o", "yaml")
    )
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    with bucket.served({}) as url:
        plane.apply(_location(url), _nominal())
        with (tmp_path / "server.log").open("wb") as log, _server(made, plugins, log):
            until(plane, "the bucket is found", lambda: made.phase("backupstoragelocation", "default") == "Available")
            try:
                yield made
            finally:
                print((tmp_path / "server.log").read_text()[-20000:])
    plane.kubectl("delete", "namespace", NAMESPACE)


@contextmanager
def _server(velero: Velero, plugins: Path, log: IO[bytes]) -> Iterator[None]:
    """Velero's server while it runs."""
    flags = (f"--kubeconfig={velero.machines.plane.kubeconfig}", f"--namespace={NAMESPACE}", "--features=EnableCSI")
    pace = ("--store-validation-frequency=10s", "--item-operation-sync-frequency=2s", "--metrics-address=127.0.0.1:0")
    command = (velero.program, "server", f"--plugin-dir={plugins}", *pace, *flags)
    with subprocess.Popen(command, stdout=log, stderr=log, env=velero.environment()) as process:
        try:
            yield
        finally:
            process.terminate()


def _nominal() -> dict[str, Any]:
    """Velero's Deployment without pods: restores read its image from it."""
    labels = {"app": "velero"}
    containers = [{"name": "velero", "image": "none.invalid/velero:none"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "velero", "namespace": NAMESPACE}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _location(url: str) -> dict[str, Any]:
    where = {"region": "here", "s3ForcePathStyle": "true", "s3Url": url}
    spec = {"provider": "aws", "default": True, "objectStorage": {"bucket": BUCKET}, "config": where}
    metadata = {"name": "default", "namespace": NAMESPACE}
    return {"apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": metadata, "spec": spec}


def test_a_namespace_comes_back_from_a_backup(velero: Velero) -> None:
    machines = velero.machines
    plane = machines.plane
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}}, storage_class("shop"))
    with pods.removed(machines, f"namespace/{SHOP}", "storageclass/shop"):
        plane.apply(*_shop())
        _ready(velero)
        _shell(velero, "echo monday > /data/word && sync")
        velero.run("backup", "create", "monday", f"--include-namespaces={SHOP}", "--wait")
        assert velero.phase("backup", "monday") == "Completed", velero.run("backup", "describe", "monday", "--details")
        _shell(velero, "echo tuesday > /data/word && sync")
        plane.kubectl("delete", "namespace", SHOP)
        assert _kept(machines), "the snapshot outlives its volume and namespace"

        velero.run("restore", "create", "back", "--from-backup=monday", "--wait")
        assert velero.phase("restore", "back") == "Completed", velero.run("restore", "describe", "back", "--details")
        _ready(velero)
        assert _shell(velero, "cat /data/word").split() == ["monday"]

        velero.run("backup", "delete", "monday", "--confirm")
        until(plane, "the backup is gone", lambda: not plane.get("-n", NAMESPACE, "backups.velero.io")["items"])
        assert _shell(velero, "cat /data/word").split() == ["monday"]
    until(plane, "nothing is left of the snapshot", lambda: not _kept(machines))


def _shop() -> list[dict[str, Any]]:
    """A claim and the Deployment that uses it."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "shop",
        "resources": {"requests": {"storage": "512Mi"}},
    }
    disk = {"name": "disk", "persistentVolumeClaim": {"claimName": "data"}}
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sleep", "100000"],
        "volumeMounts": [{"name": "disk", "mountPath": "/data"}],
    }
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container], "volumes": [disk]}
    labels, metadata = {"app": "shop"}, {"namespace": SHOP}
    template = {"metadata": {"labels": labels}, "spec": pod}
    deployment = {"selector": {"matchLabels": labels}, "template": template, "strategy": {"type": "Recreate"}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", **metadata}, "spec": spec},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop", **metadata}, "spec": deployment},
    ]


def _ready(velero: Velero) -> None:
    velero.machines.plane.kubectl("-n", SHOP, "rollout", "status", "deployment/shop", "--timeout=300s")


def _shell(velero: Velero, command: str) -> str:
    return velero.machines.plane.kubectl("-n", SHOP, "exec", "deployment/shop", "--", "sh", "-c", command)


def _kept(machines: Machines) -> list[str]:
    """Files of snapshots on the nodes."""
    return [
        line
        for node in machines.names
        for line in machines.inside(node, f"find {POOL} -xdev -name '*snapshot-*'").splitlines()
    ]
