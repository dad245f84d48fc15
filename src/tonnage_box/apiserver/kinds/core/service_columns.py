"""Columns of `kubectl get svc,ep` (pkg/printers/internalversion)."""

from __future__ import annotations

from tonnage_box.apiserver.printers.cells import balancer, few, shown_labels
from tonnage_box.apiserver.printers.table import AGE, NAME, Obj, at, dig, of


def _external(obj: Obj) -> str:
    spec = obj.get("spec") or {}
    given = ",".join(spec.get("externalIPs") or ())
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    if spec.get("type") != "LoadBalancer":
        return given or "<none>"
    return ",".join(filter(None, (balancer(obj), given))) or "<pending>"


def _service_port(port: Obj) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port', 0)}{node}/{port.get('protocol', '')}"


SERVICE = (
    NAME,
    at("Type", "spec", "type", text="ClusterIP, NodePort, LoadBalancer or ExternalName."),
    of("Cluster-IP", lambda o: (dig(o, "spec", "clusterIPs") or ["<none>"])[0], text="Its address, or None."),
    of("External-IP", _external, text="Its addresses outside the cluster."),
    of("Port(s)", lambda o: ",".join(map(_service_port, dig(o, "spec", "ports") or ())) or "<none>"),
    AGE,
    of("Selector", lambda o: shown_labels(dig(o, "spec", "selector")), 1),
)


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _endpoint_addresses(obj: Obj) -> str:
    found: list[str] = []
    for subset in obj.get("subsets") or ():
        ips = [a.get("ip", "") for a in subset.get("addresses") or ()]
        ports = [p.get("port", 0) for p in subset.get("ports") or ()]
        found += [_joined(ip, port) for port in ports for ip in ips] if ports else ips
    return few(found) if obj.get("subsets") else "<none>"


ENDPOINTS = (NAME, of("Endpoints", _endpoint_addresses), AGE)
