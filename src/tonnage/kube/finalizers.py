"""Add a finalizer to an object, or remove it."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from tonnage.api.kinds import Kind
from tonnage.api.meta import KubeObject
from tonnage.errors import ApiConflictError, ApiNotFoundError
from tonnage.kube.client import Client

T = TypeVar("T", bound=KubeObject)


async def release(client: Client, kind: Kind[T], obj: T, finalizer: str) -> None:
    """Remove the finalizer from obj, in one write. Idempotent: a deleted or recreated object is left alone.

    Raises ApiConflictError when the object has changed since it was read: read it again.
    """
    meta = obj.metadata
    rest = [f for f in meta.finalizers if f != finalizer]
    if rest == meta.finalizers:
        return
    patch = {"metadata": {"finalizers": rest or None, "uid": meta.uid}}
    try:
        await client.patch(kind, meta.name, patch, meta.namespace, resource_version=meta.resource_version)
    except ApiNotFoundError:
        return
    except ApiConflictError:
        now = await _look(client, kind, obj)
        if now is not None and finalizer in now.metadata.finalizers:
            raise


async def protect(client: Client, kind: Kind[T], obj: T, finalizer: str) -> None:
    """Add the finalizer to obj, in one write. Idempotent: a deleted object is left alone.

    Raises ApiConflictError when the object has changed since it was read: read it again.
    """
    meta = obj.metadata
    if finalizer in meta.finalizers:
        return
    patch = {"metadata": {"finalizers": [*meta.finalizers, finalizer], "uid": meta.uid}}
    with suppress(ApiNotFoundError):
        await client.patch(kind, meta.name, patch, meta.namespace, resource_version=meta.resource_version)


async def _look(client: Client, kind: Kind[T], obj: T) -> T | None:
    try:
        now = await client.get(kind, obj.metadata.name, obj.metadata.namespace)
    except ApiNotFoundError:
        return None
    return now if now.metadata.uid == obj.metadata.uid else None
