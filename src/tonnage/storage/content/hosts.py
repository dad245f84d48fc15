"""Which hosts may be connected to, and the addresses that a connection may use. Blocking only in addresses().

Nothing is allowed unless the node's option lists it. A name is resolved once, and its addresses are checked and used:
so no second answer of a name server can lead elsewhere. A listed name never leads to a loopback or link-local address
or to a metadata service; who wants these lists the address itself, or localhost. The addresses of the machine's own
interfaces are like any others: what listens on them is to be protected as from other machines.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tonnage.base.errors import InvalidError, UnavailableError

_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")
_METADATA = frozenset({"169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"})
"""Where clouds tell a machine its credentials."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
Resolve = Callable[[str, int], Sequence[str]]


@dataclass(frozen=True)
class AllowedHost:
    """A host, and its port; None: 80 and 443."""

    host: str
    port: int | None = None

    def __str__(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


def parse_host(text: str) -> AllowedHost:
    """A host of the option `--fetch`: HOST, HOST:PORT or [IPV6]:PORT. Raises: InvalidError."""
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    is_port = not port or (port.isascii() and port.isdigit() and 0 < int(port) < 65536)
    if not is_port or text.endswith(":") or not (_HOST.fullmatch(host) or _address(host) is not None):
        raise InvalidError(f"fetch {text[:80]!r}: want HOST or HOST:PORT, without wildcards, as files.example.com:8443")
    return AllowedHost(host.lower(), int(port) if port else None)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host. Raises: OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True)
class FetchPolicy:
    """The hosts that may be connected to. resolve: finds the addresses of a name.

    is_public: others too, on port 443 and at public addresses only, as a listed host redirects to. option: that lists.
    """

    hosts: tuple[AllowedHost, ...] = ()
    resolve: Resolve = resolve
    is_public: bool = False
    option: str = "--fetch"

    def lists(self, host: str, port: int) -> bool:
        """Whether a host is listed."""
        return any(one.host == host.lower() and port in ((one.port,) if one.port else (80, 443)) for one in self.hosts)

    def check(self, host: str, port: int) -> None:
        """Raises: InvalidError for a host that is not allowed."""
        if self.lists(host, port) or (self.is_public and port == 443):
            return
        there_is = ", ".join(map(str, self.hosts)) or f"nothing, see {self.option}"
        raise InvalidError(f"host {host}:{port} is not among those that this node may fetch from ({there_is})")

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses to connect to. Raises: InvalidError for a host or an address that is not allowed.

        Raises: UnavailableError where the name has no address now.
        """
        self.check(host, port)
        try:
            found = self.resolve(host, port)
        except OSError as failure:
            raise UnavailableError(f"host {host} cannot be found: {failure.strerror or failure}") from failure
        is_listed = self.lists(host, port)
        is_itself = is_listed and (_address(host) is not None or host.lower() == "localhost")
        for address in found:
            if not is_itself and (why := _rejected(address) or ("" if is_listed else _private(address))):
                raise InvalidError(
                    f"host {host} leads to {address}, {why}: nothing is fetched from there; list that address itself"
                    f" with {self.option} if it is meant"
                )
        return list(found)


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address to which packets for an IPv6 address may go in the end; None where it embeds none."""
    if found := address.ipv4_mapped or address.sixtofour:
        return found
    is_compatible = 1 < int(address) < 1 << 32  # ::a.b.c.d, but not :: and ::1
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if is_compatible or address in _NAT64 else None


def _rejected(text: str) -> str:
    """Why a name may not lead to an address, "" where it may."""
    address = _address(text.partition("%")[0])
    if address is None:
        return "which is no address"
    if isinstance(address, ipaddress.IPv6Address):
        address = _embedded(address) or address
    if str(address) in _METADATA:
        return "a metadata service"
    if address.is_loopback or address.is_unspecified:
        return "this machine"
    if address.is_link_local:
        return "a link-local address"
    return "an address of many" if address.is_multicast else ""


def _private(text: str) -> str:
    """Why a host that is not listed may not lead to an address, "" where it may."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = _embedded(address) or address
    return "" if address.is_global else "which is not public"
