"""Rules of addresses, ranges of addresses and ports, which several groups use. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from tonnage_box.apiserver.validation.field_errors import Faults

PROTOCOLS = ("SCTP", "TCP", "UDP")
_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_PORT_NAME = re.compile(r"(?!.*--)(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")


def address(text: str) -> Sequence[str]:
    """Fault of an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return (_ADDRESS,)
    return ()


def pod_address(text: str) -> Sequence[str]:
    """Fault of an IP address of a pod's field: one that some programs read in another way, too."""
    if faults := address(text):
        is_padded = re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", text) and all(int(part) < 256 for part in text.split("."))
        return ("must not have leading 0s",) if is_padded else faults
    found = ipaddress.ip_address(text)
    is_mapped = isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None
    return ("must not be an IPv4-mapped IPv6 address",) if is_mapped else ()


def network(text: str) -> Sequence[str]:
    """Fault of a range of addresses."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return (_CIDR,)
    return () if "/" in text else (_CIDR,)


def port_name(text: str) -> Sequence[str]:
    """Fault of the name of a container's port (IANA_SVC_NAME)."""
    if _PORT_NAME.fullmatch(text):
        return ()
    return ("must be at most 15 lower case letters, digits and single '-' inside, with at least one letter",)


def port_or_name(faults: Faults, path: str, value: int | str) -> None:
    """A port by number or by name."""
    if isinstance(value, int):
        faults.in_range(path, value, 1, 65535)
    else:
        faults.check(path, value, port_name)
