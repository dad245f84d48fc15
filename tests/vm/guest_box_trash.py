"""Undelete by kubectl, on a box with pools of the guest. Run by test_uml.py on LVM and by test_qemu.py on persistent
memory; TONNAGE_TEST_POOLS has the pools, separated by spaces, all of the same size and each with a name."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml
from tests.conftest import Cluster, missing, tonnage

from tonnage.api.quantity import to_bytes

POOLS = {text.partition(",name=")[2].split(",")[0]: text for text in os.environ["TONNAGE_TEST_POOLS"].split()}
PATIENCE = 600
"""Seconds for anything to be so: a guest is ten times slower than the machine."""
WAIT = f"--timeout={PATIENCE // 2}s"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A box of one node with all pools. Its folder is in the guest's memory, not the machine's."""
    assert not missing(), missing()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    base = tmp_path_factory.mktemp("b")
    (base / "home").mkdir()
    pools = [word for text in POOLS.values() for word in ("--pool", text)]
    cluster = Cluster(base / "data", ("--nodes", "1", *pools), base / "home")
    cluster.up()
    yield cluster
    cluster.down("--purge")


class Undelete:
    """What a user types, with the claims and pods of one pool, which are in a namespace of their own."""

    def __init__(self, box: Cluster, pool: str) -> None:
        self.box, self.pool, self.storage_class = box, pool, f"careful-{pool}"
        parameters = {"tonnage.dev/undelete": "24h", "pool": pool}
        self.apply(
            body("v1", "Namespace", pool),
            body(
                "storage.k8s.io/v1", "StorageClass", self.storage_class, provisioner="csi.tonnage.dev",
                volumeBindingMode="WaitForFirstConsumer", parameters=parameters,
            ),
        )  # fmt: skip

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.box.kubectl("--namespace", self.pool, *words, stdin=stdin)

    def apply(self, *bodies: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(bodies))

    def free(self) -> int:
        """Bytes that are published as free."""
        return to_bytes(self.box.capacities(self.storage_class).get("node-1", "0"))

    def claim(self, name: str, size: int) -> Mapping[str, Any]:
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": self.storage_class}
        return body(
            "v1", "PersistentVolumeClaim", name, spec={**spec, "resources": {"requests": {"storage": str(size)}}}
        )

    def run(self, name: str, command: str, claims: Sequence[str], *before: Mapping[str, Any]) -> str:
        """What a pod says that has each claim at /CLAIM; it is deleted. before: objects that are created with it."""
        main = {"name": "main", "image": "busybox", "command": ["sh", "-c", command]}
        mounts = [{"name": claim, "mountPath": f"/{claim}"} for claim in claims]
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
        spec = {"restartPolicy": "Never", "containers": [{**main, "volumeMounts": mounts}], "volumes": volumes}
        self.apply(*before, body("v1", "Pod", name, spec=spec))
        self.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", WAIT)
        said = self.kubectl("logs", name)
        self.kubectl("delete", "pod", name)
        return said

    def delete(self, claim: str) -> str:
        """Delete a claim, and wait for the deletion of its volume; the volume's handle."""
        volume = self.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
        handle = self.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.csi.volumeHandle}")
        self.kubectl("delete", "pvc", claim)
        self.kubectl("wait", "--for=delete", f"pv/{volume}", WAIT)
        return handle

    def trash(self) -> list[str]:
        """Claims of the pool's trash."""
        return sorted(re.findall(rf" claim {self.pool}/(\S+)", self.volumes("trash")))

    def restore(self, handle: str, claim: str) -> None:
        self.volumes("restore", handle, "--storage-class", self.storage_class, "--yes")
        self.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", f"pvc/{claim}", WAIT)

    def volumes(self, *words: str, code: int = 0) -> str:
        """What `tonnage volumes` says, which ends with this code."""
        ended = tonnage("volumes", *words, "--data", str(self.box.data), seconds=PATIENCE)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def warnings(self) -> str:
        """Messages of the Events that tell of something wrong."""
        return self.kubectl("get", "events", "--field-selector=type=Warning", "-o", "jsonpath={.items[*].message}")


def body(version: str, kind: str, name: str, **more: Any) -> Mapping[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


@pytest.mark.parametrize("pool", POOLS)
def test_claims_return_and_make_way_the_oldest_first(box: Cluster, pool: str) -> None:
    does = Undelete(box, pool)
    box.until("capacity is published", lambda: does.free() > 0, seconds=PATIENCE)
    whole = does.free()
    shares = {"kept": 2, "newer": 2, "old": 4}
    claims = [does.claim(name, whole // 10 * share) for name, share in shares.items()]
    write = "; ".join(f"echo mine {name} > /{name}/file" for name in shares)
    does.run("writer", f"{write}; sync", [*shares], *claims)
    handles = {name: does.delete(name) for name in ("old", "newer", "kept")}
    box.until("trash costs nothing", lambda: does.free() == whole, seconds=PATIENCE)
    assert does.trash() == ["kept", "newer", "old"]

    does.restore(handles["kept"], "kept")
    new = does.claim("new", whole // 10 * 3)  # more than what neither a volume nor trash has
    assert does.run("reader", "cat /kept/file; echo new > /new/file; sync", ["kept", "new"], new) == "mine kept\n"
    assert does.trash() == ["newer"]
    assert does.warnings() == ""
    assert "there is no volume in the trash" in does.volumes("restore", handles["old"], "--yes", code=1)
    does.restore(handles["newer"], "newer")
    assert does.run("again", "cat /newer/file /new/file", ["newer", "new"]) == "mine newer\nnew\n"
