"""Routes: from a URL path to resource, namespace, name and subresource. Names are checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import unquote

from tonnage.base.errors import ApiError, UnsupportedError
from tonnage_box.apiserver.request.errors import bad_request
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.storage.store import ObjectKey

MAX_ID = 253
_MAX_PATH = 8 << 10


@dataclass(frozen=True)
class RequestPath:
    """The parts of a path. namespace is None for "all namespaces" and for cluster-scoped kinds."""

    resource: Resource
    namespace: str | None = None
    name: str = ""
    subresource: str = ""
    rest: str = ""
    """The path below nodes/proxy."""

    @cached_property
    def key(self) -> ObjectKey:
        """The object's key in the store."""
        return ObjectKey(self.resource.collection, self.namespace or "", self.name)


class Routes:
    """Paths of the served resources."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        self._by_prefix = {(r.kind.group, r.kind.version, r.kind.plural): r for r in resources.values()}
        self.find = lru_cache(maxsize=1024)(self._find)

    def _find(self, path: str) -> RequestPath:
        """Read a path whose segments are percent-encoded. Raises: 400 (ids that cannot be), 404 (nothing there)."""
        if len(path) > _MAX_PATH:
            raise bad_request(f"the path is longer than {_MAX_PATH} bytes")
        parts = path.split("/")
        parts = [unquote(p) for p in parts] if "%" in path else parts
        match parts:
            case ["", "api", version, *rest]:
                group = ""
            case ["", "apis", group, version, *rest]:
                pass
            case _:
                raise _nothing()
        return self._place(group, version, rest)

    def _place(self, group: str, version: str, rest: list[str]) -> RequestPath:
        namespace: str | None = None
        if len(rest) >= 3 and rest[0] == "namespaces" and (group, version, rest[2]) in self._by_prefix:
            namespace, rest = _identifier(rest[1]), rest[2:]
        if not rest:
            raise _nothing()
        resource = self._by_prefix.get((group, version, rest[0]))
        if resource is None or not _is_in_scope(resource, namespace, has_name=len(rest) > 1):
            raise _nothing()
        if resource.key == "nodes" and rest[2:3] == ["proxy"]:
            return RequestPath(resource, None, _proxied_node(_identifier(rest[1])), "proxy", "/".join(rest[3:]))
        if len(rest) > 3:
            raise _nothing()
        name = _identifier(rest[1]) if len(rest) > 1 else ""
        subresource = rest[2] if len(rest) > 2 else ""
        if subresource and subresource not in resource.subresources:
            if (hint := _NOT_BUILT.get(resource.key, {}).get(subresource)) is not None:
                raise UnsupportedError(f"{resource.key}/{subresource} is not built here: {hint}")
            raise _nothing()
        return RequestPath(resource, namespace, name, subresource)


def _is_in_scope(resource: Resource, namespace: str | None, *, has_name: bool) -> bool:
    """Whether a kind has such paths: rights in a namespace reach nothing else than what is in it.

    Without a namespace there are a cluster-scoped kind's objects, and the list and watch of any kind.
    """
    if namespace is not None:
        return resource.kind.namespaced
    return not (has_name and resource.kind.namespaced)


_LIMITATION = "see docs/limitations.md"
_NOT_BUILT = {
    "pods": {
        "portforward": "containers share this machine's loopback: connect to 127.0.0.1:PORT",
        "proxy": _LIMITATION,
        "resize": _LIMITATION,
    },
}
"""Subresources that Kubernetes has and that clients ask for, rejected by name, and what to do instead."""


_KUBELET_PORT = "10250"


def _proxied_node(text: str) -> str:
    """The node of nodes/[SCHEME:]NAME[:PORT]/proxy. Raises: a 400 for a port that is not the kubelet's."""
    parts = text.split(":")
    name, port = (parts[1], parts[2]) if len(parts) == 3 else (parts[0], ":".join(parts[1:]))
    if port not in ("", _KUBELET_PORT):
        raise bad_request(f"nodes/proxy reaches the kubelet's port only: name no port, or {_KUBELET_PORT}")
    return name


def _nothing() -> ApiError:
    return ApiError("the server could not find the requested resource", code=404, reason="NotFound")


def _identifier(text: str) -> str:
    """A name or namespace of a path. Raises: a 400 for what can be none."""
    if not text or text in (".", "..") or len(text) > MAX_ID or not text.isprintable() or "/" in text or "%" in text:
        shown = text if len(text) <= 80 else f"{text[:80]}... ({len(text)} characters)"
        raise bad_request(
            f"invalid name {shown!r}: want 1 to {MAX_ID} printable characters, none of / % and not . or .."
        )
    return text
