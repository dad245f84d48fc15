"""What one VolumeAttachment needs, as external-attacher decides it. Pure.

| deleted | our finalizer | attached | action |
|---|---|---|---|
| no | any | no, or the driver says otherwise | attach |
| no | any | yes | none |
| yes | yes | any | detach |
| yes | no | any | none: the driver was never asked to attach it |

A driver without PUBLISH_UNPUBLISH_VOLUME attaches nothing: its attachments are only marked.
"""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.controller.attach.drivers import AttachingDriver
from tonnage.csi.client import types
from tonnage.kubernetes.api.core import CSIPersistentVolumeSource, PersistentVolume, SecretReference
from tonnage.kubernetes.api.storage import VolumeAttachment

NODE_ID = "csi.alpha.kubernetes.io/node-id"
"""Annotation of a VolumeAttachment: the driver's name of the node, as the volume was attached."""


@dataclass(frozen=True)
class AttachmentFacts:
    """What is known of an attachment.

    volume: its PV, None when there is none. node_id: the driver's name of the node, of the CSINode, "" without.
    rival: another node to which the volume is or may be attached, "" for none. is_forced: attach it again, as the
    driver says that it is not attached.
    """

    attachment: VolumeAttachment
    driver: AttachingDriver
    volume: PersistentVolume | None = None
    node_id: str = ""
    rival: str = ""
    is_forced: bool = False


@dataclass(frozen=True)
class AttachVolume:
    """Protect attachment and PV, call ControllerPublishVolume, write the result."""

    volume: PersistentVolume
    source: CSIPersistentVolumeSource
    node_id: str
    capability: types.VolumeCapability
    read_only: bool

    @property
    def secret(self) -> SecretReference | None:
        """The Secret of the call."""
        return self.source.controller_publish_secret_ref


@dataclass(frozen=True)
class MarkAttached:
    """Write that it is attached: the driver attaches nothing."""


@dataclass(frozen=True)
class DetachVolume:
    """Call ControllerUnpublishVolume (not for a driver that attaches nothing), release the attachment."""

    source: CSIPersistentVolumeSource | None = None
    node_id: str = ""


@dataclass(frozen=True)
class RejectAttachment:
    """Write the error, and decide again when something changes."""

    message: str
    field: str = "attachError"


AttachmentAction = AttachVolume | MarkAttached | DetachVolume | RejectAttachment | None


def decide(facts: AttachmentFacts) -> AttachmentAction:
    """Return what the attachment needs, None for nothing."""
    one, driver = facts.attachment, facts.driver
    publishes = driver.has(types.PUBLISH_UNPUBLISH_VOLUME)
    if one.metadata.deleting:
        if driver.finalizer not in one.metadata.finalizers:
            return None
        return _detach(facts) if publishes else DetachVolume()
    if one.attached and not facts.is_forced:
        return None
    return _attach(facts) if publishes else MarkAttached()


def _attach(facts: AttachmentFacts) -> AttachmentAction:
    one, volume, driver = facts.attachment, facts.volume, facts.driver
    source = volume.spec.csi if volume is not None else None
    if volume is None or source is None or source.driver != driver.name:
        return RejectAttachment(_no_volume(facts))
    name = volume.metadata.name
    if volume.metadata.deleting:
        return RejectAttachment(f'PersistentVolume "{name}" is marked for deletion')
    if not facts.node_id:
        return RejectAttachment(
            f"node {one.node_name}: its CSINode does not list driver {driver.name}; start the driver on that node"
        )
    modes = volume.spec.access_modes
    try:
        mode = types.AccessMode.of_all(modes, single_node_multi_writer=driver.has(types.SINGLE_NODE_MULTI_WRITER))
    except KeyError:
        return RejectAttachment(
            f'PersistentVolume "{name}": access modes {", ".join(modes) or "none"}: CSI has no mode for them together'
        )
    if facts.rival and mode.is_single_node:
        return RejectAttachment(
            f'PersistentVolume "{name}": access mode {", ".join(modes)} allows one node, and the volume is attached to'
            f" node {facts.rival}; it is attached here when it is detached there"
        )
    is_block = volume.spec.volume_mode == "Block"
    capability = types.VolumeCapability(
        mode,
        block=is_block,
        fstype="" if is_block else source.fs_type or "",
        mount_flags=() if is_block else tuple(volume.spec.mount_options),
    )
    read_only = source.read_only and driver.has(types.PUBLISH_READONLY)
    return AttachVolume(volume, source, facts.node_id, capability, read_only)


def _detach(facts: AttachmentFacts) -> AttachmentAction:
    one, volume = facts.attachment, facts.volume
    if volume is None or volume.spec.csi is None or volume.spec.csi.driver != facts.driver.name:
        return RejectAttachment(
            f"{_no_volume(facts)}; detach the volume at the storage, then remove the attachment's finalizer",
            "detachError",
        )
    # As it was attached: a node that was replaced under its name has another id now.
    node_id = one.metadata.annotations.get(NODE_ID) or facts.node_id
    if not node_id:
        return RejectAttachment(
            f"node {one.node_name}: neither the attachment nor its CSINode has the node's id at {facts.driver.name}",
            "detachError",
        )
    return DetachVolume(volume.spec.csi, node_id)


def _no_volume(facts: AttachmentFacts) -> str:
    name = facts.attachment.volume_name
    if not name:
        return "the attachment names no PersistentVolume: migrated in-tree volumes need the driver's external-attacher"
    if facts.volume is None:
        return f'PersistentVolume "{name}" does not exist'
    return f'PersistentVolume "{name}" is no volume of driver {facts.driver.name}'
