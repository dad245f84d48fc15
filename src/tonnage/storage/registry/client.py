"""One repository of a registry: manifests and blobs, with tokens. Blocking.

A registry says with a 401 where tokens are; credentials go there and to the registry, never to where it redirects.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, UnavailableError, host_errors
from tonnage.storage.content.access import Progress, pause
from tonnage.storage.content.hosts import AllowedHost, FetchPolicy, Resolve, parse_host, resolve
from tonnage.storage.content.http import Fetcher, Headers, RestartError
from tonnage.storage.content.spec import shown
from tonnage.storage.images import manifest
from tonnage.storage.images.manifest import BlobDescriptor, Platform
from tonnage.storage.images.reference import ImageReference
from tonnage.storage.images.stream import Blob, read_blob
from tonnage.storage.registry import login, remote
from tonnage.storage.registry.login import RegistryLogin
from tonnage.storage.registry.remote import RemoteImage

OPTION = "--inline image,registry=HOST"
_HUB, _HUB_HOST = "docker.io", "registry-1.docker.io"
_CHUNK = 1 << 20
_MAX_TOKEN = 64 << 10  # bytes
_TOKEN_SECONDS = 60.0
"""Life of a token that does not say it (distribution, docs/spec/auth/token)."""
_BEGINNINGS = 3
_ACCEPT = ", ".join(sorted(manifest.MANIFESTS | manifest.INDEXES))
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')


@dataclass(frozen=True)
class RegistryAccess:
    """Registries that may be asked. plain: those without encryption, as HOST or HOST:PORT.

    mirrors: registry -> the one that is asked in its place, with that one's own login.
    ca: a file of certificates, None for the machine's authorities; it is read by each pull, as it may be renewed.
    """

    hosts: tuple[AllowedHost, ...] = ()
    plain: frozenset[str] = frozenset()
    ca: Path | None = None
    mirrors: Mapping[str, str] = field(default_factory=dict)
    name: ClassVar[str] = "registry"
    sleep: Callable[[float], None] | None = None
    resolve: Resolve = resolve

    def allows(self, image: ImageReference) -> bool:
        """Whether the registry of an image is listed."""
        parts = urlsplit(self.origin(image))
        return self.policy.lists(parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443))

    def origin(self, image: ImageReference) -> str:
        """The URL of an image's registry."""
        host = self._asked(image).repository.partition("/")[0]
        return f"{'http' if host in self.plain else 'https'}://{_HUB_HOST if host == _HUB else host}"

    def _asked(self, image: ImageReference) -> ImageReference:
        """The image at its mirror, where there is one."""
        host, slash, path = image.repository.partition("/")
        return replace(image, repository=f"{self.mirrors.get(host, host)}{slash}{path}")

    @property
    def policy(self) -> FetchPolicy:
        """The listed hosts, and public ones that they redirect to."""
        return FetchPolicy(self.hosts, self.resolve, is_public=True, option=OPTION)

    def login(self, image: ImageReference, secrets: Mapping[str, str]) -> RegistryLogin | None:
        """The login of a pull secret for an image. Raises: InvalidError."""
        return login.find(secrets, self._asked(image))

    def client(self, image: ImageReference, found: RegistryLogin | None) -> RegistryClient:
        """What reads an image of a listed registry. Raises: PreconditionError, InvalidError."""
        return RegistryClient(image, self, Progress(str(image)), found)

    def fetcher(self, progress: Progress) -> Fetcher:
        """What downloads; a stop ends its pauses, and what blocks on its connection. Raises: InvalidError (ca)."""
        try:
            tls = ssl.create_default_context(cafile=self.ca) if self.ca is not None else None
        except OSError as failure:
            why = failure.strerror or failure
            raise InvalidError(f"registry certificates {self.ca}: cannot be read: {why}") from failure
        return Fetcher(self.policy, tls, self.sleep or partial(pause, progress), progress.watch)


