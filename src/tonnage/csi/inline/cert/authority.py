"""A certificate authority of ours: its certificate, chain and key, and the one function that signs.

Held by the controller and by the box, never by an agent. It signs what it is given: names are checked before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeGuard

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from tonnage.base.errors import InvalidError
from tonnage.csi.inline.cert.keys import PrivateKey, make_key, public_bytes, read_key, write_key
from tonnage.csi.inline.cert.usage import extended_key_usage, key_usage
from tonnage.csi.inline.cert.wanted import WantedCertificate

PodKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
"""A public key that we sign for."""
_BACKDATED = 300.0
"""Seconds before now at which certificates begin: clocks of pods may be behind."""
_YEARS = 10 * 365 * 86400.0


@dataclass(frozen=True)
class CertificateAuthority:
    """An authority. chain: its certificate first, then those above it. repr() hides the key."""

    chain: tuple[x509.Certificate, ...]
    key: PrivateKey = field(repr=False)

    @property
    def pem(self) -> bytes:
        """The chain."""
        return pem_of(self.chain)

    @property
    def roots(self) -> bytes:
        """The self-signed certificates of the chain, else its topmost one: what clients trust."""
        return pem_of([one for one in self.chain if one.subject == one.issuer] or self.chain[-1:])

    def sign(self, public: PodKey, wanted: WantedCertificate, now: float, *, backdated: float = _BACKDATED) -> bytes:
        """Return the certificate and the chain above it as PEM, roots included. Raises: InvalidError.

        backdated: seconds before now at which it begins. It ends with the authority's at the latest.
        """
        own = self.chain[0]
        until = min(_time(now + wanted.seconds), own.not_valid_after_utc)
        if until <= _time(now):
            raise InvalidError(f"issuer {wanted.issuer.name}: its own certificate has expired; renew it")
        builder = (
            x509.CertificateBuilder(own.subject, wanted.subject, public, x509.random_serial_number())
            .not_valid_before(max(_time(now - backdated), own.not_valid_before_utc))
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=wanted.is_ca, path_length=None), critical=True)
            .add_extension(key_usage(wanted.usages), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if wanted.names:
            names = x509.SubjectAlternativeName(wanted.names)
            builder = builder.add_extension(names, critical=not wanted.subject.rdns)
        if extended := extended_key_usage(wanted.usages):
            builder = builder.add_extension(extended, critical=False)
        return pem_of([builder.sign(self.key, _digest(self.key)), *self.chain])


LoadAuthority = Callable[[], Awaitable[CertificateAuthority]]


def make_authority(name: str, now: float) -> CertificateAuthority:
    """Make a self-signed authority of ten years with a new key."""
    key = make_key("ECDSA", 256)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(_time(now - _BACKDATED))
        .not_valid_after(_time(now + _YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(key_usage(["cert sign", "crl sign", "digital signature"]), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, _digest(key))
    )
    return CertificateAuthority((certificate,), key)


def read_authority(certificates: bytes, key: bytes) -> CertificateAuthority:
    """Read tls.crt and tls.key of a Secret. Raises: InvalidError."""
    chain, private = read_certificates(certificates), read_key(key)
    if not chain or public_bytes(chain[0].public_key()) != public_bytes(private.public_key()):
        raise InvalidError("certificate authority: tls.key is not the key of the first certificate of tls.crt")
    try:
        is_ca = chain[0].extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_ca = False
    if not is_ca:
        raise InvalidError("certificate authority: the first certificate of tls.crt is not one of an authority")
    return CertificateAuthority(chain, private)


def secret_data(authority: CertificateAuthority) -> dict[str, bytes]:
    """Return tls.crt and tls.key of a Secret of type kubernetes.io/tls."""
    return {"tls.crt": authority.pem, "tls.key": write_key(authority.key, "PKCS8")}


def read_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Read certificates, none of an empty text. Raises: InvalidError."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem)) if pem.strip() else ()
    except ValueError:
        raise InvalidError("certificates: cannot be read; want PEM") from None


def read_request(pem: bytes) -> x509.CertificateSigningRequest:
    """Read a request that its own key has signed, of a kind that we sign for. Raises: InvalidError."""
    try:
        request = x509.load_pem_x509_csr(pem)
        if not request.is_signature_valid:
            raise InvalidError("certificate request: its signature is wrong")
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        raise InvalidError("certificate request: cannot be read; want PKCS #10 as PEM") from None
    if not is_pod_key(request.public_key()):
        raise InvalidError("certificate request: want a key of RSA, ECDSA or Ed25519")
    return request


def public_key_of(request: x509.CertificateSigningRequest) -> PodKey:
    """Return the key of a request that read_request() has read."""
    key = request.public_key()
    assert is_pod_key(key)
    return key


def pem_of(certificates: Sequence[x509.Certificate]) -> bytes:
    """Return certificates as PEM."""
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def is_pod_key(key: object) -> TypeGuard[PodKey]:
    """Whether a public key is of a kind that we sign for."""
    return isinstance(key, PodKey)


def _digest(key: PrivateKey) -> hashes.SHA256 | None:
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
