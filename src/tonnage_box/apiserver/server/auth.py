"""Server credentials: a self-signed certificate, made at first start, and one bearer token in a kubeconfig.

All files are in one folder, with mode 0600, and replaced by rename.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import HostError
from tonnage_box.apiserver.request.private_file import write_private

_LIFE = timedelta(days=3650)
_RENEW = timedelta(days=30)
_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters:
- name: {name}
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: {name}
  user:
    token: {token}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {name}
    namespace: default
current-context: {name}
"""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True)
class Credentials:
    """The server's certificate, key and token."""

    certificate: Path
    key: Path
    token: str

    @property
    def signing_key(self) -> Path:
        """File of the key that signs tokens of service accounts; it is made with the first of them."""
        return self.key.with_name("service-account.key")

    def is_token(self, token: str) -> bool:
        """Whether it is the token of the kubeconfig."""
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())

    def ssl_context(self) -> ssl.SSLContext:
        """For the server's side of TLS (1.2 and later, HTTP/1.1)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        context.set_alpn_protocols(["http/1.1"])
        return context


def ensure(folder: Path, clock: Clock, hosts: Sequence[str] = ()) -> Credentials:
    """Read the credentials in a folder, making what is missing, about to expire, or without one of the hosts.

    Idempotent. Raises: HostError when the folder cannot be read or written.
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


class _Note(msgspec.Struct):
    """Note stored with the certificate: its names and lifetime, and a digest that ties certificate and key to it."""

    until: float
    names: list[str]
    digest: str


def _digest(certificate: bytes, key: bytes) -> str:
    return hashlib.sha256(certificate + b"|" + key).hexdigest()


def _serves(certificate: Path, key: Path, names: Sequence[str], now: datetime) -> bool:
    """Whether both files are unchanged, valid for all names, and do not expire soon."""
    try:
        note = msgspec.json.decode(certificate.with_suffix(".json").read_bytes(), type=_Note)
        same = note.digest == _digest(certificate.read_bytes(), key.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return False
    return same and note.until > (now + _RENEW).timestamp() and set(note.names).issuperset(names)


def _make_certificate(certificate: Path, key: Path, names: Sequence[str], now: datetime) -> None:
    """Make both files and their note; a kill in between leaves what does not fit together, and is made again."""
    from tonnage_box.apiserver.server.certificate import make  # most starts find a certificate

    until = now + _LIFE
    public, private = make(names, now - timedelta(days=1), until)
    write_private(key, private)
    write_private(certificate, public)
    note = _Note(until.timestamp(), list(names), _digest(public, private))
    write_private(certificate.with_suffix(".json"), msgspec.json.encode(note))


def port_of(path: Path) -> int:
    """The server's port in a kubeconfig that write_kubeconfig() wrote; 0 where there is none that can be read."""
    try:
        url = msgspec.yaml.decode(path.read_bytes())["clusters"][0]["cluster"]["server"]
        return urlsplit(url).port or 0
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # msgspec's are ValueErrors
        return 0


def write_kubeconfig(path: Path, url: str, credentials: Credentials, owner: int = -1) -> None:
    """Write a kubeconfig (mode 0600) whose current context is this server.

    owner: id of the user that gets the file and the folders that are made for it, -1: ours. Idempotent. Raises
    HostError.
    """
    authority = base64.b64encode(credentials.certificate.read_bytes()).decode()
    config = _KUBECONFIG.format(name="tonnage", server=url, authority=authority, token=credentials.token)
    try:
        folders = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in folders:
            os.chown(folder, owner, -1, follow_symlinks=False)
        write_private(path, config.encode(), owner)
    except OSError as error:
        raise HostError(f"cannot write the kubeconfig {path}: {error}") from error
