"""Undelete as a user types it: claims are deleted by kubectl, listed, restored, and make way. Used by suites of pools
that a machine has not."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import yaml

from tonnage.kubernetes.api.quantity import to_bytes

PATIENCE = 600
"""Seconds for anything to be so: a guest is ten times slower than the machine."""
WAIT = f"--timeout={PATIENCE // 2}s"


class Kubectl(Protocol):
    """A cluster's kubectl, which must not fail."""

    def __call__(self, *arguments: str, stdin: str | None = None) -> str: ...


class Until(Protocol):
    """Waits for something that no watch of ours tells."""

    def __call__(self, what: str, holds: Callable[[], bool], *, seconds: float) -> None: ...


class Undelete:
    """One pool's claims and pods, with a class and in a namespace that is there.

    volumes: runs `tonnage volumes` with these words on the pool's node, as an administrator.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        until: Until,
        volumes: Callable[..., subprocess.CompletedProcess[str]],
        *,
        pool: str,
        namespace: str,
        image: str = "busybox",
    ) -> None:
        self._kubectl, self.until, self._volumes = kubectl, until, volumes
        self.namespace, self.image, self.storage_class = namespace, image, f"careful-{pool}"
        parameters = {"tonnage.dev/undelete": "24h", "pool": pool}
        late = {"provisioner": "csi.tonnage.dev", "volumeBindingMode": "WaitForFirstConsumer"}
        self.apply(body("storage.k8s.io/v1", "StorageClass", self.storage_class, **late, parameters=parameters))

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self._kubectl("--namespace", self.namespace, *words, stdin=stdin)

    def apply(self, *bodies: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(bodies))

    def free(self) -> int:
        """Bytes that are published as free."""
        found = json.loads(self._kubectl("get", "csistoragecapacities", "-A", "-o", "json"))["items"]
        return max(
            (to_bytes(one["capacity"]) for one in found if one["storageClassName"] == self.storage_class), default=0
        )

    def claim(self, name: str, size: int) -> Mapping[str, Any]:
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": self.storage_class}
        return body(
            "v1", "PersistentVolumeClaim", name, spec={**spec, "resources": {"requests": {"storage": str(size)}}}
        )

    def run(self, name: str, command: str, claims: Sequence[str], *before: Mapping[str, Any]) -> str:
        """What a pod says that has each claim at /CLAIM; it is deleted. before: objects that are created with it."""
        main = {"name": "main", "image": self.image, "command": ["sh", "-c", command]}
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
        """Claims of the trash, in alphabetical order."""
        return sorted(re.findall(rf" claim {self.namespace}/(\S+)", self.volumes("trash")))

    def restore(self, handle: str, claim: str) -> None:
        self.volumes("restore", handle, "--storage-class", self.storage_class, "--yes")
        self.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", f"pvc/{claim}", WAIT)

    def volumes(self, *words: str, code: int = 0) -> str:
        """What `tonnage volumes` says, which ends with this code."""
        ended = self._volumes(*words)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def rejections(self, *objects: str) -> list[str]:
        """Messages of Events by which these pods and claims lacked capacity; a slow guest also warns of its slowness."""
        found = json.loads(self.kubectl("get", "events", "--field-selector=type=Warning", "-o", "json"))["items"]
        said = [one["message"] for one in found if one["involvedObject"]["name"] in objects]
        return [text for text in said if re.search(r"storage|capacity|exhausted|full|no space", text, re.IGNORECASE)]

    def claims_return_and_make_way_the_oldest_first(self) -> None:
        """The pool has no volumes before."""
        self.until("capacity is published", lambda: self.free() > 0, seconds=PATIENCE)
        whole = self.free()
        shares = {"kept": 2, "newer": 2, "old": 4}
        claims = [self.claim(name, whole // 10 * share) for name, share in shares.items()]
        write = "; ".join(f"echo mine {name} > /{name}/file" for name in shares)
        self.run("writer", f"{write}; sync", [*shares], *claims)
        handles = {name: self.delete(name) for name in ("old", "newer", "kept")}
        self.until("trash costs nothing", lambda: self.free() == whole, seconds=PATIENCE)
        assert self.trash() == ["kept", "newer", "old"]

        self.restore(handles["kept"], "kept")
        new = self.claim("new", whole // 10 * 3)  # more than what neither a volume nor trash has
        said = self.run("reader", "cat /kept/file; echo new > /new/file; sync", ["kept", "new"], new)
        assert said == "mine kept\n"
        assert self.trash() == ["newer"]
        rejections = self.rejections("reader", "new")
        assert not rejections, rejections
        assert "there is no volume in the trash" in self.volumes("restore", handles["old"], "--yes", code=1)
        self.restore(handles["newer"], "newer")
        assert self.run("again", "cat /newer/file /new/file", ["newer", "new"]) == "mine newer\nnew\n"


def body(version: str, kind: str, name: str, **more: Any) -> Mapping[str, Any]:
    """An object of Kubernetes."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}
