"""The names and usages that an issuer of ours certifies: by default those of the pod's own namespace and account.

Used before each signature, in the controller and in the box. What is not allowed by name is rejected.
"""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import NameOID

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.base import InlinePod
from tonnage.csi.inline.cert.field_error import quote
from tonnage.csi.inline.cert.wanted import WantedCertificate

_USAGES = frozenset(
    ("digital signature", "signing", "key encipherment", "data encipherment", "key agreement", "content commitment",
     "server auth", "client auth")
)  # fmt: skip
_KINDS = ("dns", "uri", "ip", "subject", "usage")
_DAY = 86400.0


@dataclass(frozen=True)
class NamePolicy:
    """What is certified beyond a pod's own names, and for how long.

    allow: `dns:*.example.com`, `uri:spiffe://example.com/*`, `ip:10.0.0.0/8`, `subject:O=Example`,
    `usage:code signing`; `*` matches any text. is_ca: whether pods may be authorities. shortest, longest: seconds of
    a certificate's life.
    """

    cluster_domain: str = "cluster.local"
    allow: tuple[str, ...] = ()
    is_ca: bool = False
    shortest: float = 600.0
    longest: float = 90 * _DAY

    def __post_init__(self) -> None:
        """Check the list. Raises: InvalidError."""
        for rule in self.allow:
            kind, colon, pattern = rule.partition(":")
            if kind not in _KINDS or not colon or not pattern:
                raise InvalidError(f"allowed name {rule[:80]!r}: want KIND:PATTERN, KIND one of {', '.join(_KINDS)}")
            if kind == "ip":
                _network(pattern)


def check_policy(wanted: WantedCertificate, pod: InlinePod, policy: NamePolicy) -> None:
    """Check all that a certificate would say. Raises: InvalidError with all that is wrong."""
    if errors := list(_errors(wanted, pod, policy)):
        raise InvalidError(f"issuer {wanted.issuer.name[:80]}: not allowed: {'; '.join(errors)[:800]}")


def _errors(wanted: WantedCertificate, pod: InlinePod, policy: NamePolicy) -> Iterator[str]:
    if not wanted.names and not wanted.subject.rdns:
        yield "a certificate without a name; set dns-names, uri-sans or common-name"
    if wanted.is_ca and not policy.is_ca:
        yield "is-ca"
    if not policy.shortest <= wanted.seconds <= policy.longest:
        yield f"a duration of {wanted.seconds:.0f} s; {policy.shortest:.0f} s to {policy.longest:.0f} s are"
    for usage in wanted.usages:
        if usage not in _USAGES and not (wanted.is_ca and usage in ("cert sign", "crl sign")):
            yield from _unless_listed(policy, "usage", usage)
    for attribute in wanted.subject:
        yield from _subject_error(attribute, pod, policy)
    for name in wanted.names:
        yield from _name_error(name, pod, policy)


def _subject_error(attribute: x509.NameAttribute[str | bytes], pod: InlinePod, policy: NamePolicy) -> Iterator[str]:
    text = str(attribute.value)
    if attribute.oid == NameOID.COMMON_NAME and _is_own_dns(text, pod, policy):
        return  # not the pod's bare name: anybody may name a pod `postgres`, in a namespace of their own
    yield from _unless_listed(policy, "subject", f"{attribute.rfc4514_attribute_name}={text}")


def _name_error(name: x509.GeneralName, pod: InlinePod, policy: NamePolicy) -> Iterator[str]:
    if isinstance(name, x509.IPAddress):
        if str(name.value) not in pod.addresses and not _is_in_networks(name, policy):
            yield f"ip {name.value}"
    elif isinstance(name, x509.DNSName):
        if not _is_own_dns(name.value, pod, policy):
            yield from _unless_listed(policy, "dns", name.value)
    elif not _is_own_uri(str(name.value), pod, policy):
        yield from _unless_listed(policy, "uri", str(name.value))


def _unless_listed(policy: NamePolicy, kind: str, text: str) -> Iterator[str]:
    patterns = [rule.partition(":")[2] for rule in policy.allow if rule.startswith(f"{kind}:")]
    if not any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns):
        yield f"{kind} {quote(text)}"


def _is_own_dns(name: str, pod: InlinePod, policy: NamePolicy) -> bool:
    """Whether a name is of the pod's namespace: `<any>.<namespace>.svc` or `.pod`, with the cluster domain or not."""
    short = name.removesuffix(f".{policy.cluster_domain}")
    for kind in ("svc", "pod"):
        first = short.removesuffix(f".{pod.namespace}.{kind}")
        if first != short:
            return _is_labels(first)
    return False


def _is_labels(text: str) -> bool:
    return all(label == "*" or (label and label.replace("-", "").isalnum()) for label in text.split("."))


def _is_own_uri(uri: str, pod: InlinePod, policy: NamePolicy) -> bool:
    """Whether a SPIFFE ID is of the pod's account or of a service name in its namespace."""
    account = f"spiffe://{policy.cluster_domain}/ns/{pod.namespace}/sa/{pod.service_account}"
    if pod.service_account and (uri == account or uri.startswith(f"{account}/")):
        return ".." not in uri.split("/")
    host = uri.removeprefix("spiffe://").removesuffix(f".{pod.namespace}.{policy.cluster_domain}")
    return uri == f"spiffe://{host}.{pod.namespace}.{policy.cluster_domain}" and _is_labels(host) and "." not in host


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise InvalidError(f"allowed name ip:{text[:60]}: {error}; want a network, as 10.0.0.0/8") from None


def _is_in_networks(name: x509.IPAddress, policy: NamePolicy) -> bool:
    address = name.value
    networks = [_network(rule[3:]) for rule in policy.allow if rule.startswith("ip:")]
    return any(address in network for network in networks)
