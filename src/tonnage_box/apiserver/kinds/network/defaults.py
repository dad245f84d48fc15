"""Defaulting of discovery.k8s.io and networking.k8s.io (pkg/apis/{discovery,networking}/v1/defaults.go). Pure."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj


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
