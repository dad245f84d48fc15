"""Defaulting of Deployments, StatefulSets, DaemonSets and Jobs (pkg/apis/{apps,batch}/v1/defaults.go)."""

from __future__ import annotations

from typing import Any

from tonnage.box.apiserver.registry.defaults import claim, pod_spec

Obj = dict[str, Any]
_HISTORY = 10
_QUARTER = "25%"


def _template(obj: Obj) -> Obj:
    spec: Obj = obj.setdefault("spec", {})
    pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))
    return spec


def replica_set(obj: Obj) -> None:
    """ReplicaSet: one pod."""
    _template(obj).setdefault("replicas", 1)


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
    for template in spec.get("volumeClaimTemplates") or ():
        template |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim(template)


def daemon_set(obj: Obj) -> None:
    """DaemonSet: rolled out node by node."""
    spec = _template(obj)
    spec.setdefault("revisionHistoryLimit", _HISTORY)
    _rolling(spec.setdefault("updateStrategy", {}), maxUnavailable=1, maxSurge=0)


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
    for word, value in (
        ("parallelism", 1),
        ("backoffLimit", 6),
        ("completionMode", "NonIndexed"),
        ("suspend", False),
        ("podReplacementPolicy", "TerminatingOrFailed"),
    ):
        spec.setdefault(word, value)
