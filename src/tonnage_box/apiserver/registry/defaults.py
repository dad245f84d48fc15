"""Defaulting of every kind (pkg/apis/*/v1/defaults.go). Pure functions of normalized dicts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from tonnage_box.apiserver.storage.store import Obj

_FILE_MODE = 0o644
_POD: Mapping[str, str | int] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_JOB: Mapping[str, str | int] = {
    "parallelism": 1,
    "backoffLimit": 6,
    "completionMode": "NonIndexed",
    "suspend": False,
    "podReplacementPolicy": "TerminatingOrFailed",
}
_RBAC = "rbac.authorization.k8s.io"
_HISTORY = 10
_QUARTER = "25%"
_STATUS_LISTS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")


def containers(spec: Obj) -> Iterator[tuple[str, int, Obj]]:
    """Every container of a pod's spec with the list it is in and its index."""
    for word in _CONTAINER_LISTS:
        for index, container in enumerate(spec.get(word) or ()):
            yield word, index, container


def pod(obj: Obj) -> None:
    """Pod: policies, probes, modes, requests from limits."""
    spec = obj.setdefault("spec", {})
    pod_spec(spec)
    for word, _, container in containers(spec):
        if word != "ephemeralContainers":
            _requests(container["resources"])
    _pod_times(obj.get("status") or {})


def _pod_times(status: Obj) -> None:
    """Times that Kubernetes prints also where they are not known."""
    times(status, "lastProbeTime", "lastTransitionTime")
    for word in _STATUS_LISTS:
        for container in status.get(word) or ():
            for state in (container.get("state") or {}, container.get("lastState") or {}):
                if "running" in state:
                    state["running"].setdefault("startedAt", None)
                if "terminated" in state:
                    state["terminated"].setdefault("startedAt", None)
                    state["terminated"].setdefault("finishedAt", None)


def pod_spec(spec: Obj) -> None:
    """The spec of a pod or of a template of pods: all but requests from limits."""
    for key, value in _POD.items():
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    for _, _, container in containers(spec):
        _container(container)
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port.setdefault("hostPort", port.get("containerPort", 0))
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _container(container: Obj) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        _field_ref((variable.get("valueFrom") or {}).get("fieldRef"))
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in container:
            _probe(container[probe])
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _http(handler.get("httpGet"))


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if "@" not in image and tag in ("", "latest") else "IfNotPresent"


def _requests(resources: Obj) -> None:
    if "limits" in resources:
        resources["requests"] = resources["limits"] | resources.get("requests", {})


def _probe(probe: Obj) -> None:
    for key, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe[key] = probe.get(key) or value
    _http(probe.get("httpGet"))
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _http(action: Obj | None) -> None:
    if action is not None:
        action.setdefault("path", "/")
        action.setdefault("scheme", "HTTP")


def _field_ref(ref: Obj | None) -> None:
    if ref is not None:
        ref.setdefault("apiVersion", "v1")


def _volume(volume: Obj) -> None:
    if not volume.keys() - {"name"}:
        volume["emptyDir"] = {}
    for word in ("configMap", "secret", "downwardAPI", "projected"):
        if word in volume:
            volume[word].setdefault("defaultMode", _FILE_MODE)
    sources = (volume.get("projected") or {}).get("sources") or ()
    for source in (volume, *sources):
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            _field_ref(item.get("fieldRef"))
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
    if template is not None:
        template.setdefault("metadata", {})
        template.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    if "image" in volume and "pullPolicy" not in volume["image"]:
        volume["image"]["pullPolicy"] = _pull_policy(volume["image"].get("reference", ""))


def role_binding(obj: Obj) -> None:
    """RoleBinding and ClusterRoleBinding: groups of the role and of its subjects."""
    ref = obj.setdefault("roleRef", {})
    ref["apiGroup"] = ref.get("apiGroup") or _RBAC
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = _RBAC


def claim(obj: Obj) -> None:
    """PersistentVolumeClaim."""
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    obj.setdefault("status", {}).setdefault("phase", "Pending")
    times(obj["status"], "lastProbeTime", "lastTransitionTime")


def times(status: Obj, *words: str) -> None:
    """Times of conditions, which Kubernetes prints also where they are not known."""
    for condition in status.get("conditions") or ():
        for word in words:
            condition.setdefault(word, None)


