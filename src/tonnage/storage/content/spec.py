"""What a volume is filled with: an image, a URL, objects of an S3 server, or a folder of the node. Pure.

Written as the spec of a Content object, or as the text of the class parameter `source`. Exactly one form is given. What
is not known is rejected by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tonnage.base.errors import InvalidError
from tonnage.storage.images import reference

UNPACK = ("none", "tar", "tar.gz", "tar.zst")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,127}")
_LONGEST = 2048  # characters of a text
_REGION_DEFAULT = "us-east-1"
_SECRETS = (
    "it does not hold credentials: a class names a Secret with csi.storage.k8s.io/provisioner-secret-name and"
    " -namespace"
)
ONE_OF = "exactly one of image, url, s3 and folder must be set"


@dataclass(frozen=True)
class ImageSpec:
    """The files of an image that is in a store of the node."""

    reference: str

    def __str__(self) -> str:
        return f"image {self.reference}"


@dataclass(frozen=True)
class UrlSpec:
    """A file behind a URL, or the files of an archive there. sha256: hexadecimal, of what is behind the URL."""

    url: str
    sha256: str
    unpack: str = "none"

    def __str__(self) -> str:
        return shown(self.url)


@dataclass(frozen=True)
class S3Spec:
    """One object of a bucket, or all whose keys begin with a prefix. sha256: hexadecimal, of one object."""

    endpoint: str
    bucket: str
    key: str = ""
    prefix: str = ""
    sha256: str = ""
    region: str = _REGION_DEFAULT

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key or self.prefix}"


@dataclass(frozen=True)
class FolderSpec:
    """A folder of the node that its driver allows, by the last part of its path."""

    name: str

    def __str__(self) -> str:
        return f"folder {self.name}"


ContentSpec = ImageSpec | UrlSpec | S3Spec | FolderSpec
_FORMS: Mapping[str, type[ImageSpec] | type[UrlSpec] | type[S3Spec] | type[FolderSpec]] = {
    "image": ImageSpec,
    "url": UrlSpec,
    "s3": S3Spec,
    "folder": FolderSpec,
}
_REQUIRED = {"image": ("reference",), "url": ("url", "sha256"), "s3": ("endpoint", "bucket"), "folder": ("name",)}


def shown(url: str) -> str:
    """A URL for people: without a query, which may hold a signature."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "no URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


Fault = tuple[str, Any, str]
"""Dotted path below spec, the value, and what is wrong with it; "" for a field that is missing."""


def faults(spec: Mapping[str, Any]) -> Iterator[Fault]:
    """All that is wrong with the spec of a Content."""
    given = [form for form in _FORMS if spec.get(form) is not None]
    for word in sorted(set(spec) - set(_FORMS)):
        yield word, spec[word], f"unknown field; {_SECRETS if 'ecret' in word else 'want one of ' + ', '.join(_FORMS)}"
    if len(given) != 1:
        yield "", sorted(given), ONE_OF
    for form in given:
        yield from _faults_of(form, spec[form])


def _faults_of(form: str, fields: Any) -> Iterator[Fault]:
    if not isinstance(fields, Mapping):
        yield form, fields, "want an object"
        return
    known = _FORMS[form].__dataclass_fields__
    for word in sorted(set(fields) - set(known)):
        why = _SECRETS if "ecret" in word else f"want one of {', '.join(known)}"
        yield f"{form}.{word}", fields[word], f"unknown field; {why}"
    for word in _REQUIRED[form]:
        if not fields.get(word):
            yield f"{form}.{word}", "", ""
    for word in known:
        value = fields.get(word)
        if value in (None, ""):
            continue
        if not isinstance(value, str) or len(value) > _LONGEST or not value.isprintable():
            yield f"{form}.{word}", value, f"want at most {_LONGEST} printable characters"
        elif (rule := _RULES.get(word)) is not None and (why := rule(value)):
            yield f"{form}.{word}", value, why
    if form == "s3":
        yield from _faults_of_keys(fields)


