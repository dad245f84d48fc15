"""Issuers of certificates behind one method.

Used by the source of inline volumes. An issuer is asked again with the same name until it answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tonnage.base.errors import InvalidError, UnavailableError
from tonnage.csi.inline.base import InlinePod
from tonnage.csi.inline.cert.authority import pem_of, read_certificates
from tonnage.csi.inline.cert.wanted import WantedCertificate


class CertificateDeniedError(UnavailableError):
    """The issuer has rejected for good; asking again soon is useless."""


@dataclass(frozen=True)
class IssueRequest:
    """A request. name: of the object that carries it, chosen once. request: PKCS #10 as PEM. handle: the volume's.

    waits: whether issue() may wait for an answer; else it returns at once.
    """

    name: str
    request: bytes = field(repr=False)
    wanted: WantedCertificate
    pod: InlinePod
    handle: str
    waits: bool = True


@dataclass(frozen=True)
class IssuedCertificate:
    """The certificate with the chain above it, and the roots (empty if not known), as PEM."""

    chain: bytes
    roots: bytes


class CertificateIssuer(Protocol):
    """An issuer."""

    async def issue(self, request: IssueRequest) -> IssuedCertificate:
        """Return the certificate. Idempotent by the request's name.

        Raises: UnavailableError while it waits, with the reason. CertificateDeniedError.
        """

    async def discard(self, name: str, namespace: str) -> None:
        """Remove the object of a request that has been replaced. Idempotent."""

    async def roots(self) -> bytes:
        """Return the root certificates that the issuer publishes now, as PEM; empty if not known. Does not raise."""


def split_roots(pem: bytes) -> IssuedCertificate:
    """Part self-signed certificates from the chain below them. Raises: UnavailableError for what is no chain."""
    try:
        found = read_certificates(pem)
    except InvalidError as error:
        raise UnavailableError(f"the issuer's answer: {error}") from None
    roots = [one for one in found[1:] if one.subject == one.issuer]
    return IssuedCertificate(pem_of([one for one in found if one not in roots]), pem_of(roots))
