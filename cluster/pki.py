"""The certificates of a cluster that lives for minutes: one authority, a key each for server and clients."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=7)


class Authority:
    """Signs certificates below a folder: NAME.crt and NAME.key, keys readable by their owner only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test cluster")])
        certificate = (
            self._builder(self._subject, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._write("ca", certificate, self._key)
        accounts = ec.generate_private_key(ec.SECP256R1())
        self._write_key("accounts", accounts)
        public = accounts.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (folder / "accounts.pub").write_bytes(public)

    def path(self, name: str) -> Path:
        """A file of the folder."""
        return self.folder / name

    def client(self, name: str, user: str, *groups: str) -> None:
        """A certificate that a client proves its user and groups with."""
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        self._issue(name, [*names, x509.NameAttribute(NameOID.COMMON_NAME, user)], ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, name: str, user: str, places: Sequence[str], *groups: str) -> None:
        """A certificate of a server at those addresses and names."""
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = [*names, x509.NameAttribute(NameOID.COMMON_NAME, user)]
        self._issue(name, subject, ExtendedKeyUsageOID.SERVER_AUTH, places)

    def kubeconfig(self, name: str, server: str) -> Path:
        """NAME.kubeconfig with everything inside, for the client of that name."""
        import yaml

        def text(file: str) -> str:
            return base64.b64encode(self.path(file).read_bytes()).decode()

        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": text("ca.crt")}}],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": text(f"{name}.crt"),
                        "client-key-data": text(f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        path = self.path(f"{name}.kubeconfig")
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document))
        return path

    def _issue(
        self, name: str, subject: list[x509.NameAttribute[str]], usage: x509.ObjectIdentifier, places: Sequence[str]
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name(subject), key).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if places:
            builder = builder.add_extension(x509.SubjectAlternativeName([_place(p) for p in places]), critical=False)
        self._write(name, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + _LIFE)
        )

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.path(f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self._write_key(name, key)

    def _write_key(self, name: str, key: ec.EllipticCurvePrivateKey) -> None:
        path = self.path(f"{name}.key")
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


def _place(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
