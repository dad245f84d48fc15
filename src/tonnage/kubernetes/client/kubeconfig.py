"""Access to a cluster: kubeconfig files, exec plugins, and the service account inside a pod.

Sources: client-go tools/clientcmd; client.authentication.k8s.io/v1 ExecCredential.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from tonnage.base.aio.clock import parse_rfc3339
from tonnage.base.errors import InvalidError, UnavailableError, host_errors

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_AGE = 60.0  # bound tokens are rotated by the kubelet: look again after so many seconds
_EXEC_SECONDS = 60.0


class _Struct(msgspec.Struct, rename="kebab", frozen=True):
    pass


class _Cluster(_Struct, frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""


class _ExecEnv(msgspec.Struct, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, rename="camel", frozen=True):
    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: list[str] | None = None
    env: list[_ExecEnv] | None = None


class _User(_Struct, frozen=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: _Exec | None = None


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = "default"


class _Named(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster | None = None
    user: _User | None = None
    context: _Context | None = None


class _Kubeconfig(_Struct, frozen=True):
    current_context: str = ""
    clusters: list[_Named] | None = None
    users: list[_Named] | None = None
    contexts: list[_Named] | None = None


class _ExecStatus(msgspec.Struct, rename="camel", frozen=True):
    token: str = ""
    expiration_timestamp: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _ExecStatus = _ExecStatus()


class Token(Protocol):
    """Provides the current bearer token ("" for none), and caches it."""

    async def __call__(self) -> str:
        """The token. Raises: UnavailableError."""

    def forget(self) -> None:
        """Read the token again next time if possible: the server rejected it."""


class FixedToken:
    """A fixed token."""

    def __init__(self, text: str = "") -> None:
        self._text = text

    async def __call__(self) -> str:
        return self._text

    def forget(self) -> None:
        """Nothing to read again."""


@dataclass(frozen=True)
class Access:
    """Address and credentials of an API server.

    server: URL. tls: None for plain http. token: called before each request. namespace: the default one.
    """

    server: str
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    token: Token = field(default_factory=FixedToken)
    namespace: str = "default"
    headers: dict[str, str] = field(default_factory=dict)


def load(path: str | Path | None = None, *, context: str = "") -> Access:
    """Read a kubeconfig file: path, else the first existing one of $KUBECONFIG, else ~/.kube/config.

    Raises: InvalidError with the file's name and what is missing in it.
    """
    file = _find(path)
    try:
        with host_errors(f"kubeconfig {file}", error=InvalidError):
            config = msgspec.yaml.decode(file.read_bytes(), type=_Kubeconfig)
    except msgspec.MsgspecError as failure:
        raise InvalidError(f"kubeconfig {file}: {failure}") from failure
    name = context or config.current_context
    chosen = _pick(config.contexts, name, file, "context").context or _Context()
    cluster = _pick(config.clusters, chosen.cluster, file, "cluster").cluster or _Cluster()
    user = _pick(config.users, chosen.user, file, "user").user or _User() if chosen.user else _User()
    if not cluster.server:
        raise InvalidError(f"kubeconfig {file}: cluster {chosen.cluster!r} names no server")
    headers = {}
    if user.username:
        pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    tls = _tls(cluster, user, file) if cluster.server.startswith("https:") else None
    token = _token(user, file, tls)
    return Access(cluster.server.rstrip("/"), tls, cluster.tls_server_name, token, chosen.namespace, headers)


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Access:
    """Access for a pod by its service account; the token is read again after a minute.

    Raises: InvalidError outside a pod.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise InvalidError(f"not inside a pod: KUBERNETES_SERVICE_HOST or {folder}/token is missing; give a kubeconfig")
    host = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    namespace = (folder / "namespace").read_text().strip() if (folder / "namespace").exists() else "default"
    return Access(f"https://{host}:{port}", tls, token=FileToken(folder / "token"), namespace=namespace)


