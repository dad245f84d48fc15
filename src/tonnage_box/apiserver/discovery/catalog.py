"""Discovery and OpenAPI documents, built on first request and cached as bytes."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tonnage.kubernetes.client.transport import JSON, Request, Response
from tonnage_box.apiserver.discovery import groups, openapi, openapi_protobuf
from tonnage_box.apiserver.request.errors import not_acceptable
from tonnage_box.apiserver.request.resource import Resource

_OPENAPI2_PROTOBUF = "application/com.github.proto-openapi.spec.v2"
_OPENAPI3_PROTOBUF = "application/com.github.proto-openapi.spec.v3"
_OTHER_PATHS = (
    "/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version",
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


class Catalog:
    """Answers /, /api, /apis, /api/v1, /apis/G[/V], /openapi/v2 and /openapi/v3[/...]. Idempotent.

    Documents are cached compressed: about 100 KB for all.
    """

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._resources = list(resources)
        self._groups = groups.groups(self._resources)
        self._packed: dict[str, tuple[bytes, str]] = {}

    async def answer(self, request: Request) -> Response | None:
        """The document of a path, None for any other path. Raises: ApiError 406 (v3 as protobuf)."""
        if request.method not in ("GET", "HEAD"):
            return None
        if request.path in ("", "/"):
            return self._document("", lambda: {"paths": self._paths()})
        if not request.path.startswith(("/api", "/openapi")):
            return None
        return self._found([part for part in request.path.split("/") if part], request)

    def _found(self, parts: list[str], request: Request) -> Response | None:
        match parts:
            case ["api"] | ["apis"]:
                return self._root(parts[0], request.accept)
            case ["api", "v1"]:
                rows = self._groups[""]
                return self._document("api/v1", lambda: groups.api_resource_list("v1", rows))
            case ["apis", group] if group in self._groups:
                return self._document(f"apis/{group}", lambda: groups.api_group(group, self._groups[group]))
            case ["apis", group, version] if group in self._groups:
                return self._versioned(group, version)
            case ["openapi", "v2"]:
                if _protobuf_alone(request.accept, _OPENAPI2_PROTOBUF):
                    return self._openapi2_protobuf()
                return self._document("openapi/v2", lambda: openapi.v2(self._resources))
            case ["openapi", "v3", *rest]:
                if _protobuf_alone(request.accept, _OPENAPI3_PROTOBUF):
                    raise not_acceptable(f"{JSON}; OpenAPI v3 is not served as protobuf")
                return self._openapi3("/".join(rest))
        return None

    def _paths(self) -> list[str]:
        """Where there is something to read, for `kubectl get --raw /`."""
        versions = dict.fromkeys(openapi.key(resource) for resource in self._resources)
        found = [f"/{key}" for key in versions] + [f"/apis/{group}" for group in self._groups if group]
        found += [f"/openapi/v3/{key}" for key in versions]
        return sorted([*found, *_OTHER_PATHS])

    def _root(self, word: str, accept: str) -> Response:
        core = word == "api"
        if _wants_aggregated(accept):
            answer = self._document(f"{word}/all", lambda: groups.aggregated(self._resources, core=core))
            return _typed(answer, groups.AGGREGATED)
        if core:
            return self._document("api", groups.api_versions)
        return self._document("apis", lambda: groups.api_group_list(self._resources))

    def _versioned(self, group: str, version: str) -> Response | None:
        rows = [r for r in self._groups[group] if r.kind.version == version]
        if not group or not rows:
            return None
        name = f"{group}/{version}"
        return self._document(f"apis/{name}", lambda: groups.api_resource_list(name, rows))

    def _openapi3(self, path: str) -> Response | None:
        keys = dict.fromkeys(openapi.key(resource) for resource in self._resources)
        if not path:
            return self._document("openapi/v3", lambda: self._index(keys))
        if path not in keys:
            return None
        rows = [r for r in self._resources if openapi.key(r) == path]
        return self._document(f"openapi/v3/{path}", lambda: openapi.v3(rows))

    def _index(self, keys: Iterable[str]) -> dict[str, Any]:
        """Each document's address carries a hash of it, so that clients keep it until it changes."""
        shown = {}
        for key in keys:
            answer = self._openapi3(key)
            assert answer is not None
            digest = hashlib.sha256(answer.body).hexdigest()[:32].upper()
            shown[key] = {"serverRelativeURL": f"/openapi/v3/{key}?hash={digest}"}
        return {"paths": shown}

    def _openapi2_protobuf(self) -> Response:
        """The document that kubectl reads for files of `kind: List`, in the only encoding that it accepts."""
        answer = self._document("openapi/v2 protobuf", lambda: openapi.v2(self._resources), openapi_protobuf.encode)
        return _typed(answer, openapi_protobuf.MEDIA_TYPE)

    def _document(self, name: str, make: Callable[[], Any], encode: Callable[[Any], bytes] = _encode) -> Response:
        if name not in self._packed:
            body = encode(make())
            etag = '"' + hashlib.sha256(body).hexdigest()[:32].upper() + '"'
            self._packed[name] = (gzip.compress(body, 6, mtime=0), etag)
        packed, etag = self._packed[name]
        headers = {"Content-Type": JSON, "ETag": etag, "Cache-Control": "no-cache, private", "Vary": "Accept"}
        return Response(200, gzip.decompress(packed), headers)


def _typed(answer: Response, content_type: str) -> Response:
    return Response(answer.status, answer.body, dict(answer.headers) | {"Content-Type": content_type})


def _wants_aggregated(accept: str) -> bool:
    """Whether the aggregated v2 form is among the accepted types before plain JSON (v2beta1 is not served)."""
    for entry in accept.replace(" ", "").split(","):
        words = entry.split(";")
        if words[0] != JSON:
            continue
        if len(words) == 1:
            return False
        if {"g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"} <= set(words):
            return True
    return False


def _protobuf_alone(accept: str, protobuf: str) -> bool:
    """Whether nothing but protobuf will do; a list that names JSON too gets JSON."""
    entries = [entry.strip().partition(";")[0] for entry in accept.split(",") if entry.strip()]
    return bool(entries) and all(entry.startswith(protobuf) for entry in entries)
