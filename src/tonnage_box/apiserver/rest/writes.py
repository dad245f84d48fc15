"""REST verbs create, update, patch, delete and deletecollection, over the hooks of a resource's row."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from tonnage.base.aio.tasks import KeyedLocks
from tonnage.base.errors import ApiError, ApiInvalidError, ApiNotFoundError, InvalidError
from tonnage.kubernetes.client.transport import JSON_PATCH, MERGE_PATCH
from tonnage_box.api import patch as patches
from tonnage_box.api import strategic
from tonnage_box.apiserver.request import errors, negotiate
from tonnage_box.apiserver.request.admission_context import AccessControl, AdmissionContext, Operation, Used
from tonnage_box.apiserver.request.options import DeleteOptions, WriteOptions
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.request.routes import RequestPath
from tonnage_box.apiserver.request.user import ApiUser
from tonnage_box.apiserver.rest import object_meta
from tonnage_box.apiserver.rest.object_meta import Stamps
from tonnage_box.apiserver.schema import decode
from tonnage_box.apiserver.storage.store import Obj, ObjectKey, StaleError, Store, StoredObject

_ATTEMPTS = 20
_NAMES = 8
_TOGETHER = 32
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
Change = Callable[[Obj], Obj]
Patch = tuple[str, Any]
"""Media type and value."""


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

    def __init__(self, store: Store, stamps: Stamps, used: Used, access: AccessControl) -> None:
        self.store = store
        self.stamps = stamps
        self._access = access
        self._admission = partial(AdmissionContext, store, KeyedLocks(), used)

    def _context(self, operation: Operation, place: RequestPath, user: ApiUser) -> AdmissionContext:
        return self._admission(operation, place.key, place.subresource, user, self.stamps.now(), self._access)

    # create

    async def create(self, place: RequestPath, obj: Obj, options: WriteOptions, body: bytes = b"") -> Written:
        """Store a new object. Raises: 400, 409 (taken), 422 and what admission raises."""
        resource, namespace = place.resource, place.namespace or ""
        name, warnings = await negotiate.run_in_thread_if_large(
            len(body), self._begin, resource, namespace, obj, options, body
        )
        place = RequestPath(resource, namespace, name)
        try:
            async with self._context("CREATE", place, options.user) as context:
                await resource.admit(context, obj, None)
                stored = resource.inward(obj)
                if not options.dry_run:
                    record = await self.store.put(place.key, stored, 0)
                    return Written(record.data, stored, record, 201, warnings)
        except StaleError:
            raise errors.already_exists(resource.kind, name) from None
        if self.store.get(place.key) is not None:
            raise errors.already_exists(resource.kind, name)
        return Written(_encode(stored), stored, code=201, warnings=warnings)

    def _begin(
        self, resource: Resource, namespace: str, obj: Obj, options: WriteOptions, body: bytes
    ) -> tuple[str, list[str]]:
        """Make obj complete and check it; its name, and the warnings about its fields."""
        object_meta.metadata(obj)
        object_meta.check_kind(obj, resource)
        warnings = check_fields(resource, obj, options, body)
        generated = not obj["metadata"].get("name")
        name = object_meta.begin(obj, resource, namespace, self.stamps)
        for _ in range(_NAMES if generated else 0):
            if self.store.get(ObjectKey(resource.collection, namespace, name)) is None:
                break
            name = obj["metadata"]["name"] = obj["metadata"]["generateName"] + self.stamps.suffix()
        resource.prepare(obj, None)
        resource.default(obj)
        warnings += _resource_warnings(resource, obj, None)
        object_meta.first_generation(obj, resource)
        if len(body) > negotiate.MAX_INSIDE:
            _check_size(obj, 0, 0)
        _reject(resource, name, obj, None, "")
        return name, warnings

    # update and patch

    async def update(self, place: RequestPath, obj: Obj, options: WriteOptions, body: bytes = b"") -> Written:
        """Replace an object (PUT). Without a resourceVersion it replaces any version. Raises: 404, 409, 422."""

        def check() -> tuple[list[str], bytes]:
            object_meta.check_name(obj, place)
            warnings = check_fields(place.resource, obj, options, body)
            data = _encode(obj)
            obj.clear()  # freed here: large objects take long to free, too
            return warnings, data

        warnings, data = await negotiate.run_in_thread_if_large(len(body), check)
        return await self._change(place, lambda old: _decode(data), options, warnings, len(body))

    async def patch(self, place: RequestPath, patch: Patch, options: WriteOptions, size: int = 0) -> Written:
        """Patch an object; size: bytes of the patch's text. Raises: 400, 404, 409 and 422."""
        warnings: list[str] = []
        if patch[0] == JSON_PATCH and patches.copies(patch[1]):  # a few bytes may become 3 MiB
            size += patches.MAX_COPIED

        def apply(old: Obj) -> Obj:
            new = apply_patch(place.resource, old, patch)
            object_meta.check_name(new, place)
            warnings[:] = check_fields(place.resource, new, options, b"")
            return new

        return await self._change(place, apply, options, warnings, size)

    async def modify(self, place: RequestPath, change: Change, options: WriteOptions, size: int = 0) -> Written:
        """Change an object by a function (binding); it is given a copy of its own and may raise.

        size: bytes that the function works on besides the object's.
        """
        return await self._change(place, change, options, [], size)

    async def _change(
        self, place: RequestPath, change: Change, options: WriteOptions, warnings: list[str], size: int = 0
    ) -> Written:
        """Read, change, write; repeat if another request has written in between."""
        resource = place.resource
        for _ in range(_ATTEMPTS):
            record = existing(self.store, place)
            worked_on = size + len(record.data)
            old, new = await negotiate.run_in_thread_if_large(worked_on, _before_and_after, resource, record, change)
            version = new["metadata"].get("resourceVersion")
            if version and version not in ("0", str(record.revision)):
                break
            async with self._context("UPDATE", place, options.user) as context:
                try:
                    written = await self._replace(place, record, old, new, context, worked_on, dry_run=options.dry_run)
                except StaleError:
                    continue
            written.warnings = warnings
            written.warnings += await negotiate.run_in_thread_if_large(worked_on, _warn, place, new, old)
            return written
        raise errors.conflict(resource.kind, place.name, _MODIFIED)

    async def _replace(
        self,
        place: RequestPath,
        record: StoredObject,
        old: Obj,
        new: Obj,
        context: AdmissionContext,
        size: int,
        *,
        dry_run: bool,
    ) -> Written:
        resource, subresource = place.resource, place.subresource

        def complete() -> None:
            object_meta.carry_over(new, old, resource, subresource)
            if not subresource:
                resource.prepare(new, old)
            resource.default(new)
            if subresource in ("", object_meta.EPHEMERAL_CONTAINERS):
                object_meta.count_generation(new, old, resource)
            if size > negotiate.MAX_INSIDE:
                _check_size(new, negotiate.count_values(old), len(record.data), subresource)
            _reject(resource, place.name, new, old, subresource)

        await negotiate.run_in_thread_if_large(size, complete)
        await resource.admit(context, new, old)
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        stored = resource.inward(new)
        if await negotiate.run_in_thread_if_large(size, lambda: new == old):
            return Written(record.data, stored, record)
        if dry_run:
            return Written(_encode(stored), stored)
        write = self.store.remove if object_meta.ended(stored) else self.store.put
        written = await write(record.key, stored, record.revision)
        return Written(written.data, stored, written)

    # delete

    async def delete(self, place: RequestPath, options: DeleteOptions) -> Written:
        """Delete an object, or take the next step of its deletion. Raises: 404 and 409 (preconditions)."""
        for _ in range(_ATTEMPTS):
            record = existing(self.store, place)
            async with self._context("DELETE", place, options.user) as context:
                with suppress(StaleError):
                    written = await self._delete(place.resource, record, options, context)
                    written.warnings += [place.resource.delete_warning] if place.resource.delete_warning else []
                    return written
        raise errors.conflict(place.resource.kind, place.name, _MODIFIED)

    async def _delete(
        self, resource: Resource, record: StoredObject, options: DeleteOptions, context: AdmissionContext
    ) -> Written:
        obj, admitted = await negotiate.run_in_thread_if_large(
            len(record.data), lambda: (record.decode(), record.decode())
        )
        _check_preconditions(resource, obj, options)
        await resource.admit(context, admitted, admitted)
        await negotiate.run_in_thread_if_large(len(record.data), admitted.clear)
        fate = object_meta.delete(obj, options, resource, self.stamps)
        if fate == "wait":
            return Written(record.data, obj, record)
        if options.dry_run:
            return Written(_encode(obj), obj)
        write = self.store.put if fate == "mark" else self.store.remove
        written = await write(record.key, obj, record.revision)
        if fate == "mark" or resource.shows_deleted:
            return Written(written.data, obj, written)
        answer = errors.success(record.key.name, resource.kind, obj["metadata"]["uid"])
        return Written(_encode(answer), answer, status=True)

    async def delete_collection(
        self, resource: Resource, records: Iterable[StoredObject], options: DeleteOptions
    ) -> list[StoredObject]:
        """Delete each of the objects; ignores those that are deleted meanwhile. Returns the objects."""
        done = []

        async def one(record: StoredObject) -> None:
            with suppress(ApiNotFoundError):
                await self.delete(RequestPath(resource, record.key.namespace, record.key.name), options)
                done.append(record)

        waiting = iter(records)
        while some := list(itertools.islice(waiting, _TOGETHER)):  # their writes share commits
            results = await asyncio.gather(*map(one, some), return_exceptions=True)
            for failure in results:
                if failure is not None:
                    raise failure
        return done


