"""S3: requests signed with AWS Signature Version 4, and the list of a prefix. Only listing blocks.

Path-style URLs, https://HOST/BUCKET/KEY, so that the endpoint is the one host that must be allowed. Without keys a
request is anonymous.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit
from xml.etree import ElementTree

from tonnage.base.errors import InvalidError
from tonnage.storage.content.access import Progress
from tonnage.storage.content.http import Fetcher, Headers, Sign, one_line
from tonnage.storage.content.spec import S3Spec
from tonnage.storage.images.stream import read_blob

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY = hashlib.sha256(b"").hexdigest()
_LARGEST_PAGE = 8 << 20
_MOST_OBJECTS = 1_000_000
_MOST_PAGES = 10_000
_LONGEST = 1024  # bytes of a key or an ETag
_MOST_HELD = 256 << 20
_SAFE = "-_.~"
Now = Callable[[], datetime]


@dataclass(frozen=True)
class S3Keys:
    """Credentials, as a Secret's accessKey, secretKey and sessionToken."""

    access: str
    secret: str
    token: str = ""


def keys_of(secrets: Mapping[str, str]) -> S3Keys | None:
    """The credentials of a Secret, None for anonymous requests. Raises: InvalidError."""
    access, secret = secrets.get("accessKey", ""), secrets.get("secretKey", "")
    if bool(access) != bool(secret):
        raise InvalidError("the Secret of the class needs both accessKey and secretKey")
    return S3Keys(one_line(access), one_line(secret), one_line(secrets.get("sessionToken", ""))) if access else None


def url_of(content: S3Spec, key: str = "") -> str:
    """The URL of an object, or of the bucket."""
    path = f"/{content.bucket}" + (f"/{quote(key, safe=_SAFE + '/')}" if key else "")
    return content.endpoint.rstrip("/") + path


def signer(keys: S3Keys | None, region: str, now: Now) -> Sign | None:
    """What signs GETs without a body; None for anonymous ones."""
    if keys is None:
        return None

    def sign(url: str, headers: Headers) -> Headers:
        return {**headers, **signed("GET", url, keys, region, now())}

    return sign


def signed(
    method: str, url: str, keys: S3Keys, region: str, now: datetime, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The headers that authorize a request without a body, which covers also the headers in `more`."""
    parts = urlsplit(url)
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc.lower(), "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    headers |= {"x-amz-security-token": keys.token} if keys.token else {}
    covered = headers | {name.lower(): value.strip() for name, value in (more or {}).items()}
    names = ";".join(sorted(covered))
    canonical = "\n".join(
        [
            method,
            parts.path or "/",  # encoded once already: S3 does not encode it again
            _canonical_query(parts.query),
            *(f"{name}:{covered[name]}" for name in sorted(covered)),
            "",
            names,
            _EMPTY,
        ]
    )
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signature = hmac.new(_signing_key(keys.secret, stamp[:8], region), text.encode(), hashlib.sha256).hexdigest()
    credential = f"Credential={keys.access}/{scope}"
    headers["Authorization"] = f"{_ALGORITHM} {credential},SignedHeaders={names},Signature={signature}"
    del headers["host"]  # the connection sends it
    return headers


def _canonical_query(query: str) -> str:
    pairs = [(quote(k, safe=_SAFE), quote(v, safe=_SAFE)) for k, v in parse_qsl(query, keep_blank_values=True)]
    return "&".join(f"{key}={value}" for key, value in sorted(pairs))


def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


@dataclass(frozen=True)
class S3Object:
    """An object of a list. size: bytes; etag: its version."""

    key: str
    size: int
    etag: str


def listed(fetcher: Fetcher, content: S3Spec, sign: Sign | None, progress: Progress) -> Iterator[S3Object]:
    """All objects below the prefix, page by page. Raises: InvalidError, UnavailableError, StoppedError."""
    token, count, held = "", 0, 0
    for _ in range(_MOST_PAGES):
        progress.add(0)
        query = {"list-type": "2", "prefix": content.prefix, **({"continuation-token": token} if token else {})}
        pairs = "&".join(f"{key}={quote(value, safe=_SAFE)}" for key, value in sorted(query.items()))
        with fetcher.get(f"{url_of(content)}?{pairs}", sign=sign) as page:
            body = read_blob(page, f"{content}: the list of the bucket", most=_LARGEST_PAGE)
        found, token = _page(body, str(content))
        count += len(found)
        if count > _MOST_OBJECTS:
            raise InvalidError(f"{content}: more than {_MOST_OBJECTS} objects")
        held += sum(len(item.key) + len(item.etag) for item in found)
        if held > _MOST_HELD:
            raise InvalidError(f"{content}: the keys of its objects have more than {_MOST_HELD} characters")
        yield from found
        if not token:
            return
    raise InvalidError(f"{content}: the list of the bucket has more than {_MOST_PAGES} pages")


def _page(body: bytes, what: str) -> tuple[list[S3Object], str]:
    """The objects of a page, and the token of the next one or ""."""
    try:
        text = body.decode()  # so that no other encoding hides a declaration: that of a str is not looked at
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise InvalidError(f"{what}: the list of the bucket declares entities, which no S3 server does")
        root = ElementTree.fromstring(text)
        for element in root.iter():  # servers differ in the namespace
            element.tag = element.tag.rpartition("}")[2]
        found = [
            S3Object(item.findtext("Key", ""), int(item.findtext("Size", "")), item.findtext("ETag", ""))
            for item in root.findall("Contents")
        ]
    except (ElementTree.ParseError, ValueError) as failure:
        raise InvalidError(f"{what}: the list of the bucket cannot be read: {failure}") from None
    if any(not item.key or item.size < 0 for item in found):
        raise InvalidError(f"{what}: the list of the bucket has an object without a key or size")
    if any(len(word.encode()) > _LONGEST for item in found for word in (item.key, item.etag)):
        raise InvalidError(f"{what}: the list of the bucket has a key or ETag of more than {_LONGEST} bytes")
    is_cut = root.findtext("IsTruncated", "").strip() == "true"
    token = root.findtext("NextContinuationToken", "") if is_cut else ""
    if is_cut and not token:
        raise InvalidError(f"{what}: the list of the bucket is cut off, and does not say how to go on")
    return found, token
