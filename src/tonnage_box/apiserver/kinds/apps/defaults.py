"""Defaulting of apps (pkg/apis/apps/v1/defaults.go). Pure functions of normalized dicts."""

from __future__ import annotations

from typing import Any

from tonnage_box.apiserver.kinds.core.defaults import claim
from tonnage_box.apiserver.kinds.core.pod_defaults import templated
from tonnage_box.apiserver.kinds.shared.defaults import counts
from tonnage_box.apiserver.storage.store import Obj

_HISTORY = 10
_QUARTER = "25%"


def replica_set(obj: Obj) -> None:
    """ReplicaSet: one pod."""
    templated(obj).setdefault("replicas", 1)
    counts(obj, "replicas")


def deployment(obj: Obj) -> None:
    """Deployment: one replica, 25 % surge and unavailable, 10 minutes' progress deadline, 10 old ReplicaSets."""
    spec = templated(obj)
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", _HISTORY)
    spec.setdefault("progressDeadlineSeconds", 600)
    _rolling(spec.setdefault("strategy", {}), maxUnavailable=_QUARTER, maxSurge=_QUARTER)


def stateful_set(obj: Obj) -> None:
    """StatefulSet: one replica, OrderedReady, RollingUpdate; claims are retained."""
    spec = templated(obj)
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", _HISTORY)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    _rolling(spec.setdefault("updateStrategy", {}), partition=0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for word in ("whenDeleted", "whenScaled"):
        retention.setdefault(word, "Retain")
    counts(obj, "replicas", "availableReplicas")
    for template in spec.get("volumeClaimTemplates") or ():
        template |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim(template)


def daemon_set(obj: Obj) -> None:
    """DaemonSet: rolled out node by node."""
    spec = templated(obj)
    spec.setdefault("revisionHistoryLimit", _HISTORY)
    _rolling(spec.setdefault("updateStrategy", {}), maxUnavailable=1, maxSurge=0)
    words = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
    counts(obj, *words)


def _rolling(strategy: Obj, **bounds: Any) -> None:
    strategy["type"] = strategy.get("type") or "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        for word, value in bounds.items():
            rolling.setdefault(word, value)
