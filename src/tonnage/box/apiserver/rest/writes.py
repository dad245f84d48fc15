"""REST verbs create, update, patch, delete and deletecollection, over the hooks of a resource's row."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from tonnage.aio.tasks import KeyedLocks
from tonnage.api import patch as patches
from tonnage.api import strategic
from tonnage.box.apiserver.admission import quota
from tonnage.box.apiserver.request import errors
from tonnage.box.apiserver.request.admission_context import RequestContext
from tonnage.box.apiserver.request.negotiate import (
    MAX_BODY,
    MAX_INSIDE,
    MAX_VALUES,
    apart,
    check_depth,
    count_values,
    drop_nulls,
    has_null,
)
from tonnage.box.apiserver.request.options import DeleteOptions, WriteOptions
from tonnage.box.apiserver.request.resource import Obj, Operation, Resource
from tonnage.box.apiserver.rest import object_meta
from tonnage.box.apiserver.rest.object_meta import Stamps
from tonnage.box.apiserver.schema import decode
from tonnage.box.apiserver.storage.store import ObjectKey, Stale, Store, StoredObject
from tonnage.errors import ApiConflict, ApiError, ApiInvalid, ApiNotFound, Invalid
from tonnage.kube.transport import JSON_PATCH, MERGE_PATCH

_ATTEMPTS = 20
_NAMES = 8
_TOGETHER = 32
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
Change = Callable[[Obj], Obj]


@dataclass
class Written:
    """Result of a write: the object as stored and encoded, or a Status."""

    data: bytes
    obj: Obj | None = None
    record: StoredObject | None = None
    code: int = 200
    warnings: list[str] = field(default_factory=list)
    status: bool = False


class Writes:
    """The writing verbs. A client may retry each after an error that says so (409, 503, 507)."""

    def __init__(
        self, store: Store, stamps: Stamps, used: Callable[[str], Awaitable[Mapping[str, int]]] | None = None
    ) -> None:
        """used answers what a namespace uses of its quotas; without it that is counted at each question."""
        self._store = store
        self._used = used or partial(quota.count, store, quota.COUNTED)
        self._stamps = stamps
        self._locks = KeyedLocks()

    def _context(self, operation: Operation, key: ObjectKey, subresource: str, user: str) -> RequestContext:
        return RequestContext(
            self._store, self._locks, operation, key, subresource, user, self._stamps.now(), self._used
        )

    # create

    async def create(
        self, resource: Resource, namespace: str, obj: Obj, options: WriteOptions, body: bytes = b""
    ) -> Written:
        """Store a new object. Raises 400, 409 (taken), 422 and what admission raises."""
        name, warnings = await apart(len(body), self._begin, resource, namespace, obj, options, body)
        key = ObjectKey(resource.collection, namespace, name)
        context = self._context("CREATE", key, "", options.user)
        try:
            await resource.admit(context, obj, None, "CREATE")
            stored = resource.inward(obj) if resource.inward is not None else obj
            if options.dry_run:
                if self._store.get(key) is not None:
                    raise self._taken(resource, name)
                return Written(_encode(stored), stored, code=201, warnings=warnings + context.warnings)
            record = await self._store.put(key, stored, 0)
        except Stale:
            raise self._taken(resource, name) from None
        finally:
            await context.close()
        return Written(record.data, stored, record, 201, warnings + context.warnings)

    def _begin(
        self, resource: Resource, namespace: str, obj: Obj, options: WriteOptions, body: bytes
    ) -> tuple[str, list[str]]:
        """Make obj complete and check it; its name, and the warnings about its fields."""
        object_meta.metadata(obj)
        object_meta.check_kind(obj, resource)
        warnings = check_fields(resource, obj, options, body)
        generated = not obj["metadata"].get("name")
        name = object_meta.begin(obj, resource, namespace, self._stamps)
        for _ in range(_NAMES if generated else 0):
            if self._store.get(ObjectKey(resource.collection, namespace, name)) is None:
                break
            name = obj["metadata"]["name"] = obj["metadata"]["generateName"] + self._stamps.suffix()
        resource.prepare_create(obj, None)
        resource.default(obj)
        object_meta.first_generation(obj)
        if len(body) > MAX_INSIDE:
            _check_size(obj, 0, 0)
        _refuse(resource, name, obj, None, "")
        return name, warnings

    def _taken(self, resource: Resource, name: str) -> Exception:
        return errors.already_exists(resource.qualified, resource.kind.group, resource.kind.plural, name)

    # update and patch

    async def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: Obj,
        options: WriteOptions,
        *,
        subresource: str = "",
        body: bytes = b"",
    ) -> Written:
        """Replace an object (PUT). Without a resourceVersion it replaces any version. Raises 404, 409, 422."""

        def check() -> tuple[list[str], bytes]:
            object_meta.check_name(name, obj, resource, namespace)
            warnings = check_fields(resource, obj, options, body)
            data = _encode(obj)
            obj.clear()  # freed here: large objects take long to free, too
            return warnings, data

        warnings, data = await apart(len(body), check)

        def change(old: Obj) -> Obj:
            return _decode(data)

        return await self._change(resource, namespace, name, change, options, subresource, warnings, len(body))

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: tuple[str, Any],
        options: WriteOptions,
        *,
        subresource: str = "",
        size: int = 0,
    ) -> Written:
        """Patch an object: media type and value of the patch, bytes of its text. Raises 400, 404, 409 and 422."""
        warnings: list[str] = []
        if patch[0] == JSON_PATCH and patches.copies(patch[1]):  # a few bytes may become 3 MiB
            size += patches.MAX_COPIED

        def apply(old: Obj) -> Obj:
            new = apply_patch(resource, old, patch)
            object_meta.check_name(name, new, resource, namespace)
            warnings[:] = check_fields(resource, new, options, b"")
            return new

        return await self._change(resource, namespace, name, apply, options, subresource, warnings, size)

    async def modify(
        self, resource: Resource, namespace: str, name: str, change: Change, options: WriteOptions, *, subresource: str
    ) -> Written:
        """Change an object by a function (binding); it is given a copy of its own and may raise."""
        return await self._change(resource, namespace, name, change, options, subresource, [])

    async def _change(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Change,
        options: WriteOptions,
        subresource: str,
        warnings: list[str],
        size: int = 0,
    ) -> Written:
        """Read, change, write; repeat if another request has written in between."""
        key = ObjectKey(resource.collection, namespace, name)
        for _ in range(_ATTEMPTS):
            record = self._existing(resource, key)
            worked_on = size + len(record.data)
            old = await apart(worked_on, self._served, resource, record)
            new = await apart(worked_on, lambda record=record: change(self._served(resource, record)))
            self._check_version(resource, record, new)
            context = self._context("UPDATE", key, subresource, options.user)
            try:
                written = await self._replace(resource, record, old, new, options, context, worked_on)
            except Stale:
                continue
            finally:
                await context.close()
            written.warnings = warnings + context.warnings
            await apart(worked_on, old.clear)
            return written
        raise errors.conflict(resource.qualified, resource.kind.group, resource.kind.plural, name, _MODIFIED)

    def _existing(self, resource: Resource, key: ObjectKey) -> StoredObject:
        record = self._store.get(key)
        if record is None:
            raise errors.not_found(resource.qualified, resource.kind.group, resource.kind.plural, key.name)
        return record

    def _served(self, resource: Resource, record: StoredObject) -> Obj:
        obj = record.decode()
        return resource.outward(obj) if resource.outward is not None else obj

    def _check_version(self, resource: Resource, record: StoredObject, new: Obj) -> None:
        version = new["metadata"].get("resourceVersion")
        if version and version not in ("0", str(record.revision)):
            kind = resource.kind
            raise errors.conflict(resource.qualified, kind.group, kind.plural, record.key.name, _MODIFIED)

    async def _replace(
        self,
        resource: Resource,
        record: StoredObject,
        old: Obj,
        new: Obj,
        options: WriteOptions,
        context: RequestContext,
        size: int,
    ) -> Written:
        subresource, name = context.subresource, record.key.name

        def complete() -> None:
            object_meta.carry_over(new, old, resource, subresource)
            if not subresource:
                resource.prepare_update(new, old)
            resource.default(new)
            if not subresource:
                object_meta.count_generation(new, old)
            if size > MAX_INSIDE:
                _check_size(new, count_values(old), len(record.data), subresource)
            _refuse(resource, name, new, old, subresource)

        await apart(size, complete)
        await resource.admit(context, new, old, "UPDATE")
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        stored = resource.inward(new) if resource.inward is not None else new
        if await apart(size, lambda: new == old):
            return Written(record.data, stored, record)
        if options.dry_run:
            return Written(_encode(stored), stored)
        if object_meta.ended(stored):
            written = await self._store.remove(record.key, stored, record.revision)
        else:
            written = await self._store.put(record.key, stored, record.revision)
        return Written(written.data, stored, written)

    # delete

    async def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions) -> Written:
        """Delete an object, or take the next step of its deletion. Raises 404 and 409 (preconditions)."""
        key = ObjectKey(resource.collection, namespace, name)
        for _ in range(_ATTEMPTS):
            record = self._existing(resource, key)
            context = self._context("DELETE", key, "", options.user)
            try:
                return await self._delete(resource, record, options, context)
            except Stale:
                continue
            finally:
                await context.close()
        raise errors.conflict(resource.qualified, resource.kind.group, resource.kind.plural, name, _MODIFIED)

    async def _delete(
        self, resource: Resource, record: StoredObject, options: DeleteOptions, context: RequestContext
    ) -> Written:
        obj, admitted = await apart(len(record.data), lambda: (record.decode(), record.decode()))
        _check_preconditions(resource, obj, options)
        await resource.admit(context, admitted, admitted, "DELETE")
        await apart(len(record.data), admitted.clear)
        fate = object_meta.delete(obj, options, resource, self._stamps)
        if fate == "wait":
            return Written(record.data, obj, record, warnings=context.warnings)
        if options.dry_run:
            return Written(_encode(obj), obj, warnings=context.warnings)
        if fate == "mark":
            marked = await self._store.put(record.key, obj, record.revision)
            return Written(marked.data, obj, marked, warnings=context.warnings)
        gone = await self._store.remove(record.key, obj, record.revision)
        if resource.graceful:
            return Written(gone.data, obj, gone, warnings=context.warnings)
        kind, meta = resource.kind, obj["metadata"]
        answer = errors.success(record.key.name, kind.group, kind.plural, meta["uid"])
        return Written(_encode(answer), answer, warnings=context.warnings, status=True)

    async def delete_collection(
        self, resource: Resource, records: Iterable[StoredObject], options: DeleteOptions
    ) -> list[StoredObject]:
        """Delete each of the objects; ignores those that are deleted meanwhile. Returns the objects."""
        done = []

        async def one(record: StoredObject) -> None:
            with suppress(ApiNotFound):
                await self.delete(resource, record.key.namespace, record.key.name, options)
                done.append(record)

        waiting = iter(records)
        while some := list(itertools.islice(waiting, _TOGETHER)):  # their writes share commits
            results = await asyncio.gather(*map(one, some), return_exceptions=True)
            for failure in results:
                if failure is not None:
                    raise failure
        return done


def check_fields(resource: Resource, obj: Obj, options: WriteOptions, body: bytes) -> list[str]:
    """Bring obj into normal form and answer the warnings about its fields. Raises a 400 under strict validation."""
    complaints = list(resource.unknown(obj)) if resource.unknown is not None else []
    if body and options.field_validation in ("Strict", "Warn"):
        complaints += decode.duplicates(body)
    if not (complaints or options.repeated) or options.field_validation == "Ignore":
        return []
    if options.field_validation == "Strict":
        kind = resource.kind
        if options.repeated:  # as Go's parser prints its errors
            complaints.insert(0, "yaml: unmarshal errors:" + "".join(f"\n  {line}" for line in options.repeated))
        raise errors.bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {', '.join(complaints)}"
        )
    return [*options.repeated, *complaints]


def apply_patch(resource: Resource, old: Obj, patch: tuple[str, Any]) -> Obj:
    """The patched object, without nulls. Raises 400 and 422."""
    content_type, value = patch
    try:
        if content_type == JSON_PATCH:
            new = patches.apply_json_patch(old, value)
        elif content_type == MERGE_PATCH:
            if not isinstance(value, dict):
                raise Invalid("a merge patch of an object is an object")
            new = patches.merge(old, value)
        else:
            new = strategic.apply(old, value, resource.kind.kind)
    except ApiInvalid as error:
        kind, name = resource.kind, str(old["metadata"]["name"])
        raise ApiInvalid(error.message, group=kind.group, kind=kind.kind, name=name) from None
    if not isinstance(new, dict):
        raise errors.bad_request("the patch does not leave an object")
    check_depth(new)
    if content_type == JSON_PATCH and count_values(new) > max(2 * MAX_VALUES, count_values(old)):  # copies
        raise _too_large(f"more than {2 * MAX_VALUES} keys and values")
    if has_null(value):  # what is stored has none
        drop_nulls(new)
    return new


def _check_size(new: Obj, values: int, size: int, subresource: str = "") -> None:
    """An object has no more than MAX_VALUES and MAX_BODY bytes; one that had more does not grow. Raises a 413.

    values, size: of what there was. Admission may add to a new object, and then its finalizers must still come off. Its
    controllers may add as much: without space for its status, no controller could finish it.
    """
    times = 2 if subresource else 1
    if count_values(new) > max(MAX_VALUES * times, values):
        raise _too_large(f"more than {MAX_VALUES * times} keys and values")
    if len(_encode(new)) > max(MAX_BODY * times, size):
        raise _too_large(f"more than {MAX_BODY * times} bytes")


def _too_large(what: str) -> ApiError:
    message = f"Request entity too large: the object would have {what}, with its defaults"
    return ApiError(message, code=413, reason="RequestEntityTooLarge")


def _refuse(resource: Resource, name: str, new: Obj, old: Obj | None, subresource: str) -> None:
    causes = resource.validate(new, old, subresource=subresource)
    if causes:
        raise errors.invalid(resource.kind.group, resource.kind.kind, name, causes)


def _check_preconditions(resource: Resource, obj: Obj, options: DeleteOptions) -> None:
    meta = obj["metadata"]
    for word, wanted, found in (
        ("UID", options.uid, meta["uid"]),
        ("ResourceVersion", options.resource_version, meta["resourceVersion"]),
    ):
        if wanted is not None and wanted != found:
            raise ApiConflict(
                f'Operation cannot be fulfilled on {resource.qualified} "{meta["name"]}": Precondition failed: '
                f"{word} in precondition: {wanted}, {word} in object meta: {found}",
                group=resource.kind.group,
                kind=resource.kind.plural,
                name=meta["name"],
            )
