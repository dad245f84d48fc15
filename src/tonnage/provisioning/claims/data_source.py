"""Data source of a claim: found by live reads, and checked for this node; or left to an external populator.

Nothing is cached: sources change, and agents watch only their own node's claims. A claim on a node without its source
is rescheduled with the reason; external-provisioner does not check this. The controller or our scheduler then selects
the source's node.
"""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.base.errors import InvalidError, PreconditionError
from tonnage.csi.client.types import ContentSource
from tonnage.kubernetes.api import matching, names
from tonnage.kubernetes.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, CONTENTS, NODES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES
from tonnage.kubernetes.api.origin import (
    Origin,
    content_name_of,
    is_content,
    is_restore,
    origin_of,
    reference,
    volume_name_of,
)
from tonnage.kubernetes.api.quantity import from_bytes
from tonnage.kubernetes.api.snapshot import ALLOW_MODE_CHANGE, VolumeSnapshotContent
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.events import NORMAL, EventRecorder
from tonnage.provisioning.claims.bind import find
from tonnage.provisioning.claims.node_scope import DriverInfo
from tonnage.storage.content import spec
from tonnage.storage.content.spec import ContentSpec

_LONGEST_LABEL = 63
POPULATED = "Assuming an external populator will provision the volume"


@dataclass(frozen=True)
class SourceOnOtherNode:
    """The data source is on another node.

    reason: a message for people.
    """

    reason: str


async def content_of(
    client: Client, claim: PersistentVolumeClaim, driver: DriverInfo, node: str
) -> ContentSource | SourceOnOtherNode | None:
    """Return the content source, None for an empty volume. Idempotent.

    The data source is a claim or a snapshot: the plan of the request has checked that. node: label of this node.

    Raises: InvalidError for what can never succeed, PreconditionError while the source is not ready, ApiError,
    UnavailableError.
    """
    if reference(claim) is None or is_content(claim):
        return None
    found = await (_snapshot(client, claim) if is_restore(claim) else _claim(client, claim))
    name = claim.metadata.name
    if found is None:
        raise PreconditionError("cannot clone: its source does not exist")
    if found.content is not None and found.node:
        if found.node != node:
            await _check_node(client, claim, found)
            return SourceOnOtherNode(f"claim {name} {found.verb} {found.text}, which lies on node {found.node}")
    elif found.volume is not None and not driver.reaches(found.volume):
        volume = found.volume.metadata.name
        return SourceOnOtherNode(f"claim {name} {found.verb} {found.text}, whose volume {volume} is on another node")
    if found.missing:
        raise PreconditionError(f"cannot {found.verb.removesuffix('s')}: {found.missing}")
    if found.content is not None:
        if fault := restore_fault(claim, found.content, driver.name):
            raise InvalidError(fault)
        return ContentSource(snapshot_id=found.content.handle)
    assert found.volume is not None
    if fault := copy_fault(claim, found.volume, driver.name):
        raise InvalidError(fault)
    assert found.volume.spec.csi is not None
    return ContentSource(volume_id=found.volume.spec.csi.volume_handle)


async def _claim(client: Client, claim: PersistentVolumeClaim) -> Origin | None:
    """Read the claim that is cloned, and its PV."""
    ref = reference(claim)
    source = await find(client, CLAIMS, ref.name, claim.metadata.namespace) if ref is not None else None
    volume = await find(client, VOLUMES, source.spec.volume_name) if source and source.spec.volume_name else None
    if source is not None and volume is not None and not matching.is_claimed_by(volume, source):
        volume = None
    return origin_of(claim, lambda key: source, lambda name: volume)


async def _snapshot(client: Client, claim: PersistentVolumeClaim) -> Origin | None:
    """Read the snapshot that is restored, its content, and the PV that was snapshotted where that tells the node."""
    ref = reference(claim)
    snapshot = await find(client, SNAPSHOTS, ref.name, claim.metadata.namespace) if ref is not None else None
    content = await find(client, SNAPSHOT_CONTENTS, content_name_of(snapshot)) if snapshot is not None else None
    found = origin_of(claim, lambda key: None, lambda name: None, lambda key: snapshot, lambda name: content)
    if found is None or found.content is None or found.node or not volume_name_of(found.content):
        return found
    volume = await find(client, VOLUMES, volume_name_of(found.content))
    return origin_of(claim, lambda key: None, lambda name: volume, lambda key: snapshot, lambda name: content)


