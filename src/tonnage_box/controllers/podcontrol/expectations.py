"""Expectations: dependents by owner, from the cache plus own writes that the watch has not shown yet.

A controller that creates pods must know of those that it has just created, or it creates them twice. It need not wait
for the watch: own writes are remembered here until the cache has caught up (resourceVersions of one server are numbers
that grow). So a slow watch neither delays nor doubles anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar, cast

import msgspec

from tonnage.base.aio.clock import rfc3339
from tonnage.kubernetes.api.meta import KubeObject, OwnerReference, version_number
from tonnage.kubernetes.client.informer import Informer

BY_CONTROLLER = "controllers: by controller"
T = TypeVar("T", bound=KubeObject)


def _controller(obj: KubeObject) -> Iterable[str]:
    """The controller's uid, or of what has none `orphans of <namespace>`."""
    return (obj.metadata.controller_uid() or f"orphans of {obj.metadata.namespace}",)


def controller_of(obj: KubeObject) -> OwnerReference | None:
    """The controller reference of the object."""
    return next((ref for ref in obj.metadata.owner_references if ref.controller), None)


class Dependents(Generic[T]):
    """Objects of one kind by their controller. Call wrote() and deleted() after each own write."""

    def __init__(self, informer: Informer[T]) -> None:
        informer.cache.add_index(BY_CONTROLLER, _controller)
        self._informer = informer
        self._written: dict[str, T] = {}
        self._deleted: dict[str, str] = {}

    def wrote(self, obj: T) -> T:
        """We made or changed it, and this was the answer."""
        if self._is_news(obj):
            self._written[obj.metadata.uid] = obj
        return obj

    def deleted(self, obj: T) -> None:
        """We asked for its deletion, and it was granted."""
        self._deleted[obj.metadata.uid] = obj.key

    def owned(self, uid: str) -> list[T]:
        """Objects controlled by the object with that uid, oldest first, also those that are being deleted."""
        self._forget()
        found = {obj.metadata.uid: obj for obj in self._informer.cache.by(BY_CONTROLLER, uid)}
        for own, obj in self._written.items():
            found.pop(own, None)
            if uid in _controller(obj):
                found[own] = obj
        marked = [self._marked(obj) for obj in found.values()]
        return sorted(marked, key=lambda o: (o.metadata.creation_timestamp or "", o.metadata.name))

    def orphans(self, namespace: str) -> list[T]:
        """Objects in a namespace that have no controller."""
        return self.owned(f"orphans of {namespace}")

    def get(self, key: str) -> T | None:
        """The newest that is known of an object."""
        self._forget()
        own = next((obj for obj in self._written.values() if obj.key == key), None)
        found = own or self._informer.cache.get(key)
        return None if found is None else self._marked(found)

    def _marked(self, obj: T) -> T:
        if obj.metadata.uid not in self._deleted or obj.metadata.deleting:
            return obj
        meta = msgspec.structs.replace(obj.metadata, deletion_timestamp=rfc3339(0))
        return cast(T, msgspec.structs.replace(cast(Any, obj), metadata=meta))

    def _forget(self) -> None:
        """Drop what the cache knows as well or better."""
        if self._written:
            self._written = {uid: obj for uid, obj in self._written.items() if self._is_news(obj)}
        for uid, key in list(self._deleted.items()):
            seen = self._written.get(uid) or self._informer.cache.get(key)
            if seen is None or seen.metadata.uid != uid or seen.metadata.deleting:
                del self._deleted[uid]

    def _is_news(self, obj: T) -> bool:
        return obj.metadata.version > version_number(self._informer.version)
