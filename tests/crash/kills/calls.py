"""The calls of a life, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from tests.crash.kills.kinds import Kind
from tests.crash.kills.machine import MI

from tonnage.csi._proto import csi_pb2, inventory_pb2
from tonnage.host import filesystem

POD = "csi-0123456789abcdef"


@dataclass(frozen=True)
class Call:
    """One RPC. undo: name of the call that takes it back. then: what a pod, or nobody, does when it is answered."""

    name: str
    service: str
    method: str
    request: Message
    undo: str = ""
    then: Do | None = None

    @property
    def volume(self) -> str:
        """The volume or snapshot that it is about."""
        request: Any = self.request
        name = getattr(request, "volume_id", "") or getattr(request, "snapshot_id", "") or request.name
        return str(name).removeprefix("p/")

    @property
    def makes(self) -> bool:
        """Whether the volume or snapshot is there when it is answered."""
        return self.undo.startswith(("delete", "inline"))

    @property
    def removes(self) -> bool:
        """Whether it is gone then."""
        return self.then is not None and self.then.what == "forget"


@dataclass(frozen=True)
class Do:
    """What the test does with the data of volumes: `write` to where volume is published; `copy`: from here on
    `volume` has what `source` has; `forget`: the volume is gone."""

    what: str
    volume: str
    source: str = ""


class Calls:
    """Makes the calls of one kind in a folder."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._capability = kind.capability

    def staging(self, volume: str) -> Path:
        """Where a volume is staged."""
        return self._folder / f"staging-{volume}"

    def target(self, volume: str) -> Path:
        """Where a pod sees it."""
        return self._folder / f"target-{volume}"

    @property
    def _is_ext4(self) -> bool:
        return self._kind.pool.startswith("image:") and not self._kind.block and self._kind.fstype in ("", "ext4")

    def all(self) -> Iterator[Call]:
        """The calls of a life: the next one is made when the one before has its answer."""
        if self._kind.larger:
            yield from self._trash()
            return
        yield self.create("v")
        yield self.stage("v")
        yield self._publish("v", then=Do("write", "v"))
        if self._kind.copies and not self._kind.grows_first:
            yield self._keep("v", "s")
        if self._kind.grows:
            yield from self._grow("v")
        if self._kind.copies and self._kind.grows_first:
            yield self._keep("v", "s")
        if self._kind.changes:
            yield from self._change("v")
        yield self._unpublish("v")
        yield self.unstage("v")
        if self._kind.copies:
            yield from self._copies()
        yield self.stage("v", " again")
        yield self._publish("v", " read-only", readonly=True)
        yield self._unpublish("v", " read-only")
        yield self.unstage("v", " again")
        yield self.delete("v")
        if self._kind.inline:
            yield from self._inline()

    def _trash(self) -> Iterator[Call]:
        """A deleted volume is restored, is deleted again, and makes way for another one."""
        yield replace(self.create("v"), undo="")  # it would become trash
        yield self.stage("v")
        yield self._publish("v", then=Do("write", "v"))
        yield self._unpublish("v")
        yield self.unstage("v")
        yield replace(self.delete("v"), then=None)
        request = inventory_pb2.RestoreVolumeRequest(volume_id="p/v")
        yield Call("restore v", "Trash", "RestoreVolume", request, undo="delete v")
        yield self.stage("v", " again")
        yield self.unstage("v", " again")
        yield replace(self.delete("v"), name="delete v again", then=None)
        larger = self.create("w", size=self._kind.larger)
        larger.request.parameters.clear()  # type: ignore[attr-defined]
        yield replace(larger, undo="", then=Do("forget", "v"))  # the trash may have made way by then
        yield self.delete("w")

    def create(self, volume: str, *, size: int = 0, **source: str) -> Call:
        """Make a volume of so many MiB, from a `snapshot` or as a `clone`."""
        request = csi_pb2.CreateVolumeRequest(
            name=volume,
            capacity_range=csi_pb2.CapacityRange(required_bytes=(size or self._kind.size) * MI),
            volume_capabilities=[self._capability],
            parameters=self._kind.parameters,
        )
        before = ""
        if "snapshot" in source:
            request.volume_content_source.snapshot.snapshot_id = f"p/{source['snapshot']}"
            before = source["snapshot"]
        elif "clone" in source:
            request.volume_content_source.volume.volume_id = f"p/{source['clone']}"
            before = source["clone"]
        then = Do("copy", volume, before) if before else None
        return Call(f"create {volume}", "Controller", "CreateVolume", request, undo=f"delete {volume}", then=then)

    def delete(self, volume: str) -> Call:
        """Delete a volume."""
        request = csi_pb2.DeleteVolumeRequest(volume_id=f"p/{volume}")
        return Call(f"delete {volume}", "Controller", "DeleteVolume", request, then=Do("forget", volume))

    def stage(self, volume: str, more: str = "") -> Call:
        """Stage a volume."""
        request = csi_pb2.NodeStageVolumeRequest(
            volume_id=f"p/{volume}",
            staging_target_path=str(self.staging(volume)),
            volume_capability=self._capability,
        )
        return Call(f"stage {volume}{more}", "Node", "NodeStageVolume", request, undo=f"unstage {volume}{more}")

    def unstage(self, volume: str, more: str = "") -> Call:
        """Take it away."""
        request = csi_pb2.NodeUnstageVolumeRequest(
            volume_id=f"p/{volume}", staging_target_path=str(self.staging(volume))
        )
        return Call(f"unstage {volume}{more}", "Node", "NodeUnstageVolume", request)

    def _publish(self, volume: str, more: str = "", *, readonly: bool = False, then: Do | None = None) -> Call:
        request = csi_pb2.NodePublishVolumeRequest(
            volume_id=f"p/{volume}",
            staging_target_path=str(self.staging(volume)),
            target_path=str(self.target(volume)),
            volume_capability=self._capability,
            readonly=readonly,
        )
        undo = f"unpublish {volume}{more}"
        return Call(f"publish {volume}{more}", "Node", "NodePublishVolume", request, undo=undo, then=then)

    def _unpublish(self, volume: str, more: str = "") -> Call:
        request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=f"p/{volume}", target_path=str(self.target(volume)))
        return Call(f"unpublish {volume}{more}", "Node", "NodeUnpublishVolume", request)

    def _keep(self, volume: str, snapshot: str) -> Call:
        request = csi_pb2.CreateSnapshotRequest(name=snapshot, source_volume_id=f"p/{volume}")
        return Call(
            f"snapshot {snapshot}", "Controller", "CreateSnapshot", request,
            undo=f"delete snapshot {snapshot}", then=Do("copy", snapshot, volume),
        )  # fmt: skip

    def _grow(self, volume: str) -> Iterator[Call]:
        size = csi_pb2.CapacityRange(required_bytes=(self._kind.size + 8) * MI)
        larger = csi_pb2.ControllerExpandVolumeRequest(
            volume_id=f"p/{volume}", capacity_range=size, volume_capability=self._capability
        )
        yield Call(f"expand {volume}", "Controller", "ControllerExpandVolume", larger, then=Do("write", volume))
        if self._is_ext4 and not filesystem.may_grow_ext4():
            return  # it grows when it is staged the next time
        grown = csi_pb2.NodeExpandVolumeRequest(
            volume_id=f"p/{volume}",
            volume_path=str(self.target(volume)),
            staging_target_path=str(self.staging(volume)),
            capacity_range=size,
            volume_capability=self._capability,
        )
        yield Call(f"grow {volume}", "Node", "NodeExpandVolume", grown)

    def _change(self, volume: str) -> Iterator[Call]:
        """There and back, as nothing here has pods whose IO could be limited."""
        for more, changes in ("", self._kind.changes), (" back", dict.fromkeys(self._kind.changes, "")):
            request = csi_pb2.ControllerModifyVolumeRequest(volume_id=f"p/{volume}", mutable_parameters=changes)
            yield Call(f"change {volume}{more}", "Controller", "ControllerModifyVolume", request)

    def _copies(self) -> Iterator[Call]:
        more = 8 if self._kind.grows else 0
        yield self.create("c", size=self._kind.size + more, clone="v")
        yield self.create("r", size=self._kind.size + more, snapshot="s")
        for volume in "c", "r":
            yield self.stage(volume)
            yield self.unstage(volume)
        yield self.forget("s")
        yield self.delete("r")
        yield self.delete("c")

    def _inline(self) -> Iterator[Call]:
        target, context = self.target(POD), {"csi.storage.k8s.io/ephemeral": "true", "size": f"{self._kind.size}Mi"}
        made = csi_pb2.NodePublishVolumeRequest(
            volume_id=POD,
            target_path=str(target),
            volume_capability=self._capability,
            volume_context={**context, **self._kind.parameters},
        )
        yield Call("inline publish", "Node", "NodePublishVolume", made, undo="inline unpublish", then=Do("write", POD))
        yield self.gone()

    def gone(self) -> Call:
        """The end of a pod's own volume."""
        request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=POD, target_path=str(self.target(POD)))
        return Call("inline unpublish", "Node", "NodeUnpublishVolume", request, then=Do("forget", POD))

    def forget(self, snapshot: str) -> Call:
        """Delete a snapshot."""
        request = csi_pb2.DeleteSnapshotRequest(snapshot_id=f"p/{snapshot}")
        return Call(f"delete snapshot {snapshot}", "Controller", "DeleteSnapshot", request, then=Do("forget", snapshot))
