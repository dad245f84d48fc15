"""A node whose contents are made by hand, as the snapshot controller makes them, and what a test asks of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.snapshot import (
    CONTENT_BOUND,
    MANAGED_BY,
    VolumeSnapshot,
    VolumeSnapshotContent,
    content_name,
)
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage_box.testing.node import FakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import eventually


class Counting:
    """A transport that records writes, but for Events and capacity; and lists of contents."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.writes: list[str] = []
        self.lists: list[str] = []

    async def request(self, request: Request) -> Response:
        """See Transport."""
        counted = not any(part in request.path for part in ("/events", "csistoragecapacities", "/nodes"))
        if request.method != "GET" and counted:
            self.writes.append(f"{request.method} {request.path}")
        if request.method == "GET" and request.path == kinds.SNAPSHOT_CONTENTS.path(""):
            self.lists.append(request.path)
        return await self.inner.request(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """See Transport."""
        async with self.inner.stream(request) as chunks:
            yield chunks

    async def close(self) -> None:
        """See Transport."""
        await self.inner.close()


@dataclass
class SnapshotWorld:
    """Makes VolumeSnapshots with their contents, as the snapshot controller does."""

    kube: Client
    make_claim: MakeClaim

    async def bound(self, node: FakeNode, name: str = "data", size: str = "4Gi", **spec: Any) -> str:
        """Make a claim and have it bound on the node; return its volume's handle."""
        await self.make_claim(name, size, storageClassName="late", **spec)
        await node.select(name)
        await eventually(lambda: node.is_bound(name))
        volume = await self.kube.get(kinds.VOLUMES, (await node.claim(name)).spec.volume_name)
        assert volume.spec.csi is not None
        return volume.spec.csi.volume_handle

    async def snapshot(self, name: str, *, claim: str = "data", content: str = "") -> VolumeSnapshot:
        """A VolumeSnapshot of a claim, or of a content."""
        source = {"volumeSnapshotContentName": content} if content else {"persistentVolumeClaimName": claim}
        body = {"metadata": {"name": name}, "spec": {"source": source}}
        return await self.kube.create(kinds.SNAPSHOTS, body, "default")

    async def content(  # what tests vary
        self,
        snapshot: VolumeSnapshot,
        *,
        name: str = "",
        volume: str = "",
        handle: str = "",
        node: str = "node-1",
        policy: str = "Delete",
        annotations: dict[str, str] | None = None,
        **spec: Any,
    ) -> str:
        """The content of a VolumeSnapshot: of a volume's handle, or of a snapshot's. node: "" for no label."""
        meta = snapshot.metadata
        ref = {"apiVersion": kinds.SNAPSHOTS.api_version, "kind": "VolumeSnapshot", "name": meta.name, "uid": meta.uid}
        body = {
            "metadata": {
                "name": name or content_name(meta.uid),
                "finalizers": [CONTENT_BOUND],
                "labels": {MANAGED_BY: node} if node else {},
                "annotations": annotations or {},
            },
            "spec": {
                "volumeSnapshotRef": {**ref, "namespace": "default"},
                "deletionPolicy": policy,
                "driver": names.DRIVER,
                "source": {"volumeHandle": volume} if volume else {"snapshotHandle": handle},
                "sourceVolumeMode": "Filesystem",
                **spec,
            },
        }
        return (await self.kube.create(kinds.SNAPSHOT_CONTENTS, body)).metadata.name

    async def read(self, name: str) -> VolumeSnapshotContent:
        """A content now."""
        return await self.kube.get(kinds.SNAPSHOT_CONTENTS, name)

    async def ready(self, name: str) -> VolumeSnapshotContent:
        """A content, once it is ready."""

        async def ask() -> VolumeSnapshotContent | None:
            now = await self.read(name)
            return now if now.status.ready_to_use else None

        found = await eventually(ask, limit=3600)
        assert found is not None
        return found

    async def failure(self, name: str, part: str = "") -> str:
        """The error of a content, once it has one with that part."""

        async def ask() -> str:
            error = (await self.read(name)).status.error
            return error.message if error is not None and part in error.message else ""

        return await eventually(ask)

    async def take(self, node: FakeNode, name: str, **more: Any) -> VolumeSnapshotContent:
        """A ready snapshot of the claim `data`, which is made where it is missing; bound as the controller does it."""
        try:
            claim = await node.claim("data")
            volume = (await self.kube.get(kinds.VOLUMES, claim.spec.volume_name)).spec.csi
            source = volume.volume_handle if volume is not None else ""
        except ApiNotFoundError:
            source = await self.bound(node)
        made = await self.snapshot(name)
        content = await self.ready(await self.content(made, volume=source, **more))
        size = f"{(content.status.restore_size or 0) >> 20}Mi"
        status = {"boundVolumeSnapshotContentName": content.metadata.name, "readyToUse": True, "restoreSize": size}
        await self.kube.patch(kinds.SNAPSHOTS, name, {"status": status}, "default", subresource="status")
        return content

    async def delete(self, name: str) -> None:
        """Delete a VolumeSnapshot, then its content, as the controller does."""
        snapshot = await self.kube.get(kinds.SNAPSHOTS, name, "default")
        await self.kube.delete(kinds.SNAPSHOTS, name, "default")
        await self.kube.delete(kinds.SNAPSHOT_CONTENTS, content_name(snapshot.metadata.uid))

    async def release(self, name: str) -> None:
        """Let a deleted VolumeSnapshot go, as the controller does once no claim is made of it."""
        await self.kube.patch(kinds.SNAPSHOTS, name, {"metadata": {"finalizers": None}}, "default")

    async def is_gone(self, content: str) -> bool:
        """Whether there is no such content."""
        try:
            await self.read(content)
        except ApiNotFoundError:
            return True
        return False