def existing(store: Store, place: RequestPath) -> StoredObject:
    """The object that a path names. Raises: a 404."""
    record = store.get(place.key)
    if record is None:
        raise errors.not_found(place.resource.kind, place.name)
    return record


def _served(resource: Resource, record: StoredObject) -> Obj:
    return resource.outward(record.decode())


def _before_and_after(resource: Resource, record: StoredObject, change: Change) -> tuple[Obj, Obj]:
    return _served(resource, record), change(_served(resource, record))


def _warn(place: RequestPath, new: Obj, old: Obj) -> list[str]:
    """Warnings about a written object. The old one is freed: large objects take long to free, too."""
    warnings = [] if place.subresource else _resource_warnings(place.resource, new, old)
    old.clear()
    return warnings


def _resource_warnings(resource: Resource, new: Obj, old: Obj | None) -> list[str]:
    """What is said of each write of this kind."""
    return [*resource.warn(new, old), *([resource.notice] if resource.notice else [])]


def check_fields(resource: Resource, obj: Obj, options: WriteOptions, body: bytes) -> list[str]:
    """Bring obj into normal form and answer the warnings about its fields. Raises: a 400 under strict validation."""
    complaints = resource.normalize(obj)
    if body and options.field_validation in ("Strict", "Warn"):
        complaints += decode.duplicates(body)[: decode.MAX_COMPLAINTS - len(complaints)]
    if not (complaints or options.repeated) or options.field_validation == "Ignore":
        return []
    if options.field_validation == "Strict":
        if options.repeated:  # as Go's parser prints its errors
            complaints.insert(0, "yaml: unmarshal errors:" + "".join(f"\n  {line}" for line in options.repeated))
        raise decode.strict_error(resource.schema_name, complaints)
    return [*options.repeated, *complaints]


