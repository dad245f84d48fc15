"""Defaulting of the other kinds of core/v1 (pkg/apis/core/v1/defaults.go). Pure functions of normalized dicts."""

from __future__ import annotations

import copy

from tonnage_box.apiserver.kinds.core.pod_defaults import pod_spec
from tonnage_box.apiserver.kinds.shared.defaults import times
from tonnage_box.apiserver.storage.store import Obj


def claim(obj: Obj) -> None:
    """PersistentVolumeClaim."""
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    obj.setdefault("status", {}).setdefault("phase", "Pending")
    times(obj["status"], "lastProbeTime", "lastTransitionTime")


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


_AFFINITY_SECONDS = 10800
_OUTSIDE = ("NodePort", "LoadBalancer")


def service(obj: Obj) -> None:
    """Service: type, affinity, protocols, target ports and traffic policies."""
    spec = obj.setdefault("spec", {})
    spec["type"] = spec.get("type") or "ClusterIP"
    spec["sessionAffinity"] = spec.get("sessionAffinity") or "None"
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        client = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        client.setdefault("timeoutSeconds", _AFFINITY_SECONDS)
    for port in spec.get("ports") or ():
        port["protocol"] = port.get("protocol") or "TCP"
        port["targetPort"] = port.get("targetPort") or port.get("port", 0)
    if spec["type"] in _OUTSIDE or spec.get("externalIPs"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def endpoints(obj: Obj) -> None:
    """Endpoints: TCP."""
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port.setdefault("protocol", "TCP")


def replication_controller(obj: Obj) -> None:
    """ReplicationController: one pod; labels and selector are those of the template."""
    spec = obj.setdefault("spec", {})
    template = spec.setdefault("template", {})
    pod_spec(template.setdefault("spec", {}))
    labels = (template.get("metadata") or {}).get("labels") or {}
    if labels:
        spec.setdefault("selector", dict(labels))
        obj["metadata"].setdefault("labels", dict(labels))
    spec.setdefault("replicas", 1)
    obj.setdefault("status", {}).setdefault("replicas", 0)


def pod_template(obj: Obj) -> None:
    """PodTemplate."""
    pod_spec(obj.setdefault("template", {}).setdefault("spec", {}))
