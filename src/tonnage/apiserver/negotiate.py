"""Content types in and out, and reading bodies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from tonnage.apiserver.errors import bad_request
from tonnage.errors import ApiError
from tonnage.kube.transport import JSON, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH

MAX_BODY = 3 << 20
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Accepted:
    """What the client wants objects as: whole, as a Table, or just their metadata."""

    shape: Literal["object", "table", "metadata"] = "object"
    version: str = "v1"


@lru_cache(maxsize=256)
def accepted(accept: str) -> Accepted:
    """The first entry of an Accept header that can be served. Raises a 406 that says what could be."""
    for kind, params in _entries(accept or "*/*"):
        if kind not in (JSON, "*/*", "application/*"):
            continue
        wanted = params.get("as", "")
        if not wanted:
            return Accepted()
        if params.get("g") == "meta.k8s.io" and params.get("v", "v1") in ("v1", "v1beta1"):
            version = params.get("v", "v1")
            if wanted == "Table":
                return Accepted("table", version)
            if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
                return Accepted("metadata", version)
    raise ApiError(
        f"only the following media types are accepted: {JSON} (as Table and PartialObjectMetadata too); "
        f"the request accepts {accept[:200]!r}",
        code=406,
        reason="NotAcceptable",
    )


def _entries(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    for entry in header.split(","):
        kind, *params = (part.strip() for part in entry.split(";"))
        pairs = (p.partition("=") for p in params)
        yield kind.lower(), {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _unsupported(content_type: str, allowed: str) -> ApiError:
    if "protobuf" in content_type:
        allowed += (
            " (no protobuf: with kubectl use apply -f or create -f, as in `kubectl create ... --dry-run=client -o yaml"
            " | kubectl apply -f -`; in Go set ContentType application/json)"
        )
    return ApiError(
        f"the body of the request was in an unknown format ({content_type[:100]}) - accepted media types include: "
        f"{allowed}",
        code=415,
        reason="UnsupportedMediaType",
    )


def media_type(content_type: str) -> str:
    """The type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def check_size(size: int) -> None:
    """Raises a 413 for bodies above MAX_BODY bytes."""
    if size > MAX_BODY:
        raise ApiError(f"Request entity too large: limit is {MAX_BODY} bytes", code=413, reason="RequestEntityTooLarge")


def read_object(body: bytes, content_type: str) -> dict[str, Any]:
    """Read the object in a body (JSON, or YAML by its content type), without nulls. Raises 400, 413, 415."""
    check_size(len(body))
    kind = media_type(content_type)
    if kind in ("", JSON):
        value = _json(body)
    elif kind in _YAML:
        from tonnage.apiserver import yaml_body  # late: 1 MiB of parser that hardly any client asks for

        value = yaml_body.read(body)
    else:
        raise _unsupported(content_type, f"{JSON}, application/yaml")
    if not isinstance(value, dict):
        raise bad_request("the body of the request is not an object")
    if b"null" in body or kind in _YAML:
        drop_nulls(value)
    return value


def read_patch(body: bytes, content_type: str) -> tuple[str, Any]:
    """Read a patch: its media type and value. Raises 400, 413, 415."""
    check_size(len(body))
    kind = media_type(content_type)
    if kind not in _PATCHES:
        hint = ""
        if kind.startswith("application/apply-patch"):
            hint = "; server-side apply is not built here: use client-side apply (kubectl apply without --server-side)"
        raise _unsupported(content_type, ", ".join(_PATCHES) + hint)
    return kind, _json(body)


def _json(body: bytes) -> Any:
    try:
        return _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the body of the request is not valid JSON: {error}") from None


def has_null(value: Any) -> bool:
    """Whether there is a null at any depth."""
    if isinstance(value, dict):
        return any(map(has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(has_null, value)))


def drop_nulls(value: Any) -> None:
    """Remove members that are null, at any depth, in place: a typed API server never stores them."""
    if isinstance(value, dict):
        for name in [n for n, v in value.items() if v is None]:
            del value[name]
        for member in value.values():
            if isinstance(member, (dict, list)):
                drop_nulls(member)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)):
                drop_nulls(item)
