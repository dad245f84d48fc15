"""Validation of EndpointSlices, routes and policies (pkg/apis/{discovery,networking}/validation)."""

from __future__ import annotations

import ipaddress

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.address import PROTOCOLS, address, network, port_name, port_or_name
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import dns_label, dns_subdomain, kind_rules, label_selector, qualified_name

_MAX_ENDPOINTS, _MAX_PORTS, _MAX_ADDRESSES = 1000, 20000, 100


@kind_rules()
def endpoint_slice(faults: Faults, new: Obj, old: Obj | None) -> None:
    """EndpointSlice: addresses of one type."""
    kind = new.get("addressType", "")
    if kind:
        faults.one_of("addressType", kind, ("FQDN", "IPv4", "IPv6"))
    else:
        faults.required("addressType")
    if old is not None:
        faults.fixed("", new, old, "addressType")
    if len(new.get("endpoints") or ()) > _MAX_ENDPOINTS:
        faults.invalid("endpoints", len(new["endpoints"]), f"must have at most {_MAX_ENDPOINTS} items")
    for path, endpoint in items(new, "endpoints", ""):
        found = endpoint.get("addresses") or []
        if not found:
            faults.required(f"{path}.addresses", "must contain at least 1 address")
        elif len(found) > _MAX_ADDRESSES:
            faults.invalid(f"{path}.addresses", len(found), f"must have at most {_MAX_ADDRESSES} items")
        for place, one in items(endpoint, "addresses", f"{path}."):
            faults.check(place, one, dns_subdomain if kind == "FQDN" else address)
    _slice_ports(faults, new)


def _slice_ports(faults: Faults, new: Obj) -> None:
    named: set[str] = set()
    if len(new.get("ports") or ()) > _MAX_PORTS:
        faults.invalid("ports", len(new["ports"]), f"must have at most {_MAX_PORTS} items")
    for path, port in items(new, "ports", ""):
        faults.unique(f"{path}.name", port.get("name", ""), named)
        if port.get("name"):
            faults.check(f"{path}.name", port["name"], dns_label)
        faults.one_of(f"{path}.protocol", port.get("protocol"), PROTOCOLS)
        faults.in_range(f"{path}.port", port.get("port"), 1, 65535)


