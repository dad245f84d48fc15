"""A cluster in this process for the snapshot controller: claims, volumes, classes, and a stand-in for the agents.

The agent does what csi-snapshotter does per node: it makes ready, and deletes, and takes the content's finalizer off.
`storage` is what its driver has: handle -> the handle of the volume.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, SNAPSHOT_CLASSES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES, Kind
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.api.snapshot import CONTENT_BOUND, VolumeSnapshot, VolumeSnapshotContent, snapshot_name
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.object_write import release
from tonnage.kubernetes.client.transport import Request, Response

T = TypeVar("T", bound=KubeObject)
NANO = 1_700_000_000 * 10**9
GI = 1024**3
OTHER = "csi.example.com"


@dataclass
class Recording:
    """A transport that notes writes, and may end before or after one: as a kill between two lines."""

    inner: Any
    writes: list[str] = field(default_factory=list)
    kill_at: int = -1
    after: bool = False

    async def request(self, request: Request) -> Response:
        """Send, note, or be killed."""
        is_write = request.method != "GET" and "/events" not in request.path
        if is_write and len(self.writes) == self.kill_at and not self.after:
            raise Killed
        if is_write:
            self.writes.append(f"{request.method} {request.path.partition('/v1/')[2]}")
        response: Response = await self.inner.request(request)
        if is_write and len(self.writes) == self.kill_at + 1 and self.after:
            raise Killed
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Any]:
        async with self.inner.stream(request) as chunks:
            yield chunks

    async def close(self) -> None:
        await self.inner.close()


class Killed(BaseException):
    """The process ends here."""


@dataclass
class World:
    """Makers of objects, and the agents. kube: of the test, not of the controller."""

    kube: Client
    storage: dict[str, str] = field(default_factory=dict)
    rejection: str = ""

    async def bound(self, name: str = "data", *, driver: str = names.DRIVER, volume: Any = None) -> None:
        """A bound claim with its volume `v-NAME` on node n1."""
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = await self.kube.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")
        ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name, "uid": claim.metadata.uid}
        source = {"csi": {"driver": driver, "volumeHandle": f"pool/v-{name}"}}
        made = {
            "metadata": {"name": f"v-{name}", "labels": {names.NODE_LABEL: "n1"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "claimRef": ref}
            | (volume or source),
        }
        await self.kube.create(VOLUMES, made)
        marks = {"annotations": {names.BIND_COMPLETED: "yes"}}
        await self.kube.patch(CLAIMS, name, {"metadata": marks, "spec": {"volumeName": f"v-{name}"}}, "default")
        await self.kube.patch(CLAIMS, name, {"status": {"phase": "Bound"}}, "default", subresource="status")

    async def restoring(self, snapshot: str, name: str = "copy") -> None:
        """A Pending claim that is made from a snapshot."""
        source = {"apiGroup": SNAPSHOTS.group, "kind": SNAPSHOTS.kind, "name": snapshot}
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "dataSource": source}
        await self.kube.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")

    async def classed(
        self, name: str = "tonnage", *, default: bool = False, policy: str = "Delete", driver: str = names.DRIVER,
        parameters: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """A class."""
        notes = {"snapshot.storage.kubernetes.io/is-default-class": "true"} if default else {}
        body = {"driver": driver, "deletionPolicy": policy, "parameters": dict(parameters or {})}
        await self.kube.create(SNAPSHOT_CLASSES, {"metadata": {"name": name, "annotations": notes}, **body})

    async def snapshot(
        self,
        name: str = "monday",
        *,
        of_class: str = "",
        source: Mapping[str, str] | None = None,
        bare: bool = False,
    ) -> VolumeSnapshot:
        """A snapshot of claim data. bare: without finalizers, as on Kubernetes."""
        spec: dict[str, Any] = {"source": source or {"persistentVolumeClaimName": "data"}}
        if of_class:
            spec["volumeSnapshotClassName"] = of_class
        made = await self.kube.create(SNAPSHOTS, {"metadata": {"name": name}, "spec": spec}, "default")
        if bare:
            made = await self.kube.patch(SNAPSHOTS, name, {"metadata": {"finalizers": None}}, "default")
        return made

    async def existing(self, name: str = "old", *, uid: str = "", policy: str = "Delete", to: str = "monday") -> None:
        """A content of a snapshot that exists, for VolumeSnapshot `to`."""
        ref = {"namespace": "default", "name": to} | ({"uid": uid} if uid else {})
        spec = {
            "driver": names.DRIVER, "deletionPolicy": policy, "source": {"snapshotHandle": f"pool/{name}"},
            "volumeSnapshotRef": ref,
        }  # fmt: skip
        await self.kube.create(SNAPSHOT_CONTENTS, {"metadata": {"name": name}, "spec": spec})
        self.storage[f"pool/{name}"] = ""

    async def get(self, name: str = "monday") -> VolumeSnapshot | None:
        """A snapshot."""
        return await _found(self.kube, SNAPSHOTS, name, "default")

    async def content(self, name: str) -> VolumeSnapshotContent | None:
        """A content."""
        return await _found(self.kube, SNAPSHOT_CONTENTS, name)

    async def contents(self) -> list[VolumeSnapshotContent]:
        """All contents."""
        return list((await self.kube.list(SNAPSHOT_CONTENTS)).items)

    async def act(self) -> None:
        """The agents do what the contents ask for. Idempotent."""
        for content in await self.contents():
            if content.metadata.deleting:
                await self._let_go(content)
            elif not content.status.ready_to_use and CONTENT_BOUND in content.metadata.finalizers:
                await self._make_ready(content)

    async def _make_ready(self, content: VolumeSnapshotContent) -> None:
        source = content.spec.source
        if self.rejection:
            error = {"message": self.rejection, "time": "2026-01-02T03:04:05Z"}
            return await self._write(content, {"readyToUse": False, "error": error})
        handle = source.snapshot_handle or f"pool/{snapshot_name(content.spec.volume_snapshot_ref.uid)}"
        self.storage.setdefault(handle, source.volume_handle)
        status = {"snapshotHandle": handle, "creationTime": NANO, "restoreSize": GI, "readyToUse": True, "error": None}
        return await self._write(content, status)

    async def _write(self, content: VolumeSnapshotContent, status: Mapping[str, Any]) -> None:
        name = content.metadata.name
        await self.kube.patch(SNAPSHOT_CONTENTS, name, {"status": status}, subresource="status")

    async def _let_go(self, content: VolumeSnapshotContent) -> None:
        ref = content.spec.volume_snapshot_ref
        user = await _found(self.kube, SNAPSHOTS, ref.name, ref.namespace)
        if ref.uid and user is not None and user.metadata.uid == ref.uid and not user.metadata.deleting:
            return
        if content.spec.deletion_policy == "Delete":
            self.storage.pop(content.handle or f"pool/{snapshot_name(ref.uid)}", None)
        await release(self.kube, SNAPSHOT_CONTENTS, content, CONTENT_BOUND)


async def _found(kube: Client, kind: Kind[T], name: str, namespace: str = "") -> T | None:
    try:
        return await kube.get(kind, name, namespace)
    except ApiNotFoundError:
        return None
