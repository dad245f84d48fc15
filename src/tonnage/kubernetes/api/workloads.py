"""apps/v1 and batch/v1. Pod templates stay plain data, as pods are created from them."""

from __future__ import annotations

from typing import Any

from tonnage.kubernetes.api.meta import Condition, KubeObject, LabelSelector, Object, ObjectMeta, ObjectReference

IntOrPercent = int | str
Template = dict[str, Any]


class RollingUpdate(Object, frozen=True):
    """Rolling update parameters; which fields apply depends on the kind."""

    max_surge: IntOrPercent | None = None
    max_unavailable: IntOrPercent | None = None
    partition: int = 0


class DeploymentStrategy(Object, frozen=True):
    """RollingUpdate, Recreate (Deployments) or OnDelete (the others)."""

    type: str = ""
    rolling_update: RollingUpdate | None = None


class ReplicaSetSpec(Object, frozen=True):
    """ReplicaSet spec."""

    replicas: int = 1
    min_ready_seconds: int = 0
    selector: LabelSelector = LabelSelector()
    template: Template = {}


class ReplicaSetStatus(Object, frozen=True):
    """ReplicaSet status."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0
    conditions: list[Condition] = []


class ReplicaSet(KubeObject, frozen=True):
    """apps/v1 ReplicaSet."""

    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class DeploymentSpec(Object, frozen=True):
    """Deployment spec."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: Template = {}
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class DeploymentCondition(Condition, frozen=True):
    """Available, Progressing or ReplicaFailure."""

    last_update_time: str | None = None


class DeploymentStatus(Object, frozen=True):
    """Deployment status."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    collision_count: int | None = None
    conditions: list[DeploymentCondition] = []


class Deployment(KubeObject, frozen=True):
    """apps/v1 Deployment."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class Retention(Object, frozen=True):
    """persistentVolumeClaimRetentionPolicy: Retain or Delete."""

    when_deleted: str = "Retain"
    when_scaled: str = "Retain"


class Ordinals(Object, frozen=True):
    """The ordinal of the first pod."""

    start: int = 0


class StatefulSetSpec(Object, frozen=True):
    """StatefulSet spec."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: Template = {}
    volume_claim_templates: list[dict[str, Any]] = []
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: DeploymentStrategy = DeploymentStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: Retention = Retention()
    ordinals: Ordinals = Ordinals()


class StatefulSetStatus(Object, frozen=True):
    """StatefulSet status."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None


class StatefulSet(KubeObject, frozen=True):
    """apps/v1 StatefulSet."""

    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class DaemonSetSpec(Object, frozen=True):
    """DaemonSet spec."""

    selector: LabelSelector = LabelSelector()
    template: Template = {}
    update_strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSetStatus(Object, frozen=True):
    """DaemonSet status."""

    observed_generation: int = 0
    current_number_scheduled: int = 0
    desired_number_scheduled: int = 0
    number_misscheduled: int = 0
    number_ready: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    updated_number_scheduled: int = 0
    collision_count: int | None = None


class DaemonSet(KubeObject, frozen=True):
    """apps/v1 DaemonSet."""

    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(KubeObject, frozen=True):
    """apps/v1 ControllerRevision: a former template of a StatefulSet or DaemonSet, as a patch of the set."""

    revision: int = 0
    data: dict[str, Any] = {}


class JobSpec(Object, frozen=True):
    """Job spec."""

    parallelism: int = 1
    completions: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int = 6
    selector: LabelSelector = LabelSelector()
    template: Template = {}
    ttl_seconds_after_finished: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    pod_replacement_policy: str = "TerminatingOrFailed"


class Uncounted(Object, frozen=True):
    """uids of terminated pods that are not counted yet: they still have the Job's finalizer."""

    succeeded: list[str] = []
    failed: list[str] = []


class JobStatus(Object, frozen=True):
    """Job status."""

    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    uncounted_terminated_pods: Uncounted = Uncounted()
    conditions: list[Condition] = []


class Job(KubeObject, frozen=True):
    """batch/v1 Job."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobTemplate(Object, frozen=True):
    """The template of a CronJob's Jobs."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


class CronJobSpec(Object, frozen=True):
    """CronJob spec."""

    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = "Allow"
    suspend: bool = False
    job_template: JobTemplate = JobTemplate()
    successful_jobs_history_limit: int | None = None
    failed_jobs_history_limit: int | None = None


class CronJobStatus(Object, frozen=True):
    """CronJob status."""

    active: list[ObjectReference] = []
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(KubeObject, frozen=True):
    """batch/v1 CronJob."""

    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


def template_meta(template: Template) -> ObjectMeta:
    """The labels, annotations and finalizers for pods of a template."""
    meta = template.get("metadata") or {}
    return ObjectMeta(
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        finalizers=meta.get("finalizers") or [],
    )
