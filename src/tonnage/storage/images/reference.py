"""Names of images, normalized as Docker does (distribution/reference): busybox is docker.io/library/busybox:latest."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tonnage.base.errors import InvalidError

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PART}(?:/{_PART})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 255
_DEFAULT_HOST = "docker.io"


@dataclass(frozen=True)
class ImageReference:
    """A normalized name. repository: with its host; tag: "" where only a digest is given; digest: "" for none."""

    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def is_digest(text: str) -> bool:
    """Whether text is a sha256 digest, the only kind that is used here."""
    return _DIGEST.fullmatch(text) is not None


def parse(text: str) -> ImageReference:
    """Normalize a name. Raises: InvalidError."""
    name, at, digest = text.partition("@")
    if at and not is_digest(digest):
        raise _invalid(text, "its digest is not sha256 and 64 hexadecimal digits")
    last = name.rpartition("/")[2]
    tag = last.partition(":")[2] if ":" in last else ""
    repository = name[: len(name) - len(tag) - 1] if ":" in last else name
    if ":" in last and not _TAG.fullmatch(tag):
        raise _invalid(text, "its tag has other characters than letters, digits, '_', '.', '-', or more than 128")
    host, slash, path = repository.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost" or host != host.lower()):
        host, path = _DEFAULT_HOST, repository
    if host == "index.docker.io":
        host = _DEFAULT_HOST
    if host == _DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    if not _HOST.fullmatch(host) or not _PATH.fullmatch(path):
        raise _invalid(text, "want [host/]name[:tag][@sha256:...], the name in lower case")
    if len(f"{host}/{path}") > _LONGEST:
        raise _invalid(text, f"it is longer than {_LONGEST} characters")
    return ImageReference(f"{host}/{path}", tag or ("" if digest else "latest"), digest)


def _invalid(text: str, why: str) -> InvalidError:
    return InvalidError(f"image name {text[:80]!r}: invalid reference format: {why}")
