"""Columns of `kubectl get endpointslices,ing,ingressclass,netpol` (pkg/printers/internalversion)."""

from __future__ import annotations

from tonnage_box.apiserver.printers.cells import FEW, balancer, few, shown_selector
from tonnage_box.apiserver.printers.table import AGE, NAME, Column, Obj, at, dig, of


def _slice_ports(obj: Obj) -> str:
    return few([str(p.get("port", p.get("name", "*"))) for p in obj.get("ports") or ()]) or "<unset>"


def _slice_addresses(obj: Obj) -> str:
    return few([a for e in obj.get("endpoints") or () for a in e.get("addresses") or ()]) or "<unset>"


ENDPOINT_SLICE = (
    NAME,
    at("AddressType", "addressType"),
    of("Ports", _slice_ports),
    of("Endpoints", _slice_addresses),
    AGE,
)


def _hosts(obj: Obj) -> str:
    rules = dig(obj, "spec", "rules") or ()
    text = ",".join(r["host"] for r in rules[:FEW] if r.get("host"))
    if not text:
        return "*"
    return f"{text} + {len(rules) - FEW} more..." if len(rules) > FEW else text


INGRESS = (
    NAME,
    at("Class", "spec", "ingressClassName", empty="<none>"),
    of("Hosts", _hosts),
    of("Address", balancer),
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
