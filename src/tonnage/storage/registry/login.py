"""Pull secrets: the entry of one registry in a Docker configuration (.dockerconfigjson, .dockercfg). Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tonnage.base.errors import InvalidError
from tonnage.storage.images.reference import ImageReference

CONFIG_JSON, CONFIG = ".dockerconfigjson", ".dockercfg"
_DOCKER_HUB = {"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io"}
_VERSIONS = ("v1", "v2")
"""Paths of old entries, which are no part of a repository's name."""


class _Entry(msgspec.Struct):
    username: str = ""
    password: str = ""
    auth: str = ""
    identitytoken: str = ""


class _Config(msgspec.Struct):
    auths: dict[str, _Entry] = {}


@dataclass(frozen=True)
class RegistryLogin:
    """User and password of a registry. repr() does not show the password."""

    user: str
    password: str = field(repr=False)

    @property
    def header(self) -> str:
        """Value of the header Authorization."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


def find(secrets: Mapping[str, str], image: ImageReference) -> RegistryLogin | None:
    """The login for an image; None where a pull secret has none for its registry. Raises: InvalidError.

    Of several entries the one with the longest path counts (pkg/credentialprovider, keyring).
    """
    host, _, path = image.repository.partition("/")
    best: tuple[int, _Entry] | None = None
    for key, entry in _entries(secrets).items():
        at, _, below = key.rpartition("://")[2].strip("/").partition("/")
        below = "" if below in _VERSIONS else below
        if _DOCKER_HUB.get(at, at) != host or not f"{path}/".startswith(f"{below}/" if below else ""):
            continue
        if best is None or len(below) > best[0]:
            best = len(below), entry
    return _login(best[1], host) if best is not None else None


def _entries(secrets: Mapping[str, str]) -> dict[str, _Entry]:
    try:
        if CONFIG_JSON in secrets:
            return msgspec.json.decode(secrets[CONFIG_JSON], type=_Config).auths
        if CONFIG in secrets:
            return msgspec.json.decode(secrets[CONFIG], type=dict[str, _Entry])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):  # the error may have a part of the secret
        raise InvalidError("pull secret: it cannot be read: want the JSON of a Docker configuration") from None
    if secrets:
        raise InvalidError(
            f"pull secret: it has neither {CONFIG_JSON} nor {CONFIG}: want a Secret of type"
            " kubernetes.io/dockerconfigjson"
        )
    return {}


def _login(entry: _Entry, host: str) -> RegistryLogin:
    if entry.identitytoken:
        raise InvalidError(f"pull secret: the entry of {host} has an identitytoken, which is not used: want a password")
    user, password = entry.username, entry.password
    if entry.auth:
        try:
            user, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise InvalidError(f"pull secret: auth of the entry of {host} is not base64 of user:password") from None
    if not user or not f"{user}{password}".isprintable():
        raise InvalidError(f"pull secret: the entry of {host} has no user, or a control character")
    return RegistryLogin(user, password)
