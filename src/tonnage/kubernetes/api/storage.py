"""storage.k8s.io/v1, with only the fields that we read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import KubeObject, LabelSelector, Object
from tonnage.kubernetes.api.number import whole


class TopologyRequirement(Object, frozen=True):
    """One label and its allowed values."""

    key: str = ""
    values: list[str] = []


class TopologyTerm(Object, frozen=True):
    """All requirements must hold."""

    match_label_expressions: list[TopologyRequirement] = []


class StorageClass(KubeObject, frozen=True):
    """StorageClass."""

    provisioner: str = ""
    parameters: dict[str, str] = {}
    reclaim_policy: str = "Delete"
    volume_binding_mode: str | None = None
    allow_volume_expansion: bool | None = None
    mount_options: list[str] = []
    allowed_topologies: list[TopologyTerm] = []

    @property
    def late(self) -> bool:
        """Whether binding waits for the first consumer."""
        return self.volume_binding_mode == names.WAIT_FOR_FIRST_CONSUMER

    def allows(self, segment: Mapping[str, str]) -> bool:
        """Return whether volumes may be in that segment: one of the allowed topologies must match."""
        terms = self.allowed_topologies
        return not terms or any(
            all(segment.get(e.key) in e.values for e in term.match_label_expressions) for term in terms
        )


class VolumeAttributesClass(KubeObject, frozen=True):
    """VolumeAttributesClass: attributes of volumes that a claim may change later. Nothing of it changes."""

    driver_name: str = ""
    parameters: dict[str, str] = {}


class CSIDriverSpec(Object, frozen=True):
    """CSIDriver spec, defaults as in pkg/apis/storage/v1."""

    attach_required: bool = True
    pod_info_on_mount: bool = False
    storage_capacity: bool = False
    fs_group_policy: str = "ReadWriteOnceWithFSType"
    volume_lifecycle_modes: list[str] = msgspec.field(default_factory=lambda: ["Persistent"])
    requires_republish: bool = False
    token_requests: list[dict[str, Any]] = []
    service_account_token_in_secrets: bool | None = None
    se_linux_mount: bool = msgspec.field(default=False, name="seLinuxMount")


class CSIDriver(KubeObject, frozen=True):
    """CSIDriver."""

    spec: CSIDriverSpec = CSIDriverSpec()


class VolumeNodeResources(Object, frozen=True):
    """Maximum number of volumes of a driver on a node; None: unlimited."""

    count: int | None = None


class CSINodeDriver(Object, frozen=True):
    """One driver of a node."""

    name: str = ""
    node_id: str = msgspec.field(default="", name="nodeID")
    topology_keys: list[str] = []
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Object, frozen=True):
    """CSINode spec."""

    drivers: list[CSINodeDriver] = []


class CSINode(KubeObject, frozen=True):
    """CSINode."""

    spec: CSINodeSpec = CSINodeSpec()

    def driver(self, name: str) -> CSINodeDriver | None:
        """The entry of a driver, if it is there."""
        return next((d for d in self.spec.drivers if d.name == name), None)


class CSIStorageCapacity(KubeObject, frozen=True):
    """CSIStorageCapacity; node_topology None: accessible from no node."""

    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: str | None = None
    maximum_volume_size: str | None = None

    @property
    def counted(self) -> int | None:
        """The observed claim version: the newest resourceVersion of a claim that the capacity includes.

        None where it is missing or not a number: agents write it, and one may be compromised.
        """
        text = names.annotation(self.metadata.annotations, names.OBSERVED_CLAIM_VERSION)
        return whole(text)


class VolumeAttachment(KubeObject, frozen=True):
    """VolumeAttachment, raw."""

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    @property
    def attacher(self) -> str:
        """Name of the driver."""
        return str(self.spec.get("attacher") or "")

    @property
    def volume_name(self) -> str:
        """Name of the PV, "" for none."""
        return str((self.spec.get("source") or {}).get("persistentVolumeName") or "")

    @property
    def node_name(self) -> str:
        """Name of the node."""
        return str(self.spec.get("nodeName") or "")

    @property
    def attached(self) -> bool:
        """Whether it is attached."""
        return bool(self.status.get("attached"))
