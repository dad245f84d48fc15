"""Content negotiation of requests and answers, and decoding of bodies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec

from tonnage.base import collector
from tonnage.base.errors import ApiError
from tonnage.kubernetes.client.transport import JSON, JSON_PATCH, MERGE_PATCH, PROTOBUF, STRATEGIC_PATCH
from tonnage_box.apiserver.request.errors import bad_request, not_acceptable, too_large

MAX_BODY = 3 << 20
MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Keys and values of an object. One call into C reads, compares or frees them all, and no thread runs meanwhile."""
MAX_INSIDE = 16 << 10
"""Bytes that are worked on in the event loop."""
_PROGRAMS = 2
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
_PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_WINDOW = 256 << 10
_TEXT = bytes(set(range(256)) - set(b'",:{['))
_worker = ThreadPoolExecutor(1, thread_name_prefix="large-requests")
"""One thread: the event loop competes with no more than one, and the garbage collector is paused for one work only."""
_decode = msgspec.json.Decoder().decode
T = TypeVar("T")


@dataclass(frozen=True)
class Accepted:
    """The format that the client accepts: whole objects, a Table, or metadata only, in JSON or protobuf."""

    shape: Literal["object", "table", "metadata"] = "object"
    version: str = "v1"
    is_protobuf: bool = False


OBJECT = Accepted()


@lru_cache(maxsize=256)
def accepted(accept: str, *, encoded: bool = True) -> Accepted:
    """The first entry of an Accept header that can be served. Raises: a 406 that says what could be.

    encoded: whether whole objects of the kind have a protobuf encoding; those of custom resources have none, but
    their metadata has.
    """
    for kind, params in _entries(accept or "*/*"):
        is_protobuf = kind == PROTOBUF
        if not is_protobuf and kind not in (JSON, "*/*", "application/*"):
            continue
        wanted = params.get("as", "")
        if not wanted:
            if is_protobuf and not encoded:
                continue
            return Accepted(is_protobuf=is_protobuf)
        if params.get("g") == "meta.k8s.io" and params.get("v", "v1") in ("v1", "v1beta1"):
            version = params.get("v", "v1")
            if wanted == "Table" and not is_protobuf:
                return Accepted("table", version)
            if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
                return Accepted("metadata", version, is_protobuf)
    offered = f"{JSON} (as Table and PartialObjectMetadata too)" + (f", {PROTOBUF}" if encoded else "")
    raise not_acceptable(f"{offered}; the request accepts {accept[:200]!r}")


def accepts_protobuf(accept: str) -> bool:
    """Whether an Accept header asks for protobuf first of what can be served."""
    try:
        return "protobuf" in accept and accepted(accept).is_protobuf
    except ApiError:
        return False