async def _check_node(client: Client, claim: PersistentVolumeClaim, found: Origin) -> None:
    """Raise PreconditionError where the node is gone: another scheduling would only come back here."""
    if len(found.node) < _LONGEST_LABEL and await find(client, NODES, found.node) is None:  # else it may be shortened
        raise PreconditionError(gone_text(claim, found))


def gone_text(claim: PersistentVolumeClaim, found: Origin) -> str:
    """Return the message for a snapshot whose node is gone."""
    ref = reference(claim)
    key = f"{claim.metadata.namespace}/{ref.name}" if ref is not None else ""
    return f"snapshot {key} lies on node {found.node}, which is gone"


def restore_fault(claim: PersistentVolumeClaim, content: VolumeSnapshotContent, driver: str) -> str:
    """Return why the claim cannot restore the snapshot of that content, or "".

    The checks are those of external-provisioner.

    Raises: InvalidError for sizes that cannot be read.
    """
    spec, size, asked = content.spec, content.status.restore_size or 0, matching.requested(claim)
    name = spec.volume_snapshot_ref.name
    if spec.driver != driver:
        return f"snapshot {name} is of driver {spec.driver}, the class of the claim of driver {driver}"
    if asked < size:
        return (
            f"requested volume size {from_bytes(asked)} is less than the size {from_bytes(size)} for the source"
            f" snapshot {name}"
        )
    mode = claim.spec.volume_mode or matching.FILESYSTEM
    if spec.source_volume_mode in ("", mode) or content.metadata.annotations.get(ALLOW_MODE_CHANGE) == "true":
        return ""
    return (
        f"requested volume {claim.key} modifies the mode of the source volume but does not have permission to do so."
        f" {ALLOW_MODE_CHANGE} annotation is not present on snapshotcontent {content.metadata.name}"
    )


async def filling_of(client: Client, claim: PersistentVolumeClaim) -> ContentSpec:
    """Return what the claim's Content says, by a live read. Idempotent.

    The data source is a Content.

    Raises: InvalidError for a Content that cannot be used, PreconditionError while it is not there, ApiError,
    UnavailableError.
    """
    ref = reference(claim)
    assert ref is not None
    found = await find(client, CONTENTS, ref.name, claim.metadata.namespace)
    if found is None or found.metadata.deleting:
        state = "is being deleted" if found is not None else "does not exist: make it"
        raise PreconditionError(f"Content {claim.metadata.namespace}/{ref.name} {state}")
    return spec.parse(found.spec, f"Content {found.key}")


def copy_fault(claim: PersistentVolumeClaim, volume: PersistentVolume, driver: str) -> str:
    """Return why the claim cannot clone the volume, or "".

    The checks are those of external-provisioner.

    Raises: InvalidError for sizes that cannot be read.
    """
    name = volume.metadata.name
    if volume.spec.csi is None or volume.spec.csi.driver != driver:
        return f"the source volume {name} is not of driver {driver}"
    if volume.status.reason == names.RECLAIMED:
        return f"the source volume {name} has no data any more: {volume.status.message}"
    has, asked = matching.capacity(volume), matching.requested(claim)
    if asked < has:
        return f"requested size {from_bytes(asked)} is smaller than the source volume {name} ({from_bytes(has)})"
    mode = claim.spec.volume_mode or matching.FILESYSTEM
    if mode != (volume.spec.volume_mode or matching.FILESYSTEM):
        return f"requested volume mode {mode} differs from that of the source volume {name}"
    return ""


def leave_to_populator(events: EventRecorder, claim: PersistentVolumeClaim) -> None:
    """Emit once for a claim that an external populator provides its volume.

    The text is external-provisioner's.
    """
    key = f"{claim.metadata.uid}\0{POPULATED}"
    events.record(refer(CLAIMS, claim), NORMAL, "Provisioning", POPULATED, once=key)
