"""Who may talk to the server: its certificate, made at first start, and one bearer token, handed out in a kubeconfig.

Everything is kept in one folder, in files of mode 0600 that are written beside and renamed.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import os
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tonnage.aio.clock import Clock
from tonnage.apiserver.reviews import USER
from tonnage.errors import HostError

_LIFE = timedelta(days=3650)
_RENEW = timedelta(days=30)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True)
class Credentials:
    """What a server needs to be believed, and to believe."""

    certificate: Path
    key: Path
    token: str

    def authenticate(self, header: str) -> str | None:
        """The user of an Authorization header, or None."""
        scheme, _, token = header.partition(" ")
        return self.token_user(token.strip()) if scheme.lower() == "bearer" else None

    def token_user(self, token: str) -> str | None:
        """The user of a token, or None."""
        right = hmac.compare_digest(token.encode(errors="replace"), self.token.encode())
        return USER if right else None

    def ssl_context(self) -> ssl.SSLContext:
        """For the server's side of TLS (1.2 and later, HTTP/1.1)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        context.set_alpn_protocols(["http/1.1"])
        return context


def ensure(folder: Path, clock: Clock, hosts: Sequence[str] = ()) -> Credentials:
    """Read the credentials in a folder, making what is missing, about to expire, or without one of the hosts.

    May be repeated. Raises HostError when the folder cannot be read or written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate, key, token = folder / "server.crt", folder / "server.key", folder / "token"
        names = tuple(dict.fromkeys((*LOOPBACK, *_SERVICE_NAMES, *hosts)))
        now = datetime.fromtimestamp(clock.time(), UTC)
        if not _serves(certificate, key, names, now):
            _make_certificate(certificate, key, names, now)
        if not token.exists():
            write_private(token, secrets.token_urlsafe(32).encode())
        return Credentials(certificate, key, token.read_text().strip())
    except OSError as error:
        raise HostError(f"cannot keep the API server's certificate and token in {folder}: {error}") from error


def _serves(certificate: Path, key: Path, names: Sequence[str], now: datetime) -> bool:
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (FileNotFoundError, ValueError):
        return False
    if private.public_key() != found.public_key():  # killed between the two files
        return False
    alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    covered = {str(name.value) for name in alternatives}
    return found.not_valid_after_utc > now + _RENEW and covered.issuperset(names)


def _make_certificate(certificate: Path, key: Path, names: Sequence[str], now: datetime) -> None:
    """A self-signed certificate that clients take as its own authority."""
    private = ec.generate_private_key(ec.SECP256R1())
    public = private.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tonnage")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(n) for n in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(private, hashes.SHA256())
    )
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(key, pem)
    write_private(certificate, made.public_bytes(serialization.Encoding.PEM))


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, at once or not at all. May be repeated. Raises OSError."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_kubeconfig(path: Path, url: str, credentials: Credentials, *, name: str = "tonnage") -> None:
    """Write a kubeconfig (mode 0600) whose current context is this server. May be repeated. Raises HostError."""
    authority = base64.b64encode(credentials.certificate.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"token": credentials.token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, yaml.safe_dump(config, sort_keys=False).encode())
    except OSError as error:
        raise HostError(f"cannot write the kubeconfig {path}: {error}") from error