class FileToken:
    """A token in a file that is renewed; read once a minute, and when the server has rejected it."""

    def __init__(self, file: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._file, self._now = file, now
        self._text, self._read = "", float("-inf")

    async def __call__(self) -> str:
        """The token. The former one is returned when the file cannot be read."""
        if self._now() - self._read > _TOKEN_AGE:
            try:
                self._text, self._read = self._file.read_text().strip(), self._now()
            except OSError as failure:
                if not self._text:
                    raise UnavailableError(f"token file {self._file}: {failure.strerror}") from failure
        return self._text

    def forget(self) -> None:
        """Read the file again."""
        self._read = float("-inf")


def _find(path: str | Path | None) -> Path:
    if path:
        return Path(path).expanduser()
    listed = [Path(p) for p in os.environ.get("KUBECONFIG", "").split(os.pathsep) if p]
    return next((p for p in listed if p.exists()), listed[0] if listed else Path("~/.kube/config").expanduser())


def _pick(entries: list[_Named] | None, name: str, file: Path, what: str) -> _Named:
    for entry in entries or ():
        if entry.name == name:
            return entry
    raise InvalidError(f"kubeconfig {file}: no {what} named {name!r}; there are {[e.name for e in entries or ()]}")


def _tls(cluster: _Cluster, user: _User, file: Path) -> ssl.SSLContext:
    try:
        if cluster.certificate_authority_data:
            authority = base64.b64decode(cluster.certificate_authority_data).decode()
            tls = ssl.create_default_context(cadata=authority)
        elif cluster.certificate_authority:
            tls = ssl.create_default_context(cafile=str(file.parent / cluster.certificate_authority))
        else:
            tls = ssl.create_default_context()
        if cluster.insecure_skip_tls_verify:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        _client_certificate(tls, user, file)
    except (OSError, ValueError) as failure:
        raise InvalidError(f"kubeconfig {file}: certificates cannot be used: {failure}") from failure
    return tls


def _client_certificate(tls: ssl.SSLContext, user: _User, file: Path) -> None:
    if user.client_certificate_data and user.client_key_data:
        load_certificate(tls, base64.b64decode(user.client_certificate_data), base64.b64decode(user.client_key_data))
    elif user.client_certificate:
        key = str(file.parent / user.client_key) if user.client_key else None
        tls.load_cert_chain(str(file.parent / user.client_certificate), key)


def load_certificate(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client certificate into a context from memory, by a private file (OpenSSL reads only files)."""
    with tempfile.NamedTemporaryFile(prefix="tonnage-", suffix=".pem") as both:  # mode 0600
        both.write(certificate + b"\n" + key)
        both.flush()
        tls.load_cert_chain(both.name)


def _token(user: _User, file: Path, tls: ssl.SSLContext | None) -> Token:
    if user.token_file:
        return FileToken(file.parent / user.token_file)
    if user.token:
        return FixedToken(user.token)
    return ExecPlugin(user.exec, file, tls) if user.exec else FixedToken()


class ExecPlugin:
    """Runs a program for credentials, and again when they have expired."""

    def __init__(self, spec: _Exec, file: Path, tls: ssl.SSLContext | None) -> None:
        self._spec, self._file, self._tls = spec, file, tls
        self._status: _ExecStatus | None = None
        self._lock = asyncio.Lock()

    async def __call__(self) -> str:
        """The current token. Raises: UnavailableError when the program fails."""
        async with self._lock:
            if self._status is None or self._expired(self._status):
                self._status = await self._ask()
                if self._status.client_certificate_data and self._tls is not None:
                    certificate = self._status.client_certificate_data.encode()
                    load_certificate(self._tls, certificate, self._status.client_key_data.encode())
            return self._status.token

    def forget(self) -> None:
        """Run the program again."""
        self._status = None

    @staticmethod
    def _expired(status: _ExecStatus) -> bool:
        return bool(status.expiration_timestamp) and parse_rfc3339(status.expiration_timestamp) - 10 < time.time()

    async def _ask(self) -> _ExecStatus:
        spec = self._spec
        info = {"apiVersion": spec.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        extra = {e.name: e.value for e in spec.env or ()}
        environment = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        command = str(self._file.parent / spec.command) if "/" in spec.command else spec.command
        with host_errors(f"credential program {command!r} cannot be started", error=UnavailableError):
            process = await asyncio.create_subprocess_exec(
                command,
                *(spec.args or ()),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        try:
            out, errors = await asyncio.wait_for(process.communicate(), _EXEC_SECONDS)
        except TimeoutError as failure:
            process.kill()
            raise UnavailableError(
                f"credential program {command!r} gave no answer in {_EXEC_SECONDS:.0f} s"
            ) from failure
        if process.returncode != 0:
            text = errors.decode(errors="replace").strip()[-300:]
            raise UnavailableError(f"credential program {command!r} failed with code {process.returncode}: {text}")
        try:
            return msgspec.json.decode(out, type=_ExecCredential).status
        except msgspec.MsgspecError as failure:
            raise UnavailableError(f"credential program {command!r} printed no ExecCredential: {failure}") from failure
