"""Which issuer the name in a volume's attributes means on this node: `NAME=KIND[:SIGNER]`, `*` for all other names.

Used where the agent and the box are composed. A name that is not configured is rejected, with the names that are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.csi.inline.cert.attributes import DIALECTS, OURS
from tonnage.csi.inline.cert.issuers.base import CertificateIssuer
from tonnage.csi.inline.cert.issuers.remote import (
    PATIENCE,
    SIGNER_DOMAIN,
    CertManagerIssuer,
    PublishedMap,
    SigningRequestIssuer,
)
from tonnage.csi.inline.cert.policy import NamePolicy
from tonnage.csi.inline.cert.source import CertificateSource
from tonnage.csi.inline.cert.wanted import IssuerReference
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.client import Client

OPTIONS = frozenset({"issuers", "allow", "domain", "is-ca", "patience"})
"""Keys of `--inline cert`. Several issuers and names are parted by semicolons."""
BOX, CA, CSR, CERT_MANAGER = "box", "ca", "csr", "cert-manager"
_MOST_PATIENCE = 100
"""Seconds. The kubelet ends its call after 120."""
WANTED = f"want NAME={BOX}, NAME={CA}, NAME={CSR}:SIGNER or NAME={CERT_MANAGER}; NAME * stands for all others"


@dataclass(frozen=True)
class IssuerTarget:
    """What a name refers to. where: of csr the signer's name, else ""."""

    kind: str
    where: str = ""


def parse_targets(texts: Sequence[str]) -> dict[str, IssuerTarget]:
    """Return the targets by name. Raises: InvalidError."""
    return dict(_target(text) for text in texts)


def _target(text: str) -> tuple[str, IssuerTarget]:
    name, equals, value = text.partition("=")
    kind, _, where = value.partition(":")
    takes = {BOX: not where, CERT_MANAGER: not where, CA: not where, CSR: "/" in where}
    if not name or not equals or not takes.get(kind, False):
        raise InvalidError(f"issuer {text[:80]!r}: {WANTED}")
    return name, IssuerTarget(kind, where)


OwnIssuer = Callable[[NamePolicy], CertificateIssuer]


@dataclass(frozen=True)
class CertificateContext:
    """What issuers need. client: None where there is no API server. node: its name. namespace: of the controller.

    own: makes the issuer that signs in this process (of the box); None where there is none.
    """

    client: Client | None
    clock: Clock
    node: str
    own: OwnIssuer | None = None
    namespace: str = names.SYSTEM_NAMESPACE


def configured_source(driver: str, options: Mapping[str, str], context: CertificateContext) -> CertificateSource:
    """Build the source of one driver name from the options of `--inline`. Raises: InvalidError."""
    default = CA if context.own is None else BOX
    targets = parse_targets(options.get("issuers", f"*={default}").split(";"))
    policy = box_policy(options)
    if context.own is None and context.client is not None and any(target.kind == BOX for target in targets.values()):
        raise InvalidError(f"--inline cert: issuer {BOX}: only the box signs in its own process; {WANTED}")
    find, now = IssuerTable(targets, policy, context, _patience(options)).find, context.clock.time
    return CertificateSource(DIALECTS.get(driver, OURS), find, now, context.client)


def _patience(options: Mapping[str, str]) -> float:
    text = options.get("patience", str(PATIENCE))
    if not re.fullmatch(r"\d{1,3}(\.\d)?", text) or not 1 <= float(text) <= _MOST_PATIENCE:
        raise InvalidError(f"--inline cert: patience={text[:20]}: want 1 to {_MOST_PATIENCE} seconds")
    return float(text)


def box_policy(options: Mapping[str, str]) -> NamePolicy:
    """Return what the box signs, from the options of `--inline cert`. Raises: InvalidError."""
    if options.get("is-ca", "true") != "true":
        raise InvalidError("--inline cert: is-ca: want is-ca=true, or omit it")
    return NamePolicy(
        cluster_domain=options.get("domain", "cluster.local"),
        allow=tuple(filter(None, options.get("allow", "").split(";"))),
        is_ca="is-ca" in options,
    )


class IssuerTable:
    """The issuers of one driver name.

    policy: of what the box signs. patience: seconds that a call waits for those that are asked through the API.
    """

    def __init__(
        self,
        targets: Mapping[str, IssuerTarget],
        policy: NamePolicy,
        context: CertificateContext,
        patience: float = PATIENCE,
    ) -> None:
        self._targets, self._policy, self._context, self._patience = targets, policy, context, patience
        client, clock = context.client, context.clock
        self._published = None if client is None else PublishedMap(client, context.namespace, clock)

    def find(self, reference: IssuerReference) -> CertificateIssuer:
        """Return the issuer that attributes name. Raises: InvalidError for an unknown one, UnavailableError."""
        target = self._targets.get(reference.name) or self._targets.get("*")
        client, clock, patience = self._context.client, self._context.clock, self._patience
        if target is None:
            known = ", ".join(sorted(self._targets))
            raise InvalidError(f"issuer {reference.name[:80]!r}: not configured on this node (there is {known})")
        if client is None:
            raise UnavailableError(f"issuer {reference.name[:80]!r}: this node has no API server to ask")
        if target.kind == BOX and self._context.own is not None:
            return self._context.own(self._policy)
        if target.kind == CERT_MANAGER:
            return CertManagerIssuer(client, self._context.node, clock, patience=patience)
        if target.kind == CSR:
            return SigningRequestIssuer(client, target.where, clock, patience=patience)
        name = f"{SIGNER_DOMAIN}{reference.name}"
        return SigningRequestIssuer(client, name, clock, published=self._published, patience=patience)
