"""Request handler: the whole API server without HTTP. The HTTPS and in-process transports wrap it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tonnage.base.errors import TonnageError
from tonnage.base.observe import metrics
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.selectors import Requirement, Selector
from tonnage.kubernetes.client.transport import PROTOBUF, Request, Response
from tonnage_box.api.remote_command import OpenSession
from tonnage_box.apiserver.access import reviews, token_request
from tonnage_box.apiserver.access.access import ApiAccess
from tonnage_box.apiserver.request import errors, negotiate
from tonnage_box.apiserver.request.negotiate import run_in_thread_if_large
from tonnage_box.apiserver.request.options import DeleteOptions, ListOptions, WriteOptions, flag
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.request.routes import RequestPath, Routes
from tonnage_box.apiserver.request.user import ApiUser
from tonnage_box.apiserver.rest import output, remote_command, subresources
from tonnage_box.apiserver.rest.object_meta import EPHEMERAL_CONTAINERS, STATUS_LIKE
from tonnage_box.apiserver.rest.output import Representation, encode, is_pretty
from tonnage_box.apiserver.rest.reads import Reads
from tonnage_box.apiserver.rest.remote_command import Upgrade
from tonnage_box.apiserver.rest.writes import Writes, Written, existing
from tonnage_box.apiserver.storage.watch import Hub, Watcher

log = logging.getLogger(__name__)
PodLogs = Callable[[str, str, Mapping[str, str]], AsyncIterator[bytes]]
"""(namespace, name, query) -> the log in chunks; raises an ApiError at the first chunk when there is none to show."""
NodeProxy = Callable[[str, str], Awaitable[tuple[str, bytes]]]
"""(node, path) -> content type and content of what the node's kubelet serves there; raises an ApiError."""
Document = Callable[[Request], Awaitable[Response | None]]
"""Answers paths that name no resource (discovery, health), or None."""


@dataclass(frozen=True)
class Stream:
    """A streamed answer of unknown length: chunks of a log."""

    chunks: AsyncIterator[bytes]
    content_type: str = "text/plain"


Answer = Response | Watcher | Stream | Upgrade


@dataclass(frozen=True)
class Sources:
    """Answers that come from other parts of the server.

    documents: paths that name no resource. access: what users may do, reviews and tokens. pod_logs: pods/log.
    pod_streams: pods/exec and pods/attach. node_proxy: nodes/proxy.
    """

    documents: Document
    access: ApiAccess
    pod_logs: PodLogs | None = None
    pod_streams: OpenSession | None = None
    node_proxy: NodeProxy | None = None


