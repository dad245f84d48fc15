"""Columns of `kubectl get svc,ep,endpointslices,ing,ingressclass,netpol,hpa,rc,runtimeclass` (pkg/printers)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tonnage_box.apiserver.printers.table import AGE, NAME, Column, Obj, at, dig, of
from tonnage_box.apiserver.printers.workloads import CONTAINERS, shown_selector

_FEW = 3
_WIDTH = 16


def _few(found: Sequence[str], limit: int = _FEW) -> str:
    """The first of a list, and how many more there are."""
    text = ",".join(found[:limit])
    return f"{text} + {len(found) - limit} more..." if len(found) > limit else text


def shown_labels(pairs: Any) -> str:
    """`a=b,c=d`, or <none> (labels.FormatLabels)."""
    return ",".join(f"{key}={value}" for key, value in sorted((pairs or {}).items())) or "<none>"


def _balancer(obj: Obj) -> str:
    found = dig(obj, "status", "loadBalancer", "ingress") or ()
    text = ",".join(sorted({i.get("ip") or i.get("hostname") or "" for i in found} - {""}))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _external(obj: Obj) -> str:
    spec = obj.get("spec") or {}
    given = ",".join(spec.get("externalIPs") or ())
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    if spec.get("type") != "LoadBalancer":
        return given or "<none>"
    return ",".join(filter(None, (_balancer(obj), given))) or "<pending>"


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
    return _few(found) if obj.get("subsets") else "<none>"


ENDPOINTS = (NAME, of("Endpoints", _endpoint_addresses), AGE)


def _slice_ports(obj: Obj) -> str:
    return _few([str(p.get("port", p.get("name", "*"))) for p in obj.get("ports") or ()]) or "<unset>"


def _slice_addresses(obj: Obj) -> str:
    return _few([a for e in obj.get("endpoints") or () for a in e.get("addresses") or ()]) or "<unset>"


ENDPOINT_SLICE = (
    NAME,
    at("AddressType", "addressType"),
    of("Ports", _slice_ports),
    of("Endpoints", _slice_addresses),
    AGE,
)


def _hosts(obj: Obj) -> str:
    rules = dig(obj, "spec", "rules") or ()
    text = ",".join(r["host"] for r in rules[:_FEW] if r.get("host"))
    if not text:
        return "*"
    return f"{text} + {len(rules) - _FEW} more..." if len(rules) > _FEW else text


INGRESS = (
    NAME,
    at("Class", "spec", "ingressClassName", empty="<none>"),
    of("Hosts", _hosts),
    of("Address", _balancer),
    of("Ports", lambda o: "80, 443" if dig(o, "spec", "tls") else "80"),
    AGE,
)
DEFAULT_INGRESS_CLASS = "ingressclass.kubernetes.io/is-default-class"


def _ingress_class(obj: Obj) -> str:
    is_default = dig(obj, "metadata", "annotations", DEFAULT_INGRESS_CLASS) == "true"
    return str(obj["metadata"]["name"]) + (" (default)" if is_default else "")


def _parameters(obj: Obj) -> str:
    ref = dig(obj, "spec", "parameters")
    if not ref:
        return "<none>"
    return ".".join(filter(None, (ref.get("kind", ""), ref.get("apiGroup", "")))) + f"/{ref.get('name', '')}"


INGRESS_CLASS = (
    Column("Name", lambda o, _: _ingress_class(o), format="name"),
    at("Controller", "spec", "controller"),
    of("Parameters", _parameters),
    AGE,
)
NETWORK_POLICY = (
    NAME,
    of("Pod-Selector", lambda o: shown_selector({"spec": {"selector": dig(o, "spec", "podSelector")}})),
    AGE,
)
RUNTIME_CLASS = (NAME, at("Handler", "handler"), AGE)
REPLICATION_CONTROLLER = (
    NAME,
    at("Desired", "spec", "replicas", empty=0, kind="integer"),
    at("Current", "status", "replicas", empty=0, kind="integer"),
    at("Ready", "status", "readyReplicas", empty=0, kind="integer"),
    AGE,
    *CONTAINERS,
    of("Selector", lambda o: shown_labels(dig(o, "spec", "selector")), 1),
)
POD_TEMPLATE = (
    NAME,
    of("Containers", lambda o: _each_container(o, "name")),
    of("Images", lambda o: _each_container(o, "image")),
    of("Pod Labels", lambda o: shown_labels(dig(o, "template", "metadata", "labels"))),
)


def _each_container(obj: Obj, word: str) -> str:
    return ",".join(c.get(word, "") for c in dig(obj, "template", "spec", "containers") or ())


_MEASURES = {
    "Resource": "resource", "ContainerResource": "containerResource", "Pods": "pods", "Object": "object",
    "External": "external",
}  # fmt: skip


def _metrics(obj: Obj) -> str:
    """`cpu: <unknown>/80%`: what was measured and the goal of each measure."""
    wanted, seen = dig(obj, "spec", "metrics") or (), dig(obj, "status", "currentMetrics") or ()
    shown = [_metric(spec, seen[n] if n < len(seen) else {}) for n, spec in enumerate(wanted)]
    return _few(shown, 2).replace(",", ", ") or "<none>"


def _metric(spec: Obj, status: Obj) -> str:
    word = _MEASURES.get(spec.get("type", ""), "")
    source, target = spec.get(word) or {}, dig(spec, word, "target") or {}
    current = dig(status, word, "current") or {}
    name = f"{source['name']}: " if source.get("name") else ""
    if "averageValue" in target:
        tail = " (avg)" if word in ("object", "external") else ""
        return f"{name}{current.get('averageValue', '<unknown>')}/{target['averageValue']}{tail}"
    if word in ("object", "external"):
        return f"{current.get('value', '<unknown>')}/{target.get('value', '<unknown>')}"
    return f"{name}{_percent(current, '<unknown>')}/{_percent(target, '<auto>')}" if word else "<unknown type>"


def _percent(amounts: Obj, empty: str) -> str:
    return f"{amounts['averageUtilization']}%" if "averageUtilization" in amounts else empty


def _scaled(obj: Obj) -> str:
    ref = dig(obj, "spec", "scaleTargetRef") or {}
    return f"{ref.get('kind', '')}/{ref.get('name', '')}"


def autoscaler(columns: Iterable[Column] = ()) -> tuple[Column, ...]:
    """Columns of HorizontalPodAutoscalers; columns: those before the numbers of pods, for another version."""
    return (
        NAME,
        of("Reference", _scaled, text="The workload that it scales."),
        *(columns or (of("Targets", _metrics, text="What is measured, and the goal."),)),
        of("MinPods", lambda o: str(dig(o, "spec", "minReplicas") or "<unset>")),
        at("MaxPods", "spec", "maxReplicas", empty=0, kind="integer"),
        at("Replicas", "status", "currentReplicas", empty=0, kind="integer"),
        AGE,
    )


def _cpu(obj: Obj) -> str:
    wanted, seen = (
        dig(obj, "spec", "targetCPUUtilizationPercentage"),
        dig(obj, "status", "currentCPUUtilizationPercentage"),
    )
    return "<none>" if wanted is None else f"cpu: {'<unknown>' if seen is None else f'{seen}%'}/{wanted}%"


AUTOSCALER = autoscaler()
AUTOSCALER_V1 = autoscaler((of("Targets", _cpu),))
ATTRIBUTES_CLASS = (NAME, at("DriverName", "driverName"), AGE)