def apply_patch(resource: Resource, old: Obj, patch: Patch) -> Obj:
    """The patched object, without nulls. Raises: 400 and 422."""
    content_type, value = patch
    try:
        if content_type == JSON_PATCH:
            new = patches.apply_json_patch(old, value)
        elif content_type == MERGE_PATCH:
            if not isinstance(value, dict):
                raise InvalidError("a merge patch of an object is an object")
            new = patches.merge(old, value)
        else:
            new = strategic.apply(old, value, resource.kind.kind)
    except ApiInvalidError as error:
        name = str(old["metadata"]["name"])
        raise ApiInvalidError(error.message, group=resource.kind.group, kind=resource.kind.kind, name=name) from None
    if not isinstance(new, dict):
        raise errors.bad_request("the patch does not leave an object")
    negotiate.check_depth(new)
    if content_type == JSON_PATCH:  # copies
        _check_values(new, 2 * negotiate.MAX_VALUES, negotiate.count_values(old))
    if negotiate.has_null(value):  # what is stored has none
        negotiate.drop_nulls(new)
    return new


def _check_size(new: Obj, values: int, size: int, subresource: str = "") -> None:
    """An object has no more than MAX_VALUES and MAX_BODY bytes; one that had more does not grow. Raises: a 413.

    values, size: of what there was. Admission may add to a new object, and then its finalizers must still come off. Its
    controllers may add as much: without space for its status, no controller could finish it.
    """
    times = 2 if subresource else 1
    _check_values(new, negotiate.MAX_VALUES * times, values)
    if len(_encode(new)) > max(negotiate.MAX_BODY * times, size):
        raise _too_large(f"more than {negotiate.MAX_BODY * times} bytes")


def _check_values(new: Obj, limit: int, before: int) -> None:
    if negotiate.count_values(new) > max(limit, before):
        raise _too_large(f"more than {limit} keys and values")


def _too_large(what: str) -> ApiError:
    return errors.too_large(f"the object would have {what}, with its defaults")


def _reject(resource: Resource, name: str, new: Obj, old: Obj | None, subresource: str) -> None:
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
            raise errors.wrong_precondition(resource.kind, meta["name"], word, wanted, found)
