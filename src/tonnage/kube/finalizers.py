"""Add a finalizer to an object, or remove it."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from tonnage.api.kinds import Kind
from tonnage.api.meta import KubeObject
from tonnage.errors import ApiConflictError, ApiNotFoundError
from tonnage.kube.client import Client
from tonnage.kube.object_write import patch_object

T = TypeVar("T", bound=KubeObject)


async def release(client: Client, kind: Kind[T], obj: T, finalizer: str) -> None:
    """Remove the finalizer from obj, in one write. Idempotent: a deleted or recreated object is left alone.

    Raises ApiConflictError when the object has changed since it was read: read it again.
    """
    meta = obj.metadata
    rest = [f for f in meta.finalizers if f != finalizer]
    if rest == meta.finalizers:
        return
    with suppress(ApiNotFoundError):
        try:
            await patch_object(client, kind, obj, {"metadata": {"finalizers": rest or None}})
        except ApiConflictError:
            now = (await client.get(kind, meta.name, meta.namespace)).metadata
            if now.uid == meta.uid and finalizer in now.finalizers:
                raise


async def protect(client: Client, kind: Kind[T], obj: T, finalizer: str) -> None:
    """Add the finalizer to obj, in one write. Idempotent: a deleted object is left alone.

    Raises ApiConflictError when the object has changed since it was read: read it again.
    """
    meta = obj.metadata
    if finalizer in meta.finalizers:
        return
    with suppress(ApiNotFoundError):
        await patch_object(client, kind, obj, {"metadata": {"finalizers": [*meta.finalizers, finalizer]}})
