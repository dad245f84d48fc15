"""Addresses and node ports of Services (pkg/registry/core/service): unique, and theirs as long as they live.

Nothing answers at them. Clients wait for them: `helm --wait`, and operators that read `spec.clusterIP`.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import Any

from tonnage.base.errors import ApiError, FieldCause
from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.admission import plugins
from tonnage_box.apiserver.request import errors
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.storage.store import Obj

ADDRESSES = ipaddress.IPv4Network("10.96.0.0/16")
NODE_PORTS = range(30000, 32768)
_LOCK = "services"
_RESERVED = 2
"""The network itself and the address of the API server (10.96.0.1)."""


def prepare(new: Obj, old: Obj | None) -> None:
    """Keep what was allocated where the client leaves it out (patchAllocatedValues); a new one has no status."""
    if old is None:
        new.pop("status", None)
        return
    spec, before = new.setdefault("spec", {}), old.get("spec") or {}
    if spec.get("type", "ClusterIP") == "ExternalName" or before.get("type") == "ExternalName":
        return
    if not spec.get("clusterIP") and not spec.get("clusterIPs"):
        for word in ("clusterIP", "clusterIPs"):
            if word in before:
                spec[word] = before[word]
    ports = {(p.get("protocol", "TCP"), p.get("port")): p for p in before.get("ports") or ()}
    for port in spec.get("ports") or () if spec.get("type") in ("NodePort", "LoadBalancer") else ():
        known = ports.get((port.get("protocol", "TCP"), port.get("port")), {})
        if not port.get("nodePort") and known.get("nodePort"):
            port["nodePort"] = known["nodePort"]


async def admit(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """Namespace, quota, then addresses and ports. Raises: a 422 for one that is taken or out of range."""
    if context.operation != "DELETE" and not context.subresource:
        await context.hold(_LOCK)
        await _give(new, context)
    await _plain(context, new, old)


_plain = plugins.plain(kinds.SERVICES)


def _is(obj: Obj, context: AdmissionContext) -> bool:
    meta = obj["metadata"]
    return (meta.get("namespace"), meta.get("name")) == (context.namespace, context.name)


async def _give(new: Obj, context: AdmissionContext) -> None:
    spec = new["spec"]
    if spec["type"] == "ExternalName":
        for word in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
            spec.pop(word, None)
        return
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    given = spec.get("clusterIP") or next(iter(spec.get("clusterIPs") or ()), "")
    if given != "None":
        # Of other families than IPv4 nothing is given out.
        others = (fields["spec.clusterIP"] for key, fields in context.fields(kinds.SERVICES) if key != context.key)
        given = _address(given, {_number(ip) for ip in others if "." in ip}, context)
    spec["clusterIP"] = given
    spec["clusterIPs"] = [given, *(spec.get("clusterIPs") or [])[1:]]
    if spec["type"] in ("NodePort", "LoadBalancer") and spec.get("allocateLoadBalancerNodePorts") is not False:
        _node_ports(spec, [o for o in await context.list(kinds.SERVICES) if not _is(o, context)], context)


def _number(address: str) -> int:
    """An IPv4 address as a number: addresses are tried by the thousand, which objects are too slow for."""
    return int.from_bytes(socket.inet_aton(address))


def _address(wanted: str, taken: Collection[int], context: AdmissionContext) -> str:
    """The wanted address, or a free one that depends on the Service's name: a Service made anew has it again."""
    if wanted:
        if ipaddress.ip_address(wanted) not in ADDRESSES:
            why = f"the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {ADDRESSES}"
            raise _rejected(context, "spec.clusterIPs", [wanted], f"failed to allocate IP {wanted}: {why}")
        if _number(wanted) in taken:
            why = f"failed to allocate IP {wanted}: provided IP is already allocated"
            raise _rejected(context, "spec.clusterIPs", [wanted], why)
        return wanted
    free = ADDRESSES.num_addresses - _RESERVED - 1
    first, place = int(ADDRESSES.network_address) + _RESERVED, _place(context, free)
    for step in (*range(place, free), *range(place)):
        if first + step not in taken:
            return str(ipaddress.IPv4Address(first + step))
    raise errors.forbidden(kinds.SERVICES, context.name, f"the range of addresses {ADDRESSES} is full")


def _node_ports(spec: Obj, others: Collection[Obj], context: AdmissionContext) -> None:
    taken = {_port_key(p) for o in others for p in o["spec"].get("ports") or () if p.get("nodePort")}
    free: dict[str, Iterator[int]] = {}
    for index, port in enumerate(spec.get("ports") or ()):
        number = port.get("nodePort", 0)
        path = f"spec.ports[{index}].nodePort"
        if not number:
            number = port["nodePort"] = _free_port(port.get("protocol", "TCP"), taken, free, context)
        elif number not in NODE_PORTS:
            why = (
                f"provided port is not in the valid range. The range of valid ports is {NODE_PORTS[0]}-{NODE_PORTS[-1]}"
            )
            raise _rejected(context, path, number, why)
        elif _port_key(port) in taken:
            raise _rejected(context, path, number, "provided port is already allocated")
        taken.add(_port_key(port))


def _free_port(
    protocol: str, taken: Collection[tuple[str, int]], free: dict[str, Iterator[int]], context: AdmissionContext
) -> int:
    """A free port. free: of each protocol the ports not yet tried, as ports that were taken stay so. Raises: a 403."""
    for number in free.setdefault(protocol, _ports(_place(context, len(NODE_PORTS)))):
        if (protocol, number) not in taken:
            return number
    raise errors.forbidden(kinds.SERVICES, context.name, "the range of node ports is full")


def _ports(first: int) -> Iterator[int]:
    """All node ports, from a place on."""
    return (NODE_PORTS[(first + step) % len(NODE_PORTS)] for step in range(len(NODE_PORTS)))


def _port_key(port: Obj) -> tuple[str, int]:
    return port.get("protocol", "TCP"), port.get("nodePort", 0)


def _place(context: AdmissionContext, count: int) -> int:
    """A number below count that depends on the Service's namespace and name."""
    digest = blake2b(f"{context.namespace}/{context.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % count


def _rejected(context: AdmissionContext, path: str, value: Any, why: str) -> ApiError:
    cause = FieldCause(path, f"Invalid value: {json.dumps(value)}: {why}", "FieldValueInvalid")
    return errors.invalid("", "Service", context.name, [cause])
