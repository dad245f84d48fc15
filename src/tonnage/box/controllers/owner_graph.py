"""Owner graph: an index over metadata.ownerReferences of all kinds, for the garbage collector. Sans-I/O."""

from __future__ import annotations

from typing import Any, NamedTuple

from tonnage.api import names
from tonnage.api.kinds import Kind
from tonnage.api.meta import KubeObject, OwnerReference
from tonnage.kube.cache import Cache


class OwnerLookup(NamedTuple):
    """An object and its kind."""

    kind: Kind[Any]
    obj: KubeObject

    @property
    def waits_for_dependents(self) -> bool:
        """Whether it is being deleted in the foreground: after its dependents."""
        meta = self.obj.metadata
        return meta.deleting and names.FOREGROUND in meta.finalizers


class Owners:
    """Objects by uid, and dependents by the uid of their owner."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Kind[Any], Cache[Any], str]] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def put(self, kind: Kind[Any], cache: Cache[Any], old: KubeObject | None, new: KubeObject) -> None:
        """Take in an added object, or one whose owners have changed."""
        uid = new.metadata.uid
        self._places[uid] = (kind, cache, new.key)
        if old is not None:
            self._unlink(uid, old)
        for ref in new.metadata.owner_references:
            self._dependents.setdefault(ref.uid, {})[uid] = None

    def remove(self, obj: KubeObject) -> None:
        """Remove an object; its dependents stay."""
        self._places.pop(obj.metadata.uid, None)
        self._unlink(obj.metadata.uid, obj)

    def find(self, uid: str) -> OwnerLookup | None:
        """The object with that uid as its cache has it now."""
        if uid not in self._places:
            return None
        kind, cache, key = self._places[uid]
        obj = cache.get(key)
        return OwnerLookup(kind, obj) if obj is not None and obj.metadata.uid == uid else None

    def dependents(self, uid: str) -> list[str]:
        """uids of the objects that name it as an owner."""
        return list(self._dependents.get(uid, ()))

    def waits_for(self, found: OwnerLookup, uid: str) -> bool:
        """Whether an object's deletion waits for the one with that uid, directly or in a cycle."""
        waiting, seen = [found], {found.obj.metadata.uid}
        while waiting:
            one = waiting.pop()
            if one.obj.metadata.uid == uid:
                return True
            if not one.waits_for_dependents:
                continue
            for dependent in self.dependents(one.obj.metadata.uid):
                child = self.find(dependent)
                if child is not None and dependent not in seen and blocks(child.obj, one.obj.metadata.uid):
                    seen.add(dependent)
                    waiting.append(child)
        return False

    def _unlink(self, uid: str, obj: KubeObject) -> None:
        for ref in obj.metadata.owner_references:
            found = self._dependents.get(ref.uid)
            if found is not None:
                found.pop(uid, None)
                if not found:
                    del self._dependents[ref.uid]


def refers_to(ref: OwnerReference, owner: OwnerLookup, namespace: str) -> bool:
    """Whether an object in that namespace ("" for none) means this owner: uid, kind, name and place agree."""
    meta, kind = owner.obj.metadata, owner.kind
    same_place = not kind.namespaced or meta.namespace == namespace
    same_kind = (ref.api_version, ref.kind) == (kind.api_version, kind.kind)
    return ref.uid == meta.uid and same_kind and ref.name == meta.name and same_place


def blocks(dependent: KubeObject, owner_uid: str) -> bool:
    """Whether the dependent keeps that owner from going while it is deleted in the foreground."""
    return any(ref.uid == owner_uid and ref.block_owner_deletion for ref in dependent.metadata.owner_references)
