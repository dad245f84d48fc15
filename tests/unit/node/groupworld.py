"""A node whose group contents are made by hand, as the snapshot controller makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.unit.node.snapshotworld import SnapshotWorld

from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.group_snapshot import (
    GROUP_CONTENT_BOUND,
    GROUP_HANDLE,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotContent,
    group_content_name,
    member_names,
)
from tonnage.kubernetes.api.snapshot import MANAGED_BY
from tonnage.provisioning.claims.bind import find
from tonnage_box.testing.node import FakeNode
from tonnage_box.testing.wait import eventually


@dataclass
class GroupNodeWorld(SnapshotWorld):
    """Makes VolumeGroupSnapshots with their contents."""

    async def pair(self, node: FakeNode, *claims: str) -> list[str]:
        """Handles of bound claims."""
        return [await self.bound(node, name, "2Gi") for name in claims or ("data", "log")]

    async def group(self, name: str = "nightly", *, content: str = "") -> VolumeGroupSnapshot:
        """A VolumeGroupSnapshot."""
        source = {"volumeGroupSnapshotContentName": content} if content else {"selector": {"matchLabels": {"a": "b"}}}
        body = {"metadata": {"name": name}, "spec": {"source": source}}
        return await self.kube.create(kinds.GROUP_SNAPSHOTS, body, "default")

    async def group_content(
        self,
        group: VolumeGroupSnapshot,
        volumes: Sequence[str] = (),
        *,
        name: str = "",
        handles: tuple[str, Sequence[str]] | None = None,
        node: str = "node-1",
        policy: str = "Delete",
        **spec: Any,
    ) -> str:
        """The content of a VolumeGroupSnapshot: of volumes, or of an existing group. node: "" for no label."""
        meta = group.metadata
        ref = {"kind": "VolumeGroupSnapshot", "name": meta.name, "namespace": "default", "uid": meta.uid}
        source: dict[str, Any] = {"volumeHandles": list(volumes)}
        if handles is not None:
            given = {"volumeGroupSnapshotHandle": handles[0], "volumeSnapshotHandles": list(handles[1])}
            source = {"groupSnapshotHandles": given}
        body = {
            "metadata": {
                "name": name or group_content_name(meta.uid),
                "finalizers": [GROUP_CONTENT_BOUND],
                "labels": {MANAGED_BY: node} if node else {},
            },
            "spec": {
                "volumeGroupSnapshotRef": ref,
                "deletionPolicy": policy,
                "driver": names.DRIVER,
                "source": source,
                **spec,
            },
        }
        return (await self.kube.create(kinds.GROUP_CONTENTS, body)).metadata.name

    async def read_group(self, name: str) -> VolumeGroupSnapshotContent | None:
        """A group content now, None if it is gone."""
        return await find(self.kube, kinds.GROUP_CONTENTS, name)

    async def group_ready(self, name: str) -> VolumeGroupSnapshotContent:
        """A group content, once it is ready."""

        async def ask() -> VolumeGroupSnapshotContent | None:
            now = await self.read_group(name)
            return now if now is not None and now.status.ready_to_use else None

        found = await eventually(ask, limit=3600)
        assert found is not None
        return found

    async def group_failure(self, name: str, part: str = "") -> str:
        """The error of a group content, once it has one with that part."""

        async def ask() -> str:
            now = await self.read_group(name)
            error = now.status.error if now is not None else None
            return error.message if error is not None and part in error.message else ""

        return await eventually(ask)

    async def member(self, content: VolumeGroupSnapshotContent, index: int, **more: Any) -> str:
        """A member's VolumeSnapshot and content, as the snapshot controller makes them; the content's name."""
        info = content.status.volume_snapshot_info_list[index]
        snapshot, name = member_names(content.spec.volume_group_snapshot_ref.uid, info.volume_handle)
        made = await self.snapshot(snapshot)
        notes = {GROUP_HANDLE: content.handle}
        await self.content(made, name=name, volume=info.volume_handle, annotations=notes, **more)
        status = {"snapshotHandle": info.snapshot_handle, "readyToUse": True, "restoreSize": info.restore_size}
        await self.kube.patch(kinds.SNAPSHOT_CONTENTS, name, {"status": status}, subresource="status")
        return name

    async def delete_group(self, name: str = "nightly") -> None:
        """Delete a VolumeGroupSnapshot, then its content, as the controller does."""
        group = await self.kube.get(kinds.GROUP_SNAPSHOTS, name, "default")
        await self.kube.delete(kinds.GROUP_SNAPSHOTS, name, "default")
        await self.kube.delete(kinds.GROUP_CONTENTS, group_content_name(group.metadata.uid))

    async def group_gone(self, name: str) -> None:
        """Wait until a group content is gone."""

        async def ask() -> bool:
            return await self.read_group(name) is None

        await eventually(ask, limit=3600)
