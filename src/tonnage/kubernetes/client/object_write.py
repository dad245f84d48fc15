"""Writes to one object, guarded by its uid: patch, status, delete, finalizers. Used by controllers.

An object of the same name that was created later is never written to.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import KubeObject
from tonnage.kubernetes.client.client import Client

T = TypeVar("T", bound=KubeObject)
_fields = functools.cache(msgspec.structs.fields)


async def patch_object(
    client: Client, kind: Kind[T], obj: T, body: Mapping[str, Any], *, subresource: str = "", guarded: bool = True
) -> T:
    """Merge body into the object. guarded: only if it has not changed since it was read.

    Raises: ApiNotFoundError, ApiConflictError, ApiInvalidError.
    """
    meta = obj.metadata
    version = meta.resource_version if guarded else ""
    guards = {"subresource": subresource, "uid": meta.uid, "resource_version": version}
    return await client.patch(kind, meta.name, body, meta.namespace, **guards)


async def write_status(
    client: Client, kind: Kind[T], obj: T, status: Mapping[str, Any], *, guarded: bool = True
) -> T | None:
    """Write fields of the status, unless the object has them; returns the object, None of a deleted one. Idempotent.

    Raises: ApiConflictError, ApiInvalidError.
    """
    if has_fields(obj.status, status):  # type: ignore[attr-defined]
        return obj
    with suppress(ApiNotFoundError):
        return await patch_object(client, kind, obj, {"status": status}, subresource="status", guarded=guarded)
    return None


def has_fields(status: msgspec.Struct, wanted: Mapping[str, Any]) -> bool:
    """Whether a status has these fields (by their JSON names) with these values."""
    asked = convert(dict(wanted), type(status))
    known = [field for field in _fields(type(status)) if field.encode_name in wanted]
    return all(getattr(asked, field.name) == getattr(status, field.name) for field in known)


async def delete_object(client: Client, kind: Kind[T], obj: T, *, guarded: bool = False, propagation: str = "") -> None:
    """Delete the object. guarded: only if it has not changed since it was read. Idempotent.

    Raises: ApiConflictError.
    """
    meta = obj.metadata
    version = meta.resource_version if guarded else ""
    with suppress(ApiNotFoundError):
        await client.delete(
            kind, meta.name, meta.namespace, uid=meta.uid, resource_version=version, propagation=propagation
        )


def without_finalizers(obj: KubeObject, *finalizers: str) -> dict[str, Any] | None:
    """The merge patch that takes these finalizers off, None for an object that has none of them."""
    rest = [one for one in obj.metadata.finalizers if one not in finalizers]
    return {"metadata": {"finalizers": rest or None}} if rest != obj.metadata.finalizers else None


async def release(client: Client, kind: Kind[T], obj: T, finalizer: str) -> None:
    """Remove the finalizer from obj, in one write. Idempotent: a deleted or recreated object is left alone.

    Raises: ApiConflictError when the object has changed since it was read: read it again.
    """
    meta, body = obj.metadata, without_finalizers(obj, finalizer)
    if body is None:
        return
    with suppress(ApiNotFoundError):
        try:
            await patch_object(client, kind, obj, body)
        except ApiConflictError:
            now = (await client.get(kind, meta.name, meta.namespace)).metadata
            if now.uid == meta.uid and finalizer in now.finalizers:
                raise


async def protect(client: Client, kind: Kind[T], obj: T, finalizer: str) -> None:
    """Add the finalizer to obj, in one write. Idempotent: a deleted object is left alone.

    Raises: ApiConflictError when the object has changed since it was read: read it again.
    """
    meta = obj.metadata
    if finalizer in meta.finalizers:
        return
    with suppress(ApiNotFoundError):
        await patch_object(client, kind, obj, {"metadata": {"finalizers": [*meta.finalizers, finalizer]}})
