"""CSI's types without protobuf, for callers of the client: controllers and the kubelet.

Sizes are bytes. Topologies are plain mappings of segment keys to values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from tonnage.kubernetes.api import names

Topology = Mapping[str, str]


class AccessMode(IntEnum):
    """How a volume may be accessed; the numbers are those of CSI."""

    SINGLE_NODE_WRITER = 1
    SINGLE_NODE_READER_ONLY = 2
    MULTI_NODE_READER_ONLY = 3
    MULTI_NODE_SINGLE_WRITER = 4
    MULTI_NODE_MULTI_WRITER = 5
    SINGLE_NODE_SINGLE_WRITER = 6
    SINGLE_NODE_MULTI_WRITER = 7

    @classmethod
    def of(cls, mode: str, *, single_node_multi_writer: bool) -> AccessMode:
        """The mode for one of Kubernetes' access modes (as external-provisioner and kubelet map them).

        single_node_multi_writer: whether the driver has that capability. Raises: KeyError for an unknown mode.
        """
        fine = single_node_multi_writer
        return {
            names.READ_WRITE_ONCE: cls.SINGLE_NODE_MULTI_WRITER if fine else cls.SINGLE_NODE_WRITER,
            names.READ_WRITE_ONCE_POD: cls.SINGLE_NODE_SINGLE_WRITER if fine else cls.SINGLE_NODE_WRITER,
            names.READ_ONLY_MANY: cls.MULTI_NODE_READER_ONLY,
            names.READ_WRITE_MANY: cls.MULTI_NODE_MULTI_WRITER,
        }[mode]

    @classmethod
    def of_all(cls, modes: Sequence[str], *, single_node_multi_writer: bool) -> AccessMode:
        """The one mode for all access modes of a PV, as external-attacher maps them: ReadWriteMany comes first.

        Raises: KeyError for modes that CSI cannot express together, and for unknown ones.
        """
        if names.READ_WRITE_MANY in modes:
            return cls.MULTI_NODE_MULTI_WRITER
        mode = modes[0] if len(set(modes)) == 1 else ", ".join(modes)
        return cls.of(mode, single_node_multi_writer=single_node_multi_writer)

    @property
    def is_single_node(self) -> bool:
        """Whether the volume may be published to one node at a time."""
        cls = type(self)
        return self not in (cls.MULTI_NODE_READER_ONLY, cls.MULTI_NODE_SINGLE_WRITER, cls.MULTI_NODE_MULTI_WRITER)


@dataclass(frozen=True)
class VolumeCapability:
    """One way to use a volume: raw block, or a file system (fstype "" for the driver's default)."""

    mode: AccessMode = AccessMode.SINGLE_NODE_WRITER
    block: bool = False
    fstype: str = ""
    mount_flags: Sequence[str] = ()
    mount_group: str = ""


@dataclass(frozen=True)
class AttachedContext:
    """The context of a volume that is attached: its own, and what ControllerPublishVolume returned."""

    volume: Mapping[str, str]
    publish: Mapping[str, str]


@dataclass(frozen=True)
class CsiTopologyRequirement:
    """The topology of a new volume: reachable in one of requisite, best in the first of preferred."""

    requisite: Sequence[Topology] = ()
    preferred: Sequence[Topology] = ()


@dataclass(frozen=True)
class ContentSource:
    """The source of a new volume: one of the two ids."""

    snapshot_id: str = ""
    volume_id: str = ""


@dataclass(frozen=True)
class CreatedVolume:
    """A created volume of a response. size 0: unknown. context becomes the PV's volumeAttributes."""

    id: str
    size: int
    context: Mapping[str, str] = field(default_factory=dict)
    topologies: Sequence[Topology] = ()
    content: ContentSource | None = None


@dataclass(frozen=True)
class ListedSnapshot:
    """A snapshot of a response.

    size: minimum bytes of a volume made from it, 0: unknown. created: seconds since the epoch. ready: it can be used as
    a source. group: the id of the group snapshot that it is a member of, "" for none.
    """

    id: str
    volume_id: str
    size: int
    created: float
    ready: bool
    group: str = ""


@dataclass(frozen=True)
class ListedGroup:
    """A group snapshot of a response: snapshots of several volumes at one moment. Fields as in ListedSnapshot."""

    id: str
    created: float
    ready: bool
    snapshots: Sequence[ListedSnapshot] = ()


@dataclass(frozen=True)
class Expanded:
    """Response of ControllerExpandVolume. size: bytes, 0: unknown. on_node: NodeExpandVolume is required."""

    size: int
    on_node: bool


@dataclass(frozen=True)
class ReclaimState:
    """Why the data of a volume was deleted before its deletion, "" while it was not. in_use: it is mounted."""

    why: str
    in_use: bool = False


@dataclass(frozen=True)
class Health:
    """A volume's condition of a response."""

    abnormal: bool = False
    message: str = ""


@dataclass(frozen=True)
class VolumeUse:
    """Use of a mounted volume: bytes, and inodes where the driver tells them. health: None when it does not tell."""

    total: int = 0
    used: int = 0
    available: int = 0
    inodes: int = 0
    inodes_used: int = 0
    inodes_free: int = 0
    health: Health | None = None


@dataclass(frozen=True)
class GetCapacityResult:
    """Response of GetCapacity. maximum, minimum: None when the driver leaves them out."""

    available: int
    maximum: int | None = None
    minimum: int | None = None


@dataclass(frozen=True)
class PluginInfo:
    """A driver's name and version."""

    name: str
    version: str
    manifest: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeInfo:
    """A driver's information about its node. max_volumes 0: unlimited."""

    node_id: str
    max_volumes: int = 0
    topology: Topology = field(default_factory=dict)


# Capabilities that callers ask for, by the names they have in csi.proto.
CONTROLLER_SERVICE = "CONTROLLER_SERVICE"
GROUP_CONTROLLER_SERVICE = "GROUP_CONTROLLER_SERVICE"
CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
VOLUME_ACCESSIBILITY_CONSTRAINTS = "VOLUME_ACCESSIBILITY_CONSTRAINTS"
CREATE_DELETE_VOLUME = "CREATE_DELETE_VOLUME"
PUBLISH_UNPUBLISH_VOLUME = "PUBLISH_UNPUBLISH_VOLUME"
PUBLISH_READONLY = "PUBLISH_READONLY"
LIST_VOLUMES = "LIST_VOLUMES"
LIST_VOLUMES_PUBLISHED_NODES = "LIST_VOLUMES_PUBLISHED_NODES"
GET_CAPACITY = "GET_CAPACITY"
CREATE_DELETE_SNAPSHOT = "CREATE_DELETE_SNAPSHOT"
LIST_SNAPSHOTS = "LIST_SNAPSHOTS"
GET_VOLUME = "GET_VOLUME"
VOLUME_CONDITION = "VOLUME_CONDITION"
CLONE_VOLUME = "CLONE_VOLUME"
MODIFY_VOLUME = "MODIFY_VOLUME"
SINGLE_NODE_MULTI_WRITER = "SINGLE_NODE_MULTI_WRITER"
STAGE_UNSTAGE_VOLUME = "STAGE_UNSTAGE_VOLUME"
GET_VOLUME_STATS = "GET_VOLUME_STATS"
EXPAND_VOLUME = "EXPAND_VOLUME"
VOLUME_MOUNT_GROUP = "VOLUME_MOUNT_GROUP"
