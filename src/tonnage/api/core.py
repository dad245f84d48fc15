"""core/v1 and coordination.k8s.io/v1, with just the fields that we read."""

from __future__ import annotations

from typing import Any

import msgspec

from tonnage.api.meta import (
    Condition,
    KubeObject,
    LabelSelector,
    Object,
    ObjectMeta,
    ObjectReference,
    SelectorRequirement,
)


class NamespaceSpec(Object, frozen=True):
    """Namespace spec."""

    finalizers: list[str] = []


class NamespaceStatus(Object, frozen=True):
    """Namespace status."""

    phase: str = ""


class Namespace(KubeObject, frozen=True):
    """core/v1 Namespace."""

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


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

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []


class Node(KubeObject, frozen=True):
    """core/v1 Node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ResourceRequirements(Object, frozen=True):
    """Requests and limits as quantities in text."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class TypedReference(Object, frozen=True):
    """dataSource or dataSourceRef of a claim."""

    api_group: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""


class PersistentVolumeClaimSpec(Object, frozen=True):
    """Claim spec. storage_class_name None: none given (the default class); "": no class wanted."""

    access_modes: list[str] = []
    resources: ResourceRequirements = ResourceRequirements()
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_name: str = ""
    selector: LabelSelector | None = None
    data_source: TypedReference | None = None
    data_source_ref: TypedReference | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimStatus(Object, frozen=True):
    """Claim status."""

    phase: str = ""
    access_modes: list[str] = []
    capacity: dict[str, str] = {}
    conditions: list[Condition] = []


class PersistentVolumeClaim(KubeObject, frozen=True):
    """core/v1 PersistentVolumeClaim."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class PersistentVolumeClaimTemplate(Object, frozen=True):
    """The claim that an ephemeral volume asks for; of metadata only labels and annotations count."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolumeSource(Object, frozen=True):
    """Generic ephemeral volume (KEP-1698)."""

    volume_claim_template: PersistentVolumeClaimTemplate = PersistentVolumeClaimTemplate()


class ClaimVolumeSource(Object, frozen=True):
    """A volume that names a claim."""

    claim_name: str = ""
    read_only: bool = False


class LocalObjectReference(Object, frozen=True):
    """A name in the same namespace."""

    name: str = ""


class CSIVolumeSource(Object, frozen=True):
    """CSI inline ephemeral volume (KEP-596)."""

    driver: str = ""
    read_only: bool = False
    fs_type: str | None = None
    volume_attributes: dict[str, str] = {}
    node_publish_secret_ref: LocalObjectReference | None = None


class KeyToPath(Object, frozen=True):
    """Which key of a ConfigMap or Secret goes to which file."""

    key: str = ""
    path: str = ""
    mode: int | None = None


class ConfigMapVolumeSource(Object, frozen=True):
    """Files from a ConfigMap."""

    name: str = ""
    items: list[KeyToPath] = []
    default_mode: int | None = None
    optional: bool = False


class SecretVolumeSource(Object, frozen=True):
    """Files from a Secret."""

    secret_name: str = ""
    items: list[KeyToPath] = []
    default_mode: int | None = None
    optional: bool = False


class EmptyDirVolumeSource(Object, frozen=True):
    """A plain folder of the node."""

    medium: str = ""
    size_limit: str | None = None


class HostPathVolumeSource(Object, frozen=True):
    """A path of the machine."""

    path: str = ""
    type: str = ""


class Volume(Object, frozen=True):
    """spec.volumes[] of a pod; exactly one source is set."""

    name: str = ""
    ephemeral: EphemeralVolumeSource | None = None
    persistent_volume_claim: ClaimVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    projected: dict[str, Any] | None = None
    downward_api: dict[str, Any] | None = msgspec.field(default=None, name="downwardAPI")


class VolumeMount(Object, frozen=True):
    """Where a container sees a volume."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    mount_propagation: str | None = None
    read_only: bool = False


class VolumeDevice(Object, frozen=True):
    """Where a container sees a raw block volume."""

    name: str = ""
    device_path: str = ""


class EnvVar(Object, frozen=True):
    """One environment variable; value_from is kept raw."""

    name: str = ""
    value: str = ""
    value_from: dict[str, Any] | None = None


class ContainerPort(Object, frozen=True):
    """A port; only host ports matter to the scheduler."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class SecurityContext(Object, frozen=True):
    """What of a container's or pod's security context is honoured."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    supplemental_groups: list[int] = []
    read_only_root_filesystem: bool | None = None
    privileged: bool | None = None


class Container(Object, frozen=True):
    """A container."""

    name: str = ""
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[EnvVar] = []
    env_from: list[dict[str, Any]] = []
    resources: ResourceRequirements = ResourceRequirements()
    volume_mounts: list[VolumeMount] = []
    volume_devices: list[VolumeDevice] = []
    ports: list[ContainerPort] = []
    security_context: SecurityContext = SecurityContext()
    restart_policy: str | None = None
    liveness_probe: dict[str, Any] | None = None
    readiness_probe: dict[str, Any] | None = None
    startup_probe: dict[str, Any] | None = None
    lifecycle: dict[str, Any] | None = None


class Toleration(Object, frozen=True):
    """A pod's toleration of taints; toleration seconds are not used by the scheduler."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeSelectorTerm(Object, frozen=True):
    """All expressions must hold; an empty term matches nothing."""

    match_expressions: list[SelectorRequirement] = []
    match_fields: list[SelectorRequirement] = []


