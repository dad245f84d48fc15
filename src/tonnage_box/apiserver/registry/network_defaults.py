"""Defaulting of kinds that the box stores and does not act on (pkg/apis/*/defaults.go). Pure functions."""

from __future__ import annotations

from tonnage_box.apiserver.registry.defaults import pod_spec
from tonnage_box.apiserver.storage.store import Obj

_AFFINITY_SECONDS = 10800
_CPU_PERCENT = 80
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


def endpoint_slice(obj: Obj) -> None:
    """EndpointSlice: ports without a name have an empty one; TCP."""
    for port in obj.get("ports") or ():
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def network_policy(obj: Obj) -> None:
    """NetworkPolicy: for all pods; of type Egress too if it has rules for that; TCP."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    for word in ("ingress", "egress"):
        for rule in spec.get(word) or ():
            for port in rule.get("ports") or ():
                port.setdefault("protocol", "TCP")


def ingress(obj: Obj) -> None:
    """Ingress: an empty status."""
    obj.setdefault("spec", {})
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def ingress_class(obj: Obj) -> None:
    """IngressClass: parameters of the cluster."""
    parameters = (obj.get("spec") or {}).get("parameters")
    if parameters is not None:
        parameters.setdefault("scope", "Cluster")


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


def autoscaler(obj: Obj) -> None:
    """HorizontalPodAutoscaler: at least one pod, 80 % of the CPU that its pods request."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": _CPU_PERCENT}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    obj.setdefault("status", {}).setdefault("desiredReplicas", 0)


def autoscaler_v1(obj: Obj) -> None:
    """HorizontalPodAutoscaler of autoscaling/v1: at least one pod."""
    obj.setdefault("spec", {}).setdefault("minReplicas", 1)
    status = obj.setdefault("status", {})
    for word in ("currentReplicas", "desiredReplicas"):
        status.setdefault(word, 0)


def pod_certificate_request(obj: Obj) -> None:
    """PodCertificateRequest: a day at most."""
    obj.setdefault("spec", {}).setdefault("maxExpirationSeconds", 86400)