def volume(obj: Obj) -> None:
    """PersistentVolume."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def namespace(obj: Obj) -> None:
    """Namespace: the label that carries its name, and its phase."""
    metadata = obj.setdefault("metadata", {})
    if metadata.get("name"):
        metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]
    obj.setdefault("status", {}).setdefault("phase", "Active")


def node(obj: Obj) -> None:
    """Node: allocatable defaults to capacity."""
    status = obj.get("status") or {}
    if "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])


def secret(obj: Obj) -> None:
    """Secret: default type. Preparation merges stringData into data."""
    obj.setdefault("type", "Opaque")


def limit_range(obj: Obj) -> None:
    """LimitRange: limits of containers follow from one another."""
    for item in (obj.get("spec") or {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        default = dict(item.get("max", {})) | item.get("default", {})
        request = dict(item.get("min", {})) | default | item.get("defaultRequest", {})
        item.update({k: copy.copy(v) for k, v in (("default", default), ("defaultRequest", request)) if v})


def storage_class(obj: Obj) -> None:
    """StorageClass."""
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def csi_driver(obj: Obj) -> None:
    """CSIDriver."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("attachRequired", True)
    for key in ("podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"):
        spec.setdefault(key, False)
    spec.setdefault("fsGroupPolicy", "ReadWriteOnceWithFSType")
    spec["volumeLifecycleModes"] = spec.get("volumeLifecycleModes") or ["Persistent"]


def attachment(obj: Obj) -> None:
    """VolumeAttachment: not attached by default."""
    obj.setdefault("status", {}).setdefault("attached", False)


def priority_class(obj: Obj) -> None:
    """PriorityClass: others may be pushed out for its pods."""
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _template(obj: Obj) -> Obj:
    spec: Obj = obj.setdefault("spec", {})
    pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))
    return spec


def replica_set(obj: Obj) -> None:
    """ReplicaSet: one pod."""
    _template(obj).setdefault("replicas", 1)
    _counts(obj, "replicas")


def deployment(obj: Obj) -> None:
    """Deployment: one replica, 25 % surge and unavailable, 10 minutes' progress deadline, 10 old ReplicaSets."""
    spec = _template(obj)
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", _HISTORY)
    spec.setdefault("progressDeadlineSeconds", 600)
    _rolling(spec.setdefault("strategy", {}), maxUnavailable=_QUARTER, maxSurge=_QUARTER)


def stateful_set(obj: Obj) -> None:
    """StatefulSet: one replica, OrderedReady, RollingUpdate; claims are retained."""
    spec = _template(obj)
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", _HISTORY)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    _rolling(spec.setdefault("updateStrategy", {}), partition=0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for word in ("whenDeleted", "whenScaled"):
        retention.setdefault(word, "Retain")
    _counts(obj, "replicas", "availableReplicas")
    for template in spec.get("volumeClaimTemplates") or ():
        template |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim(template)


def daemon_set(obj: Obj) -> None:
    """DaemonSet: rolled out node by node."""
    spec = _template(obj)
    spec.setdefault("revisionHistoryLimit", _HISTORY)
    _rolling(spec.setdefault("updateStrategy", {}), maxUnavailable=1, maxSurge=0)
    words = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
    _counts(obj, *words)


def budget(obj: Obj) -> None:
    """PodDisruptionBudget: nothing counted yet."""
    _counts(obj, "currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")


def _counts(obj: Obj, *words: str) -> None:
    """Numbers of the status that are there from the beginning."""
    status = obj.setdefault("status", {})
    for word in words:
        status.setdefault(word, 0)


def _rolling(strategy: Obj, **bounds: Any) -> None:
    strategy["type"] = strategy.get("type") or "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        for word, value in bounds.items():
            rolling.setdefault(word, value)


def cron_job(obj: Obj) -> None:
    """CronJob: runs may overlap; history of three successful Jobs and one failed Job."""
    spec = obj.setdefault("spec", {})
    spec["concurrencyPolicy"] = spec.get("concurrencyPolicy") or "Allow"
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    _template(spec.setdefault("jobTemplate", {}))


def job(obj: Obj) -> None:
    """Job: one pod that must end well, six failures borne."""
    spec = _template(obj)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    for word, value in _JOB.items():
        spec.setdefault(word, value)