class NodeSelector(Object, frozen=True):
    """One of the terms must hold."""

    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredSchedulingTerm(Object, frozen=True):
    """A weighted wish."""

    weight: int = 1
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Object, frozen=True):
    """Node affinity of a pod."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[PreferredSchedulingTerm] = msgspec.field(
        default_factory=list, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Object, frozen=True):
    """Affinity of a pod; inter-pod terms are kept raw."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


class SchedulingGate(Object, frozen=True):
    """A gate that holds a pod back from the scheduler."""

    name: str = ""


class PodSpec(Object, frozen=True):
    """Pod spec."""

    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    restart_policy: str = "Always"
    service_account_name: str = ""
    termination_grace_period_seconds: int | None = None
    volumes: list[Volume] = []
    init_containers: list[Container] = []
    containers: list[Container] = []
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    scheduling_gates: list[SchedulingGate] = []
    topology_spread_constraints: list[dict[str, Any]] = []
    resource_claims: list[dict[str, Any]] = []
    resources: ResourceRequirements = ResourceRequirements()
    overhead: dict[str, str] = {}
    priority: int | None = None
    security_context: SecurityContext = SecurityContext()
    host_network: bool = False
    hostname: str = ""
    active_deadline_seconds: int | None = None


class ContainerState(Object, frozen=True):
    """One of three states, raw."""

    waiting: dict[str, Any] | None = None
    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None


class ContainerStatus(Object, frozen=True):
    """What a container does."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(Object, frozen=True):
    """Pod status."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    conditions: list[Condition] = []
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    start_time: str | None = None


class Pod(KubeObject, frozen=True):
    """core/v1 Pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def terminated(self) -> bool:
        """Whether all containers have ended for good."""
        return self.status.phase in ("Succeeded", "Failed")

    def claim_names(self) -> list[str]:
        """Names of all claims that the pod uses, ephemeral ones included, in the order of its volumes."""
        return [n for v in self.spec.volumes if (n := claim_name(self.metadata.name, v))]


def claim_name(pod_name: str, volume: Volume) -> str:
    """Name of the claim behind a pod's volume, or an empty string (component-helpers storage/ephemeral)."""
    if volume.ephemeral is not None:
        return f"{pod_name}-{volume.name}"
    return volume.persistent_volume_claim.claim_name if volume.persistent_volume_claim else ""


class SecretReference(Object, frozen=True):
    """A Secret anywhere."""

    name: str = ""
    namespace: str = ""


class CSIPersistentVolumeSource(Object, frozen=True):
    """Where a PV's bytes are, for a CSI driver."""

    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False
    fs_type: str | None = None
    volume_attributes: dict[str, str] = {}
    node_stage_secret_ref: SecretReference | None = None
    node_publish_secret_ref: SecretReference | None = None


class LocalVolumeSource(Object, frozen=True):
    """A local PV."""

    path: str = ""
    fs_type: str | None = None


class VolumeNodeAffinity(Object, frozen=True):
    """Which nodes reach a PV."""

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
    local: LocalVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None


class PersistentVolumeStatus(Object, frozen=True):
    """PV status."""

    phase: str = ""
    reason: str = ""
    message: str = ""


class PersistentVolume(KubeObject, frozen=True):
    """core/v1 PersistentVolume."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class EventSource(Object, frozen=True):
    """Who reported an Event."""

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

    data: dict[str, str] = {}
    type: str = ""

    def __repr__(self) -> str:
        """Name only."""
        return f"Secret({self.key})"


class ServiceAccount(KubeObject, frozen=True):
    """core/v1 ServiceAccount."""


class ResourceQuota(KubeObject, frozen=True):
    """core/v1 ResourceQuota, raw: only the API server enforces it."""

    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class LimitRange(KubeObject, frozen=True):
    """core/v1 LimitRange, raw: only the API server enforces it."""

    spec: dict[str, Any] = {}


class LeaseSpec(Object, frozen=True):
    """Who leads, until when. Times are MicroTime text."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True):
    """coordination.k8s.io/v1 Lease."""

    spec: LeaseSpec = LeaseSpec()