def parse_access(texts: Sequence[str], ca: Path | None = None, mirrors: Sequence[str] = ()) -> RegistryAccess:
    """Read registries: HOST or HOST:PORT, http://HOST[:PORT] without encryption. ca: a file of certificates.

    mirrors: REGISTRY=MIRROR, which may be asked too. Raises: InvalidError.
    """
    hosts, plain, found_mirrors = [], set[str](), dict[str, str]()
    for text in mirrors:
        registry, equals, mirror = text.partition("=")
        if not equals or not registry or not mirror or registry in found_mirrors:
            raise InvalidError(f"mirror {text[:80]!r}: want REGISTRY=MIRROR, each registry once")
        found_mirrors[registry] = mirror.removeprefix("http://")
    for text in (*texts, *(mirror.partition("=")[2] for mirror in mirrors)):
        host = text.removeprefix("http://")
        try:
            found = parse_host(_HUB_HOST if host == _HUB else host)
        except InvalidError:
            raise InvalidError(
                f"registry {text[:80]!r}: want HOST or HOST:PORT, or http://HOST[:PORT] without encryption"
            ) from None
        hosts.append(found)
        if host != text:
            plain.add(host)
    return RegistryAccess(tuple(hosts), frozenset(plain), ca, found_mirrors)


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float = _TOKEN_SECONDS