class Handler:
    """Answers every request as Kubernetes does; errors are answers too (Status objects)."""

    def __init__(self, hub: Hub, resources: Mapping[str, Resource], writes: Writes, sources: Sources) -> None:
        self._store = writes.store
        self._resources = resources
        self._sources = sources
        self._routes = Routes(resources)
        self._reads = Reads(writes.store, hub, writes.stamps.clock)
        self._writes = writes
        self._bodies = negotiate.Bodies()
        self._counters: dict[tuple[str, str, int], Any] = {}

    async def handle(self, request: Request, user: ApiUser) -> Answer:
        """Answer one request. The caller closes a Watcher in the answer with Hub.close."""
        plural = ""
        answer: Answer
        try:
            self._sources.access.check(user, request)
            documented = await self._sources.documents(request)
            if documented is not None:
                return documented
            place = self._routes.find(request.path)
            plural = place.resource.kind.plural
            answer = await self._dispatch(place, request, user)
        except Exception as error:
            if not isinstance(error, (TonnageError, RecursionError)):
                log.exception("request failed method=%s path=%s", request.method, request.path[:200])
            answer = output.error_response(errors.as_api_error(error))
        if isinstance(answer, Response):
            answer = await _accepted(answer, request)
        self._count(request.method, plural, answer.status if isinstance(answer, Response) else 200)
        return answer

    async def rejected(self, request: Request, user: ApiUser) -> Response | None:
        """The answer to a request that the user may not send, by its method and path alone, else None."""
        try:
            self._sources.access.check(user, request)
        except TonnageError as error:
            answer = output.error_response(errors.as_api_error(error))
            self._count(request.method, "", answer.status)
            return await _accepted(answer, request)
        return None

    def _count(self, method: str, plural: str, code: int) -> None:
        child = self._counters.get((method, plural, code))
        if child is None:
            child = self._counters[method, plural, code] = metrics.API_REQUESTS.labels(method, plural, str(code))
        child.inc()

    async def _dispatch(self, place: RequestPath, request: Request, user: ApiUser) -> Answer:
        if place.subresource not in ("", EPHEMERAL_CONTAINERS, *STATUS_LIKE):
            return await self._subresource(place, request, user)
        match request.method:
            case "GET":
                return await self._get(place, request)
            case "POST" if not place.name:
                return await self._create(place, request, user)
            case "PUT" | "PATCH" if place.name:
                return await self._update(place, request, user)
            case "DELETE" if not place.subresource:
                return await self._delete(place, request, user)
        raise errors.method_not_allowed(f"the server does not allow {request.method} on {request.path[:200]}")

    def _allow(self, place: RequestPath, verb: str) -> None:
        if verb not in place.resource.verbs:
            raise errors.method_not_allowed(f"the server does not allow this method on {place.resource.kind.qualified}")

    async def _get(self, place: RequestPath, request: Request) -> Answer:
        query = request.query
        view = Representation.read(place.resource, request.accept, query, rows=True)
        if place.name and not flag(query, "watch"):
            self._allow(place, "get")
            return output.answer(await self._reads.shown(view, existing(self._store, place)))
        options = ListOptions.read(query, place.resource.field_names)
        if place.name:
            one = Requirement("metadata.name", "In", (place.name,))
            options = replace(options, fields=Selector((one, *options.fields.requirements)))
        if options.watch:
            self._allow(place, "watch")
            return self._reads.watch(place, options, view)
        self._allow(place, "list")
        return output.answer(await self._reads.page(place, options, view), protobuf=view.accepted.is_protobuf)

    async def _create(self, place: RequestPath, request: Request, user: ApiUser) -> Answer:
        resource = place.resource
        self._allow(place, "create")
        if resource.kind.namespaced and place.namespace is None:
            why = f"{resource.kind.qualified} are created in a namespace: name one in the path"
            raise errors.method_not_allowed(why)
        obj, repeated = await self._body(resource, request)
        view = Representation.read(resource, request.accept, request.query)
        if resource.verbs == ("create",):
            review = await reviews.answer(self._sources.access, place, obj, user)
            return output.answer(encode(review), pretty=view.pretty, code=201)
        options = replace(WriteOptions.read(request.query, user), repeated=tuple(repeated))
        return await self._written(view, await self._writes.create(place, obj, options, request.body))

    async def _update(self, place: RequestPath, request: Request, user: ApiUser) -> Answer:
        if request.method == "PATCH":
            self._allow(place, "patch")
            patch = await self._bodies.patch(request.body, request.content_type)
            view = Representation.read(place.resource, request.accept, request.query)
            options = WriteOptions.read(request.query, user)
            return await self._written(view, await self._writes.patch(place, patch, options, len(request.body)))
        self._allow(place, "update")
        obj, repeated = await self._body(place.resource, request)
        view = Representation.read(place.resource, request.accept, request.query)
        options = replace(WriteOptions.read(request.query, user), repeated=tuple(repeated))
        return await self._written(view, await self._writes.update(place, obj, options, request.body))

    async def _body(self, resource: Resource, request: Request) -> tuple[dict[str, Any], list[str]]:
        """The object in a body, and complaints about it. Raises: 400, 413, 415."""
        encoded = negotiate.media_type(request.content_type) != PROTOBUF or resource.is_encoded
        return await self._bodies.checked(request.body, request.content_type, encoded=encoded)

    async def _delete(self, place: RequestPath, request: Request, user: ApiUser) -> Answer:
        resource = place.resource
        view = Representation.read(resource, request.accept, request.query)
        body = await self._bodies.object(request.body, request.content_type) if request.body.strip() else {}
        options = DeleteOptions.read(request.query, body, user)
        if place.name:
            self._allow(place, "delete")
            return await self._written(view, await self._writes.delete(place, options))
        self._allow(place, "deletecollection")
        chosen = ListOptions.read(request.query, resource.field_names)
        if resource.kind.namespaced and place.namespace is None:
            raise errors.method_not_allowed("a collection is deleted in one namespace: name it in the path")
        gone = await self._writes.delete_collection(resource, await self._reads.selected(place, chosen), options)
        return output.answer(await self._reads.rendered(Representation(resource, pretty=view.pretty), gone, {}))

    async def _subresource(self, place: RequestPath, request: Request, user: ApiUser) -> Answer:
        what = (request.method, place.resource.key, place.subresource)
        if what == ("GET", "pods", "log"):
            return self._logs(place, request.query)
        if what[1] == "pods" and place.subresource in remote_command.SUBRESOURCES:
            existing(self._store, place)
            return await remote_command.upgrade(place, request, self._sources.pod_streams)
        if what == ("GET", "nodes", "proxy"):
            return await self._node_proxy(place)
        if place.subresource == "scale":
            return await self._scale(place, request, user)
        if request.method not in ("POST", "PUT"):
            raise errors.method_not_allowed(f"the server does not allow {request.method} on {place.subresource}")
        body = await self._bodies.object(request.body, request.content_type)
        options = WriteOptions.read(request.query, user)
        match what:
            case ("POST", "pods", "binding"):
                await subresources.bind(self._writes, place, body, options)
            case ("POST", "pods", "eviction"):
                budgets = self._resources[kinds.DISRUPTION_BUDGETS.key]
                await subresources.evict(self._writes, budgets, place, body, options)
            case ("POST", "serviceaccounts", "token"):
                issued = await token_request.issue(self._sources.access, place, body)
                return output.answer(encode(issued), pretty=is_pretty(request.query), code=201)
            case ("PUT", "namespaces", "finalize"):
                written = await subresources.finalize(self._writes, place, body, options, len(request.body))
                return await self._written(Representation(place.resource, pretty=is_pretty(request.query)), written)
            case _:
                qualified = place.resource.kind.qualified
                raise errors.not_built(f"{request.method} {qualified}/{place.subresource} is not built here")
        return output.answer(encode(errors.created()), pretty=is_pretty(request.query), code=201)

    async def _scale(self, place: RequestPath, request: Request, user: ApiUser) -> Answer:
        options, pretty, size = WriteOptions.read(request.query, user), is_pretty(request.query), len(request.body)
        if request.method == "GET":
            record = existing(self._store, place)
            obj = output.outward(place.resource, record, record.revision)
            return output.answer(encode(subresources.scale_of(obj)), pretty=pretty)
        if request.method == "PUT":
            body = await self._bodies.object(request.body, request.content_type)
            written = await subresources.update_scale(self._writes, place, lambda _: body, options, size)
        elif request.method == "PATCH":
            patch = await self._bodies.patch(request.body, request.content_type)
            change = subresources.patched_scale(patch)
            written = await subresources.update_scale(self._writes, place, change, options, size)
        else:
            raise errors.method_not_allowed(f"the server does not allow {request.method} on {place.subresource}")
        assert written.obj is not None
        if written.record is not None:
            written.obj["metadata"]["resourceVersion"] = str(written.record.revision)
        return output.answer(encode(subresources.scale_of(written.obj)), pretty=pretty, warnings=written.warnings)

    def _logs(self, place: RequestPath, query: Mapping[str, str]) -> Stream:
        existing(self._store, place)
        if self._sources.pod_logs is None:
            raise errors.not_built("no kubelet here keeps logs")
        return Stream(self._sources.pod_logs(place.namespace or "", place.name, query))

    async def _node_proxy(self, place: RequestPath) -> Response:
        existing(self._store, place)
        if self._sources.node_proxy is None:
            raise errors.not_built("no kubelet here answers")
        content_type, body = await self._sources.node_proxy(place.name, place.rest)
        return Response(200, body, {"Content-Type": content_type})

    async def _written(self, view: Representation, written: Written) -> Response:
        if not written.status and written.record is not None:
            body = await self._reads.shown(view, written.record)
            return output.answer(body, code=written.code, warnings=written.warnings)
        body = written.data
        if not written.status and view.resource.stored_as and written.obj is not None:
            body = encode(view.resource.outward(written.obj))
        size = len(body) if view.pretty else 0
        return await run_in_thread_if_large(
            size, lambda: output.answer(body, pretty=view.pretty, code=written.code, warnings=written.warnings)
        )


async def _accepted(answer: Response, request: Request) -> Response:
    """The answer in protobuf, where the client prefers it."""
    if not negotiate.accepts_protobuf(request.accept):
        return answer
    try:
        return await run_in_thread_if_large(len(answer.body), output.as_protobuf, answer)
    except Exception:  # JSON has all that is to be said, and its type tells the client
        log.exception("answer not encoded as protobuf path=%s", request.path[:200])
        return answer
