"""Validation of Service and Endpoints, which the box stores."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.address import PROTOCOLS, address, network, port_or_name
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import dns_label, dns_subdomain, kind_rules, labels

SERVICE_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_TRAFFIC = ("Cluster", "Local")
_MAX_RANGES = 1000
"""External addresses of a Service, and its source ranges; Kubernetes has no limit. Nothing in the box uses them."""


@kind_rules(dns_label)
def service(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Service."""
    spec = new["spec"]
    kind = spec.get("type")
    faults.one_of("spec.type", kind, SERVICE_TYPES)
    faults.one_of("spec.sessionAffinity", spec.get("sessionAffinity"), ("ClientIP", "None"))
    seconds = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds")
    faults.in_range("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, 1, 86400)
    _service_addresses(faults, spec)
    if not spec.get("ports") and kind != "ExternalName" and spec.get("clusterIP") != "None":
        faults.required("spec.ports")
    _service_ports(faults, spec)
    labels(faults, spec.get("selector") or {}, "spec.selector")
    if not faults.too_many("spec.externalIPs", len(spec.get("externalIPs") or ()), _MAX_RANGES):
        for path, ip in items(spec, "externalIPs", "spec."):
            faults.check(path, ip, address)
    ranges = "loadBalancerSourceRanges"
    if not faults.too_many(f"spec.{ranges}", len(spec.get(ranges) or ()), _MAX_RANGES):
        for path, cidr in items(spec, ranges, "spec."):
            faults.check(path, cidr.strip(), network)
    for word in ("internalTrafficPolicy", "externalTrafficPolicy"):
        if word in spec:
            faults.one_of(f"spec.{word}", spec[word], _TRAFFIC)
    if old is not None and kind == old["spec"].get("type") != "ExternalName":
        before = old["spec"].get("clusterIP", "")
        if before:
            faults.immutable("spec.clusterIPs[0]", spec.get("clusterIP", ""), before)


def _service_addresses(faults: Faults, spec: Obj) -> None:
    kind, given, every = spec.get("type"), spec.get("clusterIP", ""), spec.get("clusterIPs") or []
    if kind == "ExternalName":
        faults.name("spec.externalName", spec.get("externalName", "").rstrip("."), dns_subdomain)
        if given not in ("", "None"):
            faults.forbidden("spec.clusterIPs[0]", "may not be set for ExternalName services")
        return
    if given == "None" and kind in ("LoadBalancer", "NodePort"):
        faults.invalid("spec.clusterIPs[0]", given, f"may not be set to 'None' for {kind} services")
    if every and every[0] != given:
        faults.invalid("spec.clusterIPs", every, "first value must match `clusterIP`")
    if len(every) > 2 or (len(every) == 2 and spec.get("ipFamilyPolicy", "SingleStack") == "SingleStack"):
        faults.invalid("spec.clusterIPs", every[:3], "may only hold one address with a single stack")
        return
    for index, ip in enumerate(every):
        if ip != "None":
            faults.check(f"spec.clusterIPs[{index}]", ip, address)


def _service_ports(faults: Faults, spec: Obj) -> None:
    seen: set[tuple[str, int]] = set()
    node_ports: set[tuple[str, int]] = set()
    named: set[str] = set()
    many = len(spec.get("ports") or ()) > 1
    for path, port in items(spec, "ports", "spec."):
        name, protocol, number = port.get("name", ""), port.get("protocol", ""), port.get("port", 0)
        if name:
            if faults.check(f"{path}.name", name, dns_label):
                faults.unique(f"{path}.name", name, named)
        elif many:
            faults.required(f"{path}.name")
        faults.in_range(f"{path}.port", number, 1, 65535)
        faults.one_of(f"{path}.protocol", protocol, PROTOCOLS)
        port_or_name(faults, f"{path}.targetPort", port.get("targetPort", number))
        if (protocol, number) in seen:
            faults.duplicate(path, {"protocol": protocol, "port": number})
        seen.add((protocol, number))
        _node_port(faults, spec, path, port, node_ports)


def _node_port(faults: Faults, spec: Obj, path: str, port: Obj, seen: set[tuple[str, int]]) -> None:
    number, kind = port.get("nodePort", 0), spec.get("type")
    if not number:
        return
    if kind not in ("NodePort", "LoadBalancer"):
        faults.forbidden(f"{path}.nodePort", f"may not be used when `type` is '{kind}'")
    if (port.get("protocol", ""), number) in seen:
        faults.duplicate(f"{path}.nodePort", number)
    seen.add((port.get("protocol", ""), number))


@kind_rules()
def endpoints(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Endpoints: addresses and ports of each subset."""
    for path, subset in items(new, "subsets", ""):
        if not (subset.get("addresses") or subset.get("notReadyAddresses")):
            faults.required(path, "must specify `addresses` or `notReadyAddresses`")
        for word in ("addresses", "notReadyAddresses"):
            for place, one in items(subset, word, f"{path}."):
                faults.check(f"{place}.ip", one.get("ip", ""), address)
        many = len(subset.get("ports") or ()) > 1
        for place, port in items(subset, "ports", f"{path}."):
            if many or port.get("name"):
                faults.name(f"{place}.name", port.get("name", ""), dns_label)
            faults.in_range(f"{place}.port", port.get("port", 0), 1, 65535)
            faults.one_of(f"{place}.protocol", port.get("protocol"), PROTOCOLS)