@dataclass
class RegistryClient:
    """Reads one repository."""

    image: ImageReference
    access: RegistryAccess
    progress: Progress
    login: RegistryLogin | None = None
    monotonic: Callable[[], float] = time.monotonic
    _challenge: str = field(default="", init=False)
    _token: str = field(default="", init=False, repr=False)
    _ends: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not self.access.allows(self.image):
            host = self.image.repository.partition("/")[0]
            listed = ", ".join(map(str, self.access.hosts)) or "none"
            raise PreconditionError(
                f"image {self.image}: this node does not pull from registry {host} (listed: {listed}); see {OPTION}"
            )
        self._fetcher = self.access.fetcher(self.progress)
        path = self.image.repository.partition("/")[2]
        self._base = f"{self.access.origin(self.image)}/v2/{quote(path)}"
        self._scope = f"repository:{path}:pull"

    def resolve(self, platform: Platform) -> RemoteImage:
        """Find the image for a platform. Raises: as remote.resolve(), and PreconditionError (no right)."""
        return remote.resolve(self, platform)

    def manifest(self, at: str) -> tuple[str, bytes]:
        """Media type and content of a manifest or index, by tag or digest."""
        url = f"{self._base}/manifests/{at}"
        connection, response = self._open(url, {"Accept": _ACCEPT})
        try:
            digest = at if ":" in at else ""
            data = self._read(response, url, manifest.MAX_MANIFEST, digest)
        finally:
            connection.close()
        return response.headers.get("Content-Type", "").partition(";")[0].strip(), data

    def document(self, blob: BlobDescriptor) -> bytes:
        """A small blob, checked."""
        url = f"{self._base}/blobs/{blob.digest}"
        connection, response = self._open(url, {})
        try:
            return self._read(response, url, blob.size, blob.digest, size=blob.size)
        finally:
            connection.close()

    def _read(
        self, response: http.client.HTTPResponse, url: str, most: int, digest: str, *, size: int | None = None
    ) -> bytes:
        what = shown(url)
        try:
            data = read_blob(_Counted(response, self._fetcher, what), what, most=most, size=size, digest=digest)
        except (OSError, http.client.HTTPException) as failure:
            raise UnavailableError(f"{what}: broke off: {failure}") from failure
        if digest and size is None:
            Blob(BytesIO(data), what, digest=digest).finish()
        return data

    def _open(self, url: str, headers: Headers) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """One GET that is answered with 200; authorized once the registry asks for it."""
        connection, response = self._fetcher.open(url, headers, self._sign)
        if response.status == 401 and self._accept_challenge(response.headers.get_all("WWW-Authenticate", [])):
            connection.close()
            connection, response = self._fetcher.open(url, headers, self._sign)
        if response.status != 200:
            connection.close()
            self._reject(response, shown(url))
        return connection, response

    def _reject(self, response: http.client.HTTPResponse, what: str) -> None:
        status = response.status
        if status in (401, 403):
            how = "its pull secret has no right to it" if self.login else "it may need a pull secret"
            raise PreconditionError(
                f"image {self.image}: the registry rejects it ({status} {response.reason}): {how}: see"
                " nodePublishSecretRef"
            )
        if status == 404:
            raise NotFoundError(f"image {self.image}: it is not in its registry: {what} answers 404")
        if status >= 500 or status in (408, 425, 429):
            raise UnavailableError(f"{what}: the registry answers {status} {response.reason}")
        raise InvalidError(f"{what}: the registry answers {status} {response.reason}")

    def download(self, blob: BlobDescriptor, target: Path) -> None:
        """Download a blob into a new file, checked against digest and size, and synced.

        Raises: InvalidError, UnavailableError, StoppedError, HostError.
        """
        for attempt in range(_BEGINNINGS):
            begun = self.progress.done
            try:
                self._download(blob, target)
            except RestartError:
                self.progress.done = begun
                if attempt + 1 == _BEGINNINGS:
                    raise
                continue
            return

    def _download(self, blob: BlobDescriptor, target: Path) -> None:
        url = f"{self._base}/blobs/{blob.digest}"
        with (
            self._fetcher.get(url, sign=self._sign, is_immutable=True) as download,
            host_errors(f"{download.what}: cannot be written to {target.parent}"),
            open(target, "wb") as file,
        ):
            source = Blob(download, download.what, size=blob.size, digest=blob.digest)
            while data := source.read(_CHUNK):
                file.write(data)
                self.progress.add(len(data))
            source.finish()
            file.flush()
            os.fsync(file.fileno())

    def _sign(self, url: str, headers: Headers) -> Headers:
        authorization = self._authorization()
        return {**headers, "Authorization": authorization} if authorization else headers

    def _authorization(self) -> str:
        """What the registry asked for, "" as long as it asked for nothing."""
        if self._challenge == "basic":
            return self.login.header if self.login else ""
        if self._challenge and self.monotonic() >= self._ends:
            self._fetch_token()
        return f"Bearer {self._token}" if self._challenge else ""

    def _accept_challenge(self, challenges: list[str]) -> bool:
        """Note what a 401 asks for; False where that is known, or is nothing that we have."""
        for text in challenges:
            scheme, _, parameters = text.partition(" ")
            found = dict(_PARAMETER.findall(parameters))
            if scheme.lower() == "bearer" and found.get("realm"):
                self._challenge = self._token_url(found["realm"], found.get("service", ""))
                self._ends = 0.0
                return True
            if scheme.lower() == "basic" and self.login is not None and self._challenge != "basic":
                self._challenge = "basic"
                return True
        return False

    def _token_url(self, realm: str, service: str) -> str:
        parts = urlsplit(realm)
        is_plain = parts.scheme == "http" and self._base.startswith("http://")
        if not (parts.scheme == "https" or is_plain) or not parts.hostname or "@" in parts.netloc:
            raise InvalidError(f"image {self.image}: the registry names a token server without encryption")
        query = urlencode({"service": service, "scope": self._scope} if service else {"scope": self._scope})
        return f"{realm}{'&' if parts.query else '?'}{query}"

    def _fetch_token(self) -> None:
        begun = self.monotonic()
        headers = {"Authorization": self.login.header} if self.login else {}
        connection, response = self._fetcher.open(self._challenge, headers, None)
        what = shown(self._challenge)
        try:
            if response.status != 200:
                self._reject(response, what)
            data = self._read(response, what, _MAX_TOKEN, "")
        finally:
            connection.close()
        try:
            found = msgspec.json.decode(data, type=_Token)
        except msgspec.MsgspecError:  # the error may have a part of the token
            raise InvalidError(f"{what}: the token server answers no token") from None
        self._token = found.token or found.access_token
        if not self._token or not self._token.isascii() or not self._token.isprintable():
            raise InvalidError(f"{what}: the token server answers no token")
        self._ends = begun + max(found.expires_in, _TOKEN_SECONDS) * 0.8


@dataclass
class _Counted:
    """The body of an answer; a server that sends it too slowly is given up."""

    response: http.client.HTTPResponse
    fetcher: Fetcher
    what: str

    def read(self, size: int, /) -> bytes:
        data = self.response.read1(size)
        self.fetcher.count(len(data), self.what)
        return data
