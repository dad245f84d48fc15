"""The world of the snapshot controller with groups: labelled claims, classes, and agents that take group snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.unit.controller.snapshots.world import GI, NANO, Recording, World
from tests.unit.fixture_types import Settle

from tonnage.controller.snapshots.role import SnapshotLoops
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.group_snapshot import (
    GROUP_CONTENT_BOUND,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotContent,
    group_name,
    is_member_content,
)
from tonnage.kubernetes.api.kinds import (
    CLAIMS,
    GROUP_CLASSES,
    GROUP_CONTENTS,
    GROUP_SNAPSHOTS,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    VOLUMES,
)
from tonnage.kubernetes.api.snapshot import CONTENT_BOUND, VolumeSnapshot, VolumeSnapshotContent
from tonnage.kubernetes.client.object_write import release
from tonnage.provisioning.claims.bind import find

TAKEN = "2023-11-14T22:13:20Z"


@dataclass
class GroupWorld(World):
    """Makers of groups. `storage` has the members: handle -> volume."""

    async def db(self, *claims: str, label: str = "db", **more: Any) -> None:
        """Bound claims with a label."""
        for name in claims or ("data", "log"):
            await self.bound(name, **more)
            await self.kube.patch(CLAIMS, name, {"metadata": {"labels": {"app": label}}}, "default")

    async def move(self, claim: str, node: str) -> None:
        """Have the volume of a claim on another node."""
        await self.kube.patch(VOLUMES, f"v-{claim}", {"metadata": {"labels": {names.NODE_LABEL: node}}})

    async def group_classed(
        self, name: str = "tonnage", *, default: bool = False, policy: str = "Delete", driver: str = names.DRIVER,
        parameters: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """A class of groups."""
        notes = {"groupsnapshot.storage.kubernetes.io/is-default-class": "true"} if default else {}
        body = {"driver": driver, "deletionPolicy": policy, "parameters": dict(parameters or {})}
        await self.kube.create(GROUP_CLASSES, {"metadata": {"name": name, "annotations": notes}, **body})

    async def group(
        self, name: str = "nightly", *, of_class: str = "tonnage", source: Any = None, bare: bool = False
    ) -> VolumeGroupSnapshot:
        """A group of the claims of app db. bare: without finalizers, as on Kubernetes."""
        spec: dict[str, Any] = {"source": source or {"selector": {"matchLabels": {"app": "db"}}}}
        if of_class:
            spec["volumeGroupSnapshotClassName"] = of_class
        made = await self.kube.create(GROUP_SNAPSHOTS, {"metadata": {"name": name}, "spec": spec}, "default")
        if bare:
            made = await self.kube.patch(GROUP_SNAPSHOTS, name, {"metadata": {"finalizers": None}}, "default")
        return made

    async def existing_group(self, name: str = "old", *, to: str = "nightly", policy: str = "Delete") -> None:
        """A content of a group that exists, for VolumeGroupSnapshot `to`."""
        handles = {"volumeGroupSnapshotHandle": f"pool/{name}", "volumeSnapshotHandles": ["pool/a", "pool/b"]}
        spec = {
            "driver": names.DRIVER, "deletionPolicy": policy, "source": {"groupSnapshotHandles": handles},
            "volumeGroupSnapshotRef": {"namespace": "default", "name": to},
        }  # fmt: skip
        await self.kube.create(GROUP_CONTENTS, {"metadata": {"name": name}, "spec": spec})
        self.storage.update({"pool/a": "", "pool/b": ""})

    async def get_group(self, name: str = "nightly") -> VolumeGroupSnapshot | None:
        """A group."""
        return await find(self.kube, GROUP_SNAPSHOTS, name, "default")

    async def group_contents(self) -> list[VolumeGroupSnapshotContent]:
        """All contents of groups."""
        return list((await self.kube.list(GROUP_CONTENTS)).items)

    async def members(self) -> list[VolumeSnapshot]:
        """All VolumeSnapshots."""
        return list((await self.kube.list(SNAPSHOTS, "default")).items)

    async def act(self) -> None:
        """The agents do what the contents ask for: single ones, groups, and members, which only lose the finalizer."""
        for content in await self.group_contents():
            if content.metadata.deleting:
                await self._end_group(content)
            elif not content.status.ready_to_use and GROUP_CONTENT_BOUND in content.metadata.finalizers:
                await self._take_group(content)
        await super().act()

    async def _make_ready(self, content: VolumeSnapshotContent) -> None:
        if not is_member_content(content):
            await super()._make_ready(content)

    async def _let_go(self, content: VolumeSnapshotContent) -> None:
        await (self.free(content) if is_member_content(content) else super()._let_go(content))

    async def _take_group(self, content: VolumeGroupSnapshotContent) -> None:
        given, uid = content.spec.source.group_snapshot_handles, content.spec.volume_group_snapshot_ref.uid
        if self.rejection:
            status: dict[str, Any] = {"readyToUse": False, "error": {"message": self.rejection, "time": TAKEN}}
        else:
            made = {f"{volume}-{uid}": volume for volume in content.spec.source.volume_handles}
            if given is not None:
                made = dict.fromkeys(given.volume_snapshot_handles, "")
            self.storage.update(made)
            listed = [
                {"volumeHandle": v, "snapshotHandle": s, "creationTime": NANO, "readyToUse": True, "restoreSize": GI}
                for s, v in made.items()
            ]
            handle = content.handle or f"pool/{group_name(uid)}"
            status = {
                "volumeGroupSnapshotHandle": handle, "creationTime": TAKEN, "readyToUse": True, "error": None,
                "volumeSnapshotInfoList": listed,
            }  # fmt: skip
        name = content.metadata.name
        await self.kube.patch(GROUP_CONTENTS, name, {"status": status}, subresource="status")

    async def _end_group(self, content: VolumeGroupSnapshotContent) -> None:
        ref = content.spec.volume_group_snapshot_ref
        user = await find(self.kube, GROUP_SNAPSHOTS, ref.name, ref.namespace)
        if ref.uid and user is not None and user.metadata.uid == ref.uid and not user.metadata.deleting:
            return
        if content.spec.deletion_policy == "Delete":
            uid = ref.uid
            ids = content.snapshot_handles or [f"{volume}-{uid}" for volume in content.spec.source.volume_handles]
            for handle in ids:
                self.storage.pop(handle, None)
        await release(self.kube, GROUP_CONTENTS, content, GROUP_CONTENT_BOUND)

    async def free(self, member: VolumeSnapshotContent) -> None:
        """Take the finalizer off a deleted member."""
        ref = member.spec.volume_snapshot_ref
        user = await find(self.kube, SNAPSHOTS, ref.name, ref.namespace)
        if member.metadata.deleting and (user is None or user.metadata.deleting):
            await release(self.kube, SNAPSHOT_CONTENTS, member, CONTENT_BOUND)


@dataclass
class GroupLoops:
    """The running loops; settled() lets them and the agents work until nothing changes."""

    world: GroupWorld
    settle: Settle
    recording: Recording
    loops: SnapshotLoops

    async def settled(self, *, agents: bool = True) -> list[str]:
        """What the loops have written, until they are quiet."""
        before = len(self.recording.writes)
        for _ in range(8):
            await self.quiet()
            if agents:
                await self.world.act()
        await self.quiet()
        return self.recording.writes[before:]

    async def quiet(self) -> None:
        """Nothing is queued."""
        for _ in range(3):
            await self.settle()
            for _ in range(200):
                counts = [loop._controller.queue.counts for loop in self.loops.all]
                if not any(count[word] for count in counts for word in ("waiting", "working", "delayed")):
                    break
                await asyncio.sleep(0.01)
