"""core/v1 and coordination.k8s.io/v1, with only the fields that we read."""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.meta import (
    Condition,
    KubeObject,
    LabelSelector,
    Object,
    ObjectReference,
    SelectorRequirement,
)


class NamespaceSpec(Object, frozen=True):
    """Namespace spec."""

    finalizers: list[str] = []


class Namespace(KubeObject, frozen=True):
    """core/v1 Namespace."""

    spec: NamespaceSpec = NamespaceSpec()


class Taint(Object, frozen=True):
    """A node's taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Object, frozen=True):
    """Node spec."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(Object, frozen=True):
    """Node status; allocatable holds quantities as text."""

    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []
    volumes_in_use: list[str] = []
    volumes_attached: list[dict[str, Any]] = []


class Node(KubeObject, frozen=True):
    """core/v1 Node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet says so."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)

    @property
    def is_out_of_service(self) -> bool:
        """Whether a person says that the machine is off, by the taint: its pods and volumes may be taken away."""
        return any(taint.key == names.OUT_OF_SERVICE_TAINT for taint in self.spec.taints)


class ResourceRequirements(Object, frozen=True):
    """Requests and limits as quantities in text."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    claims: list[dict[str, Any]] = []


class TypedReference(Object, frozen=True):
    """dataSource or dataSourceRef of a claim. api_group: Kubernetes writes null for the core group."""

    api_group: str | None = None
    kind: str = ""
    name: str = ""
    namespace: str = ""


class PersistentVolumeClaimSpec(Object, frozen=True):
    """Claim spec. storage_class_name None: not set (the default class); "": no class."""

    access_modes: list[str] = []
    resources: ResourceRequirements = ResourceRequirements()
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_name: str = ""
    selector: LabelSelector | None = None
    data_source: TypedReference | None = None
    data_source_ref: TypedReference | None = None
    volume_attributes_class_name: str | None = None


class ModifyVolumeStatus(Object, frozen=True):
    """How far a change of the VolumeAttributesClass has come: Pending, InProgress or Infeasible."""

    status: str = ""
    target_volume_attributes_class_name: str = ""


class PersistentVolumeClaimStatus(Object, frozen=True):
    """Claim status."""

    phase: str = ""
    access_modes: list[str] = []
    capacity: dict[str, str] = {}
    allocated_resources: dict[str, str] = {}
    allocated_resource_statuses: dict[str, str] = {}
    conditions: list[dict[str, Any]] = []
    current_volume_attributes_class_name: str | None = None
    modify_volume_status: ModifyVolumeStatus | None = None


class PersistentVolumeClaim(KubeObject, frozen=True):
    """core/v1 PersistentVolumeClaim."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class HostPathVolumeSource(Object, frozen=True):
    """A path of the machine."""

    path: str = ""
    type: str = ""


class NodeSelectorTerm(Object, frozen=True):
    """All expressions must hold; an empty term matches nothing."""

    match_expressions: list[SelectorRequirement] = []
    match_fields: list[SelectorRequirement] = []


class NodeSelector(Object, frozen=True):
    """One of the terms must hold."""

    node_selector_terms: list[NodeSelectorTerm] = []


class SecretReference(Object, frozen=True):
    """A Secret anywhere."""

    name: str = ""
    namespace: str = ""


class CSIPersistentVolumeSource(Object, frozen=True):
    """Volume source of a PV of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False
    fs_type: str | None = None
    volume_attributes: dict[str, str] = {}
    controller_publish_secret_ref: SecretReference | None = None
    node_stage_secret_ref: SecretReference | None = None
    node_publish_secret_ref: SecretReference | None = None
    controller_expand_secret_ref: SecretReference | None = None
    node_expand_secret_ref: SecretReference | None = None


class FlexPersistentVolumeSource(Object, frozen=True):
    """Volume source of a PV of a FlexVolume driver. repr() shows no option: they may hold credentials."""

    driver: str = ""
    fs_type: str = ""
    secret_ref: SecretReference | None = None
    read_only: bool = False
    options: dict[str, str] = {}

    def __repr__(self) -> str:
        """Driver only."""
        return f"FlexPersistentVolumeSource({self.driver})"


class LocalVolumeSource(Object, frozen=True):
    """A local PV."""

    path: str = ""


class VolumeNodeAffinity(Object, frozen=True):
    """The nodes that can access a PV."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Object, frozen=True):
    """PV spec."""

    capacity: dict[str, str] = {}
    access_modes: list[str] = []
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    mount_options: list[str] = []
    volume_mode: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    volume_attributes_class_name: str | None = None
    csi: CSIPersistentVolumeSource | None = None
    flex_volume: FlexPersistentVolumeSource | None = None
    local: LocalVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None


class PersistentVolumeStatus(Object, frozen=True):
    """PV status."""

    phase: str = ""
    message: str = ""
    reason: str = ""


class PersistentVolume(KubeObject, frozen=True):
    """core/v1 PersistentVolume."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class EventSource(Object, frozen=True):
    """The component that reported an Event."""

    component: str = ""
    host: str = ""


class Event(KubeObject, frozen=True):
    """core/v1 Event."""

    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    source: EventSource = EventSource()


class ConfigMap(KubeObject, frozen=True):
    """core/v1 ConfigMap; binary data in base64."""

    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class Secret(KubeObject, frozen=True):
    """core/v1 Secret; data in base64. repr() never shows it."""

    type: str = ""
    data: dict[str, str] = {}

    def __repr__(self) -> str:
        """Name only."""
        return f"Secret({self.key})"


class ServiceAccount(KubeObject, frozen=True):
    """core/v1 ServiceAccount."""


class ResourceQuota(KubeObject, frozen=True):
    """core/v1 ResourceQuota: only the API server enforces it."""


class LimitRange(KubeObject, frozen=True):
    """core/v1 LimitRange: only the API server enforces it."""


class LeaseSpec(Object, frozen=True):
    """The leader and its duration. Times are MicroTime text."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True):
    """coordination.k8s.io/v1 Lease."""

    spec: LeaseSpec = LeaseSpec()