@kind_rules()
def ingress(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Ingress: each host has paths, each path a backend."""
    spec = new["spec"]
    if not spec.get("rules") and not spec.get("defaultBackend"):
        detail = "either `defaultBackend` or `rules` must be specified"
        faults.invalid("spec", spec.get("rules") or [], detail)
    if spec.get("ingressClassName"):
        faults.check("spec.ingressClassName", spec["ingressClassName"], dns_subdomain)
    if spec.get("defaultBackend") is not None:
        _backend(faults, spec["defaultBackend"], "spec.defaultBackend")
    for path, tls in items(spec, "tls", "spec."):
        for place, host in items(tls, "hosts", f"{path}."):
            faults.check(place, host.removeprefix("*."), dns_subdomain)
    _ingress_rules(faults, spec)


def _ingress_rules(faults: Faults, spec: Obj) -> None:
    for path, rule in items(spec, "rules", "spec."):
        if rule.get("host"):
            if not address(rule["host"]):
                faults.invalid(f"{path}.host", rule["host"], "must be a DNS name, not an IP address")
            faults.check(f"{path}.host", rule["host"].removeprefix("*."), dns_subdomain)
        if "http" in rule and not rule["http"].get("paths"):
            faults.required(f"{path}.http.paths")
        for place, one in items(rule.get("http") or {}, "paths", f"{path}.http."):
            _http_path(faults, one, place)


def _http_path(faults: Faults, one: Obj, path: str) -> None:
    kind, text = one.get("pathType", ""), one.get("path", "")
    if not kind:
        faults.required(f"{path}.pathType", "pathType must be specified")
    else:
        faults.one_of(f"{path}.pathType", kind, ("Exact", "ImplementationSpecific", "Prefix"))
    if (kind in ("Exact", "Prefix") or text) and not text.startswith("/"):
        faults.invalid(f"{path}.path", text, "must be an absolute path")
    _backend(faults, one.get("backend") or {}, f"{path}.backend")


def _backend(faults: Faults, backend: Obj, path: str) -> None:
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        faults.invalid(path, "", "cannot set both resource and service backends")
    elif service is None and resource is None:
        faults.required(f"{path}", "must specify a service or a resource backend")
    elif service is not None:
        faults.name(f"{path}.service.name", service.get("name", ""), dns_label)
        port = service.get("port") or {}
        if port.get("name"):
            faults.check(f"{path}.service.port.name", port["name"], port_name)
        elif port.get("number"):
            faults.in_range(f"{path}.service.port.number", port["number"], 1, 65535)
        else:
            faults.required(f"{path}.service.port", "port name or number is required")


@kind_rules()
def ingress_class(faults: Faults, new: Obj, old: Obj | None) -> None:
    """IngressClass: who serves it never changes."""
    spec = new.get("spec") or {}
    if old is not None:
        faults.immutable("spec.controller", spec.get("controller", ""), (old.get("spec") or {}).get("controller", ""))
    if spec.get("controller"):
        faults.check("spec.controller", spec["controller"], qualified_name)
    elif old is None:
        faults.required("spec.controller")
    parameters = spec.get("parameters")
    if parameters is not None:
        faults.given("spec.parameters", parameters, "kind", "name")
        faults.one_of("spec.parameters.scope", parameters.get("scope"), ("Cluster", "Namespace"))
        if (parameters.get("scope") == "Namespace") != bool(parameters.get("namespace")):
            faults.invalid("spec.parameters.namespace", parameters.get("namespace", ""), "must agree with `scope`")


@kind_rules()
def network_policy(faults: Faults, new: Obj, old: Obj | None) -> None:
    """NetworkPolicy: selectors, peers and ports."""
    spec = new["spec"]
    label_selector(faults, spec.get("podSelector") or {}, "spec.podSelector")
    for path, kind in items(spec, "policyTypes", "spec."):
        faults.one_of(path, kind, ("Egress", "Ingress"))
    for word, peers in (("ingress", "from"), ("egress", "to")):
        for path, rule in items(spec, word, "spec."):
            for place, port in items(rule, "ports", f"{path}."):
                _policy_port(faults, port, place)
            for place, peer in items(rule, peers, f"{path}."):
                _peer(faults, peer, place)


def _policy_port(faults: Faults, port: Obj, path: str) -> None:
    faults.one_of(f"{path}.protocol", port.get("protocol"), PROTOCOLS)
    if "port" in port:
        port_or_name(faults, f"{path}.port", port["port"])
    if "endPort" in port:
        first = port.get("port")
        if not isinstance(first, int):
            faults.required(f"{path}.port", "must be a number when `endPort` is specified")
        elif not first <= port["endPort"] <= 65535:
            faults.invalid(f"{path}.endPort", port["endPort"], "must be greater than or equal to `port`")


def _peer(faults: Faults, peer: Obj, path: str) -> None:
    selectors = peer.keys() & {"podSelector", "namespaceSelector"}
    if not peer:
        faults.required(path, "must specify a peer")
    if "ipBlock" not in peer:
        for word in sorted(selectors):
            label_selector(faults, peer[word], f"{path}.{word}")
        return
    if selectors:
        faults.forbidden(path, "may not specify both ipBlock and another peer")
    block = peer["ipBlock"]
    if not block.get("cidr"):
        faults.required(f"{path}.ipBlock.cidr")
    elif faults.check(f"{path}.ipBlock.cidr", block["cidr"], network):
        _excepted(faults, block, f"{path}.ipBlock")


def _excepted(faults: Faults, block: Obj, path: str) -> None:
    whole = ipaddress.ip_network(block["cidr"], strict=False)
    for place, cidr in items(block, "except", f"{path}."):
        if not faults.check(place, cidr, network):
            continue
        part = ipaddress.ip_network(cidr, strict=False)
        inside = part.version == whole.version and part.prefixlen > whole.prefixlen
        if not inside or part.network_address not in whole:
            faults.invalid(place, cidr, f"must be a strict subset of `cidr` ({block['cidr']})")
