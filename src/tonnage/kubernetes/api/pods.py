"""core/v1 Pod, its volumes and containers, with only the fields that we read."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from tonnage.kubernetes.api.core import (
    HostPathVolumeSource,
    NodeSelector,
    NodeSelectorTerm,
    PersistentVolumeClaimSpec,
    ResourceRequirements,
)
from tonnage.kubernetes.api.meta import Condition, KubeObject, LabelSelector, Object, ObjectMeta


class PersistentVolumeClaimTemplate(Object, frozen=True):
    """The claim template of an ephemeral volume; of metadata only labels and annotations count."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolumeSource(Object, frozen=True):
    """Generic ephemeral volume (KEP-1698)."""

    volume_claim_template: PersistentVolumeClaimTemplate = PersistentVolumeClaimTemplate()


class ClaimVolumeSource(Object, frozen=True):
    """A volume source that names a claim."""

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
    """The file for a key of a ConfigMap or Secret."""

    key: str = ""
    path: str = ""
    mode: int | None = None


class FlexVolumeSource(Object, frozen=True):
    """A FlexVolume of a pod. repr() shows no option: they may hold credentials."""

    driver: str = ""
    fs_type: str = ""
    secret_ref: LocalObjectReference | None = None
    read_only: bool = False
    options: dict[str, str] = {}

    def __repr__(self) -> str:
        """Driver only."""
        return f"FlexVolumeSource({self.driver})"


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
    """An empty directory of the node."""

    medium: str = ""
    size_limit: str | None = None


class ImageVolumeSource(Object, frozen=True):
    """The content of an image, read-only (KEP-4639)."""

    reference: str = ""
    pull_policy: str = ""


class PodCertificateProjection(Object, frozen=True):
    """A certificate that the kubelet asks a signer for (KEP-4317)."""

    signer_name: str = ""
    key_type: str = ""
    max_expiration_seconds: int | None = None
    user_annotations: dict[str, str] = {}
    credential_bundle_path: str = ""
    key_path: str = ""
    certificate_chain_path: str = ""


class ClusterTrustBundleProjection(Object, frozen=True):
    """Root certificates: of one bundle by its name, or of a signer's bundles by their labels (KEP-3257)."""

    path: str = ""
    name: str = ""
    signer_name: str = ""
    label_selector: LabelSelector | None = None
    optional: bool = False


class Volume(Object, frozen=True):
    """spec.volumes[] of a pod; exactly one source is set."""

    name: str = ""
    ephemeral: EphemeralVolumeSource | None = None
    persistent_volume_claim: ClaimVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    flex_volume: FlexVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    image: ImageVolumeSource | None = None
    projected: dict[str, Any] | None = None
    downward_api: dict[str, Any] | None = msgspec.field(default=None, name="downwardAPI")


class VolumeMount(Object, frozen=True):
    """The mount of a volume in a container."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    mount_propagation: str | None = None
    read_only: bool = False


class VolumeDevice(Object, frozen=True):
    """The raw block device of a volume in a container."""

    name: str = ""
    device_path: str = ""


class EnvVar(Object, frozen=True):
    """One environment variable; value_from stays raw."""

    name: str = ""
    value: str = ""
    value_from: dict[str, Any] | None = None


class ContainerPort(Object, frozen=True):
    """A port; only host ports matter to the scheduler, names to probes."""

    name: str = ""
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class SecurityContext(Object, frozen=True):
    """A container's or pod's security context. What the box only looks at, and does not act on, stays raw."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    supplemental_groups: list[int] = []
    supplemental_groups_policy: str | None = None
    read_only_root_filesystem: bool | None = None
    privileged: bool | None = None
    allow_privilege_escalation: bool | None = None
    capabilities: dict[str, Any] | None = None
    seccomp_profile: dict[str, Any] | None = None
    app_armor_profile: dict[str, Any] | None = None
    proc_mount: str | None = None
    se_linux_options: dict[str, Any] | None = None
    se_linux_change_policy: str | None = None
    sysctls: list[dict[str, Any]] = []
    windows_options: dict[str, Any] | None = None


class Container(Object, frozen=True):
    """A container."""

    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    env: list[EnvVar] = []
    env_from: list[dict[str, Any]] = []
    resources: ResourceRequirements = ResourceRequirements()
    volume_mounts: list[VolumeMount] = []
    volume_devices: list[VolumeDevice] = []
    ports: list[ContainerPort] = []
    security_context: SecurityContext = SecurityContext()
    restart_policy: str | None = None
    restart_policy_rules: list[dict[str, Any]] = []
    resize_policy: list[dict[str, Any]] = []
    termination_message_path: str = ""
    termination_message_policy: str = ""
    target_container_name: str = ""
    """Of an ephemeral container: the one whose processes it is to see."""
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