def _entries(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    for entry in header.split(","):
        kind, *params = (part.strip() for part in entry.split(";"))
        pairs = (p.partition("=") for p in params)
        yield kind.lower(), {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _unsupported(content_type: str, allowed: str) -> ApiError:
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
    """Raises: a 413 for bodies above MAX_BODY bytes."""
    if size > MAX_BODY:
        raise too_large(f"limit is {MAX_BODY}")


class Bodies:
    """Decodes request bodies; large ones outside the event loop, in a thread (JSON) or a process (YAML)."""

    def __init__(self) -> None:
        self._programs = asyncio.Semaphore(_PROGRAMS)

    async def object(self, body: bytes, content_type: str) -> dict[str, Any]:
        """The object in a body (JSON, protobuf or YAML by its content type), without nulls. Raises: 400, 413, 415."""
        return (await self.checked(body, content_type))[0]

    async def checked(
        self, body: bytes, content_type: str, *, encoded: bool = True
    ) -> tuple[dict[str, Any], list[str]]:
        """The same, and the complaints about keys that YAML repeats. Those of JSON cost more: decoding.duplicates().

        encoded: whether the kind has a protobuf encoding.
        """
        check_size(len(body))
        kind = media_type(content_type)
        if kind in ("", JSON):
            return await run_in_thread_if_large(len(body), _json_object, body), []
        if kind == PROTOBUF and encoded:
            return await run_in_thread_if_large(len(body), _protobuf_object, body), []
        if kind not in _YAML:
            raise _unsupported(content_type, f"{JSON}, application/yaml" + (f", {PROTOBUF}" if encoded else ""))
        from tonnage_box.apiserver.request import yaml_body  # late: 1 MiB of parser that hardly any client asks for

        try:
            if len(body) <= yaml_body.MAX_INSIDE:
                parsed = yaml_body.parse(body)
            else:
                async with self._programs:
                    answer = await yaml_body.read(body)
                parsed = await run_in_thread_if_large(len(answer), lambda: yaml_body.Parsed(*_decode(answer)))
            return await run_in_thread_if_large(len(body), _object, parsed.value), parsed.repeated
        except ValueError as error:
            raise bad_request(f"the body of the request is not valid YAML: {str(error)[:300]}") from None

    async def patch(self, body: bytes, content_type: str) -> tuple[str, Any]:
        """A patch: its media type and value. Raises: 400, 413, 415."""
        return await run_in_thread_if_large(len(body), _patch, body, content_type)


async def run_in_thread_if_large(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """What the function returns: called here, or in a thread when it works on more than MAX_INSIDE bytes."""
    if size <= MAX_INSIDE:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_worker, _uncollected, function, *arguments)


def _uncollected(function: Callable[..., T], *arguments: Any) -> T:
    """Call the function while the garbage collector pauses; what it leaves is freed by reference counts, or later."""
    with collector.paused():
        try:
            return function(*arguments)
        except ApiError as error:  # its frames hold the object: freed here, not in the event loop
            raise error.with_traceback(None) from None


def _json_object(body: bytes) -> dict[str, Any]:
    value = _json(body)
    return _object(value, nulls=b"null" in body)


def _protobuf_object(body: bytes) -> dict[str, Any]:
    from tonnage_box.apiserver.protobuf import envelope  # late: many clients never speak it

    try:
        value = envelope.decode(body, _json)
    except ValueError as error:
        raise bad_request(f"the body of the request is not valid protobuf: {str(error)[:300]}") from None
    return _object(value, nulls=b"null" in body)  # its depth is that of the schemas, and of JSON that was checked


def _object(value: Any, *, nulls: bool = True) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_request("the body of the request is not an object")
    if nulls:
        drop_nulls(value)
    return value


def _patch(body: bytes, content_type: str) -> tuple[str, Any]:
    check_size(len(body))
    kind = media_type(content_type)
    if kind not in _PATCHES:
        hint = ""
        if kind.startswith("application/apply-patch"):
            hint = (
                "; server-side apply is not built here: use client-side apply (kubectl apply without --server-side, "
                "helm 4 with --server-side=false)"
            )
        raise _unsupported(content_type, ", ".join(_PATCHES) + hint)
    return kind, _json(body)


def _json(body: bytes) -> Any:
    if _values(body) > MAX_VALUES:
        raise bad_request(f"the body of the request has more than {MAX_VALUES} keys and values")
    try:
        value = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the body of the request is not valid JSON: {error}") from None
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        check_depth(value)
    # In windows, each with the last 18 digits of the one before: a search of 3 MiB would hold all threads.
    windows = range(0, len(body), _WINDOW)
    if any(_LONG_NUMBER.search(body, max(at - 18, 0), at + _WINDOW) for at in windows) and _has_long(value):
        raise bad_request("the body of the request has a whole number of more than 64 bits")
    return value


def _values(body: bytes) -> int:
    """How many keys and values JSON has, besides the outermost; at least, where there are too many."""
    found = _marks(body)
    if found <= MAX_VALUES:
        return found  # with those inside texts
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    body = body.translate(None, _TEXT)
    if body.count(b'"') // 2 > MAX_VALUES:
        return body.count(b'"') // 2
    return _marks(b"".join(body.split(b'"')[::2]))


def _marks(text: bytes) -> int:
    """A comma, or the start of its list or object, belongs to each value; a colon to each key."""
    return text.count(b",") + text.count(b":") + text.count(b"{") + text.count(b"[")


def _has_long(value: Any) -> bool:
    """Whether there is an integer at any depth that Go and JSON's encoder do not take."""
    if isinstance(value, dict):
        return any(map(_has_long, value.values()))
    if isinstance(value, list):
        return any(map(_has_long, value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def check_depth(value: Any) -> None:
    """Raises: a 400 for a value nested more than MAX_DEPTH deep: below that, recursion is safe everywhere."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = _inner(level)
        if not level:
            return
    raise bad_request(f"the object is nested more than {MAX_DEPTH} deep")


def _inner(level: list[Any]) -> list[Any]:
    """The objects and lists one level below these."""
    return [
        member
        for parent in level
        for member in (parent.values() if type(parent) is dict else parent)
        if type(member) is dict or type(member) is list
    ]


def count_values(value: Any) -> int:
    """How many keys and values there are at any depth of an object that check_depth has passed."""
    found, level = 0, [value]
    while level:
        found += sum(len(parent) * (1 + (type(parent) is dict)) for parent in level)
        level = _inner(level)
    return found


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