def _faults_of_keys(fields: Mapping[str, Any]) -> Iterator[Fault]:
    key, prefix = fields.get("key"), fields.get("prefix")
    if bool(key) == (prefix is not None and prefix != ""):
        yield "s3", {"key": key or "", "prefix": prefix or ""}, "exactly one of key and prefix must be set"
    if fields.get("sha256") and not key:
        yield "s3.sha256", fields["sha256"], "it is the digest of one object, which key names"


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
    except ValueError as failure:
        return str(failure)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "want http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH"
    if "@" in parts.netloc:
        return f"it names a user; {_SECRETS}"
    try:
        parts.port  # noqa: B018 - parsed when it is read
    except ValueError:
        return "its port is not a number from 0 to 65535"
    if parts.fragment:
        return "it has a fragment (#...), which no server sees"
    if not text.isascii() or any(letter.isspace() for letter in text):
        return "want ASCII without spaces: encode others with %"
    return ""


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    return _url(text) or ("" if parts.path in ("", "/") and not parts.query else "want no path and no query")


def _reference(text: str) -> str:
    try:
        reference.parse(text)
    except InvalidError as failure:
        return str(failure)
    return ""


def _matches(pattern: re.Pattern[str], hint: str) -> Callable[[str], str]:
    return lambda text: "" if pattern.fullmatch(text) else f"want {hint}"


_RULES: Mapping[str, Callable[[str], str]] = {
    "reference": _reference,
    "url": _url,
    "endpoint": _endpoint,
    "sha256": _matches(_DIGEST, "64 digits of lower case hexadecimal"),
    "unpack": lambda text: "" if text in UNPACK else f"want one of {', '.join(UNPACK)}",
    "bucket": _matches(_BUCKET, "the name of a bucket: 3 to 63 of a-z, 0-9, '.' and '-'"),
    "region": _matches(_REGION, "the name of a region, as us-east-1"),
    "name": _matches(_NAME, "the last part of a folder's path: letters, digits, '-', '_' or '.'"),
}


def parse(spec: Mapping[str, Any], what: str) -> ContentSpec:
    """The content that a spec means. what: names it in messages. Raises: InvalidError with the first fault."""
    for path, value, why in faults(spec):
        field = f"spec.{path}" if path else "spec"
        raise InvalidError(f"{what}: {field}: {f'{str(value)[:80]!r}: {why}' if why else 'it is missing'}")
    form = next(form for form in _FORMS if spec.get(form) is not None)
    return _FORMS[form](**{word: value for word, value in spec[form].items() if value})


def form_of(content: ContentSpec) -> str:
    """The word of its form: image, url, s3 or folder."""
    return next(form for form, kind in _FORMS.items() if isinstance(content, kind))


def encode(content: ContentSpec) -> str:
    """The text with which a content is passed to the driver; the same for the same content."""
    return json.dumps({form_of(content): asdict(content)}, sort_keys=True, separators=(",", ":"))


def decode(text: str) -> ContentSpec:
    """The content of such a text. Raises: InvalidError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise InvalidError(f"content {text[:80]!r} cannot be read: {failure}") from None
    if not isinstance(found, dict):
        raise InvalidError(f"content {text[:80]!r}: want an object")
    return parse(found, "content")


def of_source(text: str) -> ContentSpec | None:
    """The content of a class parameter `source`; None for a folder by its path (dir://), which is no content.

    image:NAME, folder:NAME, URL#sha256=HEX[&unpack=FORM], or s3://BUCKET/KEY#endpoint=URL[&region=NAME&sha256=HEX],
    where a key that ends in / is a prefix. Raises: InvalidError.
    """
    if not text or text.startswith("dir://"):
        return None
    scheme, colon, rest = text.partition(":")
    place, _, options = text.partition("#")
    fields = dict(parse_qsl(options, keep_blank_values=True))
    spec: dict[str, Any]
    if colon and scheme in ("http", "https"):
        spec = {"url": {**fields, "url": place}}
    elif colon and scheme == "s3":
        bucket, _, key = place.removeprefix("s3://").partition("/")
        spec = {"s3": {**fields, "bucket": bucket, "prefix" if not key or key.endswith("/") else "key": key}}
    elif colon and scheme in ("image", "folder"):
        spec = {scheme: {"reference" if scheme == "image" else "name": rest}}
    else:
        raise InvalidError(
            f"parameter source: {text[:80]!r}: want dir:///FOLDER, folder:NAME, image:NAME, https://HOST/PATH#sha256=..."
            " or s3://BUCKET/KEY#endpoint=..."
        )
    return parse(spec, "parameter source")
