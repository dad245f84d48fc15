"""Request handler: the whole API server without HTTP. The HTTPS and in-process transports wrap it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from tonnage.api.selectors import Requirement, Selector
from tonnage.box.apiserver.request import errors, negotiate
from tonnage.box.apiserver.request.negotiate import Accepted, apart
from tonnage.box.apiserver.request.options import DeleteOptions, ListOptions, WriteOptions, flag
from tonnage.box.apiserver.request.resource import Resource
from tonnage.box.apiserver.request.routes import RequestPath, Routes
from tonnage.box.apiserver.rest import output, reviews, scale, subresources
from tonnage.box.apiserver.rest.eviction import EvictionHandler
from tonnage.box.apiserver.rest.object_meta import Stamps
from tonnage.box.apiserver.rest.reads import Reads
from tonnage.box.apiserver.rest.writes import Writes, Written
from tonnage.box.apiserver.storage.store import Store
from tonnage.box.apiserver.storage.watch import Hub, Watcher
from tonnage.errors import ApiError, TonnageError
from tonnage.kube.transport import JSON, Request, Response
from tonnage.observe import metrics

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_WARNINGS, _WARNING_LENGTH = 16, 256
"""What fits into the 4 KiB that Kubernetes allows the warnings of an answer."""
_JSON_HEADERS = {"Content-Type": JSON, "Cache-Control": "no-cache, private"}

PodLogs = Callable[[str, str, Mapping[str, str]], AsyncIterator[bytes]]
"""(namespace, name, query) -> the log in chunks; raises an ApiError at the first chunk when there is none to show."""
Document = Callable[[Request], Awaitable[Response | None]]
"""Answers paths that name no resource (discovery, health), or None."""


@dataclass(frozen=True)
class Stream:
    """A streamed answer of unknown length: chunks of a log."""

    chunks: AsyncIterator[bytes]
    content_type: str = "text/plain"


Answer = Response | Watcher | Stream


class Handler:
    """Answers every request as Kubernetes does; errors are answers too (Status objects)."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        resources: Mapping[str, Resource],
        stamps: Stamps,
        *,
        documents: Document,
        pod_logs: PodLogs | None = None,
        token_user: reviews.TokenCheck = lambda token: None,
        used: Callable[[str], Awaitable[Mapping[str, int]]] | None = None,
    ) -> None:
        self._stamps = stamps
        self._routes = Routes(resources)
        self._reads = Reads(store, hub, stamps.clock)
        self._writes = Writes(store, stamps, used)
        self._evictions = EvictionHandler(self._writes, store, resources, stamps)
        self._bodies = negotiate.Bodies()
        self._documents = documents
        self._pod_logs = pod_logs
        self._token_user = token_user
        self._counters: dict[tuple[str, str, int], Any] = {}

    async def handle(self, request: Request, user: str) -> Answer:
        """Answer one request. The caller closes a Watcher in the answer with Hub.close."""
        plural = ""
        answer: Answer
        try:
            documented = await self._documents(request)
            if documented is not None:
                return documented
            place = self._routes.find(request.path)
            plural = place.resource.kind.plural
            answer = await self._dispatch(place, request, user)
        except Exception as error:
            if not isinstance(error, (TonnageError, RecursionError)):
                log.exception("request failed method=%s path=%s", request.method, request.path[:200])
            answer = refusal(errors.as_api_error(error))
        self._count(request.method, plural, answer.status if isinstance(answer, Response) else 200)
        return answer

    def _count(self, method: str, plural: str, code: int) -> None:
        child = self._counters.get((method, plural, code))
        if child is None:
            child = self._counters[method, plural, code] = metrics.API_REQUESTS.labels(method, plural, str(code))
        child.inc()

    async def _dispatch(self, place: RequestPath, request: Request, user: str) -> Answer:
        if place.subresource and place.subresource != "status":
            return await self._subresource(place, request, user)
        match request.method:
            case "GET":
                return await self._get(place, request)
            case "POST" if not place.name:
                return await self._create(place, request, user)
            case "PUT" if place.name:
                return await self._update(place, request, user)
            case "PATCH" if place.name:
                return await self._patch(place, request, user)
            case "DELETE" if not place.subresource:
                return await self._delete(place, request, user)
        raise errors.method_not_allowed(f"the server does not allow {request.method} on {request.path[:200]}")

    def _allow(self, place: RequestPath, verb: str) -> None:
        if verb not in place.resource.verbs:
            raise errors.method_not_allowed(f"the server does not allow this method on {place.resource.qualified}")

    async def _get(self, place: RequestPath, request: Request) -> Answer:
        resource, query = place.resource, request.query
        accepted = negotiate.accepted(request.accept)
        included = output.include(query.get("includeObject", ""))
        if place.name and not flag(query, "watch"):
            self._allow(place, "get")
            record = self._reads.record(resource, place.namespace or "", place.name)
            body = await self._reads.shown(resource, record, accepted, included, pretty=_is_pretty(query))
            return _answer(body, {})
        options = ListOptions.read(query, resource.field_names)
        if place.name:
            one = Requirement("metadata.name", "In", (place.name,))
            options = replace(options, fields=Selector((one, *options.fields.requirements)))
        if options.watch:
            self._allow(place, "watch")
            return self._reads.watch(resource, place.namespace, options, accepted, included)
        self._allow(place, "list")
        pretty = _is_pretty(query)
        body = await self._reads.page(resource, place.namespace, options, accepted, included, pretty=pretty)
        return _answer(body, {})

    async def _create(self, place: RequestPath, request: Request, user: str) -> Answer:
        resource = place.resource
        self._allow(place, "create")
        if resource.kind.namespaced and place.namespace is None:
            raise errors.method_not_allowed(f"{resource.qualified} are created in a namespace: name one in the path")
        obj, repeated = await self._bodies.checked(request.body, request.content_type)
        accepted = negotiate.accepted(request.accept)
        if resource.verbs == ("create",):
            return _answer(_encode(reviews.answer(resource, obj, user, self._token_user)), request.query, code=201)
        options = replace(WriteOptions.read(request.query, user), repeated=tuple(repeated))
        written = await self._writes.create(resource, place.namespace or "", obj, options, request.body)
        return await self._written(resource, written, accepted, request)

    async def _update(self, place: RequestPath, request: Request, user: str) -> Answer:
        self._allow(place, "update")
        obj, repeated = await self._bodies.checked(request.body, request.content_type)
        accepted = negotiate.accepted(request.accept)
        options = replace(WriteOptions.read(request.query, user), repeated=tuple(repeated))
        written = await self._writes.update(
            place.resource,
            place.namespace or "",
            place.name,
            obj,
            options,
            subresource=place.subresource,
            body=request.body,
        )
        return await self._written(place.resource, written, accepted, request)

    async def _patch(self, place: RequestPath, request: Request, user: str) -> Answer:
        self._allow(place, "patch")
        patch = await self._bodies.patch(request.body, request.content_type)
        accepted = negotiate.accepted(request.accept)
        options = WriteOptions.read(request.query, user)
        written = await self._writes.patch(
            place.resource,
            place.namespace or "",
            place.name,
            patch,
            options,
            subresource=place.subresource,
            size=len(request.body),
        )
        return await self._written(place.resource, written, accepted, request)

    async def _delete(self, place: RequestPath, request: Request, user: str) -> Answer:
        accepted = negotiate.accepted(request.accept)
        body = await self._bodies.object(request.body, request.content_type) if request.body.strip() else {}
        options = DeleteOptions.read(request.query, body, user)
        if place.name:
            self._allow(place, "delete")
            written = await self._writes.delete(place.resource, place.namespace or "", place.name, options)
            return await self._written(place.resource, written, accepted, request)
        self._allow(place, "deletecollection")
        chosen = ListOptions.read(request.query, place.resource.field_names)
        if place.resource.kind.namespaced and place.namespace is None:
            raise errors.method_not_allowed("a collection is deleted in one namespace: name it in the path")
        records = await self._reads.selected(place.resource, place.namespace, chosen)
        gone = await self._writes.delete_collection(place.resource, records, options)
        pretty = _is_pretty(request.query)
        return _answer(await self._reads.rendered(place.resource, Accepted(), "", gone, {}, pretty=pretty), {})

    async def _subresource(self, place: RequestPath, request: Request, user: str) -> Answer:
        resource, namespace, name = place.resource, place.namespace or "", place.name
        what = (request.method, resource.key, place.subresource)
        if what == ("GET", "pods", "log"):
            return self._logs(place, request.query)
        if place.subresource == "scale":
            return await self._scale(place, request, user)
        if request.method not in ("POST", "PUT"):
            raise errors.method_not_allowed(f"the server does not allow {request.method} on {place.subresource}")
        body = await self._bodies.object(request.body, request.content_type)
        options = WriteOptions.read(request.query, user)
        match what:
            case ("POST", "pods", "binding"):
                await subresources.bind(self._writes, self._stamps, resource, namespace, name, body, options)
                return _answer(_encode(subresources.created()), request.query, code=201)
            case ("POST", "pods", "eviction"):
                await self._evictions.evict(namespace, name, body, options)
                return _answer(_encode(subresources.created()), request.query, code=201)
            case ("PUT", "namespaces", "finalize"):
                written = await subresources.finalize(self._writes, resource, name, body, options)
                return await self._written(resource, written, Accepted(), request)
        raise ApiError(
            f"{request.method} {resource.qualified}/{place.subresource} is not built here",
            code=501,
            reason="NotImplemented",
        )

    async def _scale(self, place: RequestPath, request: Request, user: str) -> Answer:
        resource, namespace, name = place.resource, place.namespace or "", place.name
        options = WriteOptions.read(request.query, user)
        if request.method == "GET":
            record = self._reads.record(resource, namespace, name)
            obj = output.outward(resource, record, record.revision)
            return _answer(_encode(scale.scale_of(obj)), request.query)
        if request.method == "PUT":
            body = await self._bodies.object(request.body, request.content_type)
            written = await scale.update(self._writes, resource, namespace, name, body, options)
        elif request.method == "PATCH":
            change = await self._bodies.patch(request.body, request.content_type)
            written = await scale.patch(self._writes, resource, namespace, name, change, options)
        else:
            raise errors.method_not_allowed(f"the server does not allow {request.method} on {place.subresource}")
        assert written.obj is not None
        if written.record is not None:
            written.obj["metadata"]["resourceVersion"] = str(written.record.revision)
        return _answer(_encode(scale.scale_of(written.obj)), request.query, warnings=written.warnings)

    def _logs(self, place: RequestPath, query: Mapping[str, str]) -> Stream:
        self._reads.record(place.resource, place.namespace or "", place.name)
        if self._pod_logs is None:
            raise ApiError("no kubelet here keeps logs", code=501, reason="NotImplemented")
        return Stream(self._pod_logs(place.namespace or "", place.name, query))

    async def _written(self, resource: Resource, written: Written, accepted: Accepted, request: Request) -> Response:
        body, query = written.data, request.query
        if not written.status and written.record is not None:
            included = output.include("")
            body = await self._reads.shown(resource, written.record, accepted, included, pretty=_is_pretty(query))
            query = {}
        elif not written.status and resource.outward is not None and written.obj is not None:
            body = _encode(resource.outward(written.obj))
        size = len(body) if _is_pretty(query) else 0
        return await apart(size, partial(_answer, body, query, code=written.code, warnings=written.warnings))


def _is_pretty(query: Mapping[str, str]) -> bool:
    return query.get("pretty", "") in ("true", "1")


def _answer(body: bytes, query: Mapping[str, str], *, code: int = 200, warnings: list[str] | None = None) -> Response:
    if _is_pretty(query):
        body = output.prettied(body)
    if not warnings:
        return Response(code, body, _JSON_HEADERS)
    shown = [w[:_WARNING_LENGTH] for w in warnings[:_WARNINGS]]
    quoted = (w.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for w in shown)
    return Response(code, body, _JSON_HEADERS | {"Warning": ", ".join(f'299 - "{w}"' for w in quoted)})


def refusal(error: ApiError) -> Response:
    """An error as an answer."""
    headers = dict(_JSON_HEADERS)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return Response(error.code, errors.encode(error), headers)