class PreferredSchedulingTerm(Object, frozen=True):
    """A preferred node affinity term with its weight."""

    weight: int = 1
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Object, frozen=True):
    """Node affinity of a pod."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[PreferredSchedulingTerm] = msgspec.field(
        default_factory=list, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Object, frozen=True):
    """Affinity of a pod; inter-pod terms stay raw."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: dict[str, Any] | None = None
    pod_anti_affinity: dict[str, Any] | None = None


class SchedulingGate(Object, frozen=True):
    """A gate that excludes a pod from scheduling until it is removed."""

    name: str = ""


class ReadinessGate(Object, frozen=True):
    """A condition that somebody else sets, without which a pod is not ready."""

    condition_type: str = ""


class HostAlias(Object, frozen=True):
    """A line of /etc/hosts."""

    ip: str = ""
    hostnames: list[str] = []


class PodDNSConfigOption(Object, frozen=True):
    """An option of the resolver."""

    name: str = ""
    value: str | None = None


class PodDNSConfig(Object, frozen=True):
    """What is added to the settings of name lookup."""

    nameservers: list[str] = []
    searches: list[str] = []
    options: list[PodDNSConfigOption] = []


class PodOS(Object, frozen=True):
    """The operating system of a pod's containers."""

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
    ephemeral_containers: list[Container] = []
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    scheduling_gates: list[SchedulingGate] = []
    readiness_gates: list[ReadinessGate] = []
    topology_spread_constraints: list[dict[str, Any]] = []
    resource_claims: list[dict[str, Any]] = []
    resources: ResourceRequirements = ResourceRequirements()
    overhead: dict[str, str] = {}
    priority: int | None = None
    preemption_policy: str = ""
    security_context: SecurityContext = SecurityContext()
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    host_users: bool | None = None
    share_process_namespace: bool | None = None
    hostname: str = ""
    hostname_override: str | None = None
    subdomain: str = ""
    set_hostname_as_fqdn: bool | None = msgspec.field(default=None, name="setHostnameAsFQDN")
    host_aliases: list[HostAlias] = []
    dns_policy: str = ""
    dns_config: PodDNSConfig | None = None
    os: PodOS | None = None
    image_pull_secrets: list[LocalObjectReference] = []
    active_deadline_seconds: int | None = None


class ContainerState(Object, frozen=True):
    """One of three states, raw."""

    waiting: dict[str, Any] | None = None
    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None


class ContainerStatus(Object, frozen=True):
    """State of a container."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodIP(Object, frozen=True):
    """An address of a pod."""

    ip: str = ""


class PodStatus(Object, frozen=True):
    """Pod status."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    conditions: list[Condition] = []
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ips: list[PodIP] = msgspec.field(default_factory=list, name="podIPs")
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    ephemeral_container_statuses: list[ContainerStatus] = []
    start_time: str | None = None


class Pod(KubeObject, frozen=True):
    """core/v1 Pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """All containers: init containers, the others, ephemeral ones."""
        return (*self.spec.init_containers, *self.spec.containers, *self.spec.ephemeral_containers)

    @property
    def all_container_statuses(self) -> tuple[ContainerStatus, ...]:
        """States of all containers, in that order."""
        status = self.status
        return (
            *status.init_container_statuses,
            *status.container_statuses,
            *status.ephemeral_container_statuses,
        )

    @property
    def terminated(self) -> bool:
        """Whether all containers have ended for good."""
        return self.status.phase in ("Succeeded", "Failed")

    def claim_names(self) -> list[str]:
        """Names of all claims that the pod uses, ephemeral ones included, in the order of its volumes."""
        return [n for v in self.spec.volumes if (n := claim_name(self.metadata.name, v))]


class NamesClaim(Protocol):
    """What a pod's volume says about the claim behind it."""

    @property
    def name(self) -> str: ...
    @property
    def ephemeral(self) -> object | None: ...
    @property
    def persistent_volume_claim(self) -> ClaimVolumeSource | None: ...


def claim_name(pod_name: str, volume: NamesClaim) -> str:
    """Name of the claim behind a pod's volume, or an empty string (component-helpers storage/ephemeral)."""
    if volume.ephemeral is not None:
        return f"{pod_name}-{volume.name}"
    return volume.persistent_volume_claim.claim_name if volume.persistent_volume_claim else ""
