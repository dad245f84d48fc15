"""Garbage collector: deletes objects whose owners are gone (pkg/controller/garbagecollector).

- Background (the default): the owner is deleted at once, then everything whose owners are all gone.
- Foreground (finalizer foregroundDeletion): dependents first; the owner waits for those with blockOwnerDeletion.
- Orphan (finalizer orphan): dependents lose the reference and stay.

The API server sets the finalizers at the delete; this controller removes them. It watches all kinds but Events. An
owner that no watch has shown is read with one live GET before anything is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ALL, BY_KIND, EVENTS, Kind
from tonnage.kubernetes.api.meta import KubeObject, OwnerReference, to_builtins
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informer, Informers
from tonnage.kubernetes.client.object_write import delete_object, patch_object, release
from tonnage_box.controllers.tombstones import Tombstones

log = logging.getLogger(__name__)
NAME = "garbage-collector-controller"
SOLID, ABSENT, WAITING = "solid", "absent", "waiting"


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
    """Objects of all kinds by uid, and dependents by the uid of their owner (metadata.ownerReferences). Sans-I/O."""

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


class GarbageCollector(Reconciler[str]):
    """Deletes dependents and removes owners' finalizers. Keys are uids."""

    def __init__(
        self, client: Client, informers: Informers, events: EventRecorder, kinds: Iterable[Kind[Any]] = ALL
    ) -> None:
        self._client, self._events = client, events
        self._owners = Owners()
        self._absent = Tombstones()
        self._unknown: set[tuple[str, str]] = set()
        super().__init__(NAME, workers=16)
        for kind in kinds:
            if kind is not EVENTS:
                informer = informers.of(kind)
                self.watch(informer, self._watcher(informer))

    async def reconcile(self, uid: str) -> None:
        """Process the object's owners or its own deletion. Idempotent. Raises: ApiError."""
        found = self._owners.find(uid)
        if found is None:
            return
        meta = found.obj.metadata
        if found.waits_for_dependents:
            await self._wait_for_dependents(found)
        elif meta.deleting and names.ORPHAN in meta.finalizers:
            await self._orphan(found)
        elif not meta.deleting and meta.owner_references:
            await self._collect(found)

    async def _collect(self, found: OwnerLookup) -> None:
        """Keep the object while one owner exists; else delete it as its owners were."""
        kind, obj = found
        states = {ref.uid: await self._state(ref, found) for ref in obj.metadata.owner_references}
        dependents = self._owners.dependents(obj.metadata.uid)
        if SOLID in states.values():
            gone = {uid for uid, state in states.items() if state != SOLID}
            await self._drop_references(found, gone)
            return
        policy = "Background"
        if WAITING in states.values() and dependents:
            policy = "Foreground"
            # A cycle of blocking owners: one of them must stop waiting.
            if any((d := self._owners.find(uid)) and d.waits_for_dependents for uid in dependents):
                found = OwnerLookup(kind, await self._unblock(found))
        elif names.ORPHAN in obj.metadata.finalizers:
            policy = "Orphan"
        elif names.FOREGROUND in obj.metadata.finalizers:
            policy = "Foreground"
        await self._delete(found, policy)

    async def _state(self, ref: OwnerReference, dependent: OwnerLookup) -> str:
        namespace = dependent.obj.metadata.namespace
        owner = self._owners.find(ref.uid)
        if owner is None or not refers_to(ref, owner, namespace):
            if owner is not None and namespace:
                self._emit_invalid_namespace(ref, dependent)
            owner = await self._read_owner(ref, dependent)
        if owner is None:
            return ABSENT
        return WAITING if owner.waits_for_dependents else SOLID

    async def _read_owner(self, ref: OwnerReference, dependent: OwnerLookup) -> OwnerLookup | None:
        """The owner, by a live read. An owner of an unknown kind counts as existing: nothing is deleted on a guess."""
        namespace = dependent.obj.metadata.namespace
        place = (ref.uid, ref.api_version, ref.kind, namespace, ref.name)
        kind = BY_KIND.get((ref.api_version, ref.kind))
        if kind is None or (kind.namespaced and not namespace):
            self._report_unreadable_owner(ref, dependent)
            return dependent
        if ref.uid in self._absent or place in self._absent:
            return None
        with suppress(ApiNotFoundError):
            live = await self._client.get(kind, ref.name, namespace if kind.namespaced else "")
            if live.metadata.uid == ref.uid:
                return OwnerLookup(kind, live)
        self._absent.add(place)
        return None

    def _report_unreadable_owner(self, ref: OwnerReference, dependent: OwnerLookup) -> None:
        if (ref.api_version, ref.kind) in BY_KIND:
            self._emit_invalid_namespace(ref, dependent)
        elif (ref.api_version, ref.kind) not in self._unknown:
            self._unknown.add((ref.api_version, ref.kind))
            text = "owner of a kind that is not served apiVersion=%s kind=%s: not deleting its dependents"
            log.info(text, ref.api_version, ref.kind)

    def _emit_invalid_namespace(self, ref: OwnerReference, dependent: OwnerLookup) -> None:
        kind, obj = dependent
        namespace = obj.metadata.namespace
        owner = f"[{ref.api_version}/{ref.kind}, namespace: {namespace}, name: {ref.name}, uid: {ref.uid}]"
        message = f'ownerRef {owner} does not exist in namespace "{namespace}"'
        self._events.warning(refer(kind, obj), "OwnerRefInvalidNamespace", message)

    async def _wait_for_dependents(self, found: OwnerLookup) -> None:
        uid = found.obj.metadata.uid
        dependents = [d for u in self._owners.dependents(uid) if (d := self._owners.find(u)) is not None]
        if not any(blocks(d.obj, uid) and not self._owners.waits_for(d, uid) for d in dependents):
            await release(self._client, found.kind, found.obj, names.FOREGROUND)
            return
        for dependent in dependents:
            if not dependent.obj.metadata.deleting:
                self.enqueue(dependent.obj.metadata.uid)

    async def _orphan(self, found: OwnerLookup) -> None:
        uid = found.obj.metadata.uid
        for dependent in self._owners.dependents(uid):
            if (child := self._owners.find(dependent)) is not None:
                await self._drop_references(child, {uid})
        await release(self._client, found.kind, found.obj, names.ORPHAN)

    async def _drop_references(self, found: OwnerLookup, gone: set[str]) -> None:
        refs = found.obj.metadata.owner_references
        remaining = [to_builtins(ref) for ref in refs if ref.uid not in gone]
        if len(remaining) < len(refs):
            with suppress(ApiNotFoundError):
                await self._set_references(found, remaining)

    async def _unblock(self, found: OwnerLookup) -> KubeObject:
        refs = found.obj.metadata.owner_references
        if not any(ref.block_owner_deletion for ref in refs):
            return found.obj
        return await self._set_references(found, [to_builtins(ref) | {"blockOwnerDeletion": False} for ref in refs])

    async def _set_references(self, found: OwnerLookup, refs: list[dict[str, Any]]) -> KubeObject:
        kind, obj = found
        changed: KubeObject = await patch_object(
            self._client, kind, obj, {"metadata": {"ownerReferences": refs or None}}
        )
        return changed

    async def _delete(self, found: OwnerLookup, policy: str) -> None:
        """Delete with preconditions in place of a live read: an object that changed since is reconciled again."""
        kind, obj = found
        log.debug("collecting kind=%s key=%s policy=%s", kind.plural, obj.metadata.key, policy)
        await delete_object(self._client, kind, obj, guarded=True, propagation=policy)

    def _watcher(self, informer: Informer[Any]) -> Callable[[KubeObject | None, KubeObject | None], Iterable[str]]:
        kind, cache = informer.kind, informer.cache

        def changed(old: KubeObject | None, new: KubeObject | None) -> Iterable[str]:
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                keys = self._gone(old)
                return keys if new is None else [*keys, *changed(None, new)]
            assert new is not None
            meta = new.metadata
            same = old is not None and meta.owner_references == old.metadata.owner_references
            if not same:
                self._owners.put(kind, cache, old, new)
            elif not meta.deleting:
                return ()
            return self._due(old, new, owners_changed=not same)

        return changed

    def _gone(self, obj: KubeObject) -> list[str]:
        """Its dependents have lost an owner, and an owner that waits for it may go on."""
        uid = obj.metadata.uid
        self._owners.remove(obj)
        self._absent.add(uid)
        return [*self._owners.dependents(uid), *self._waiting_owners(obj)]

    def _due(self, old: KubeObject | None, new: KubeObject, *, owners_changed: bool) -> list[str]:
        meta, keys = new.metadata, []
        if meta.deleting:
            if names.FOREGROUND in meta.finalizers:
                keys = [meta.uid, *self._owners.dependents(meta.uid)]
            elif names.ORPHAN in meta.finalizers:
                keys = [meta.uid]
        elif not all(self._plainly_there(ref, meta.namespace) for ref in meta.owner_references):
            keys = [meta.uid]
        if owners_changed and old is not None:
            keys += self._waiting_owners(old)
        return keys

    def _plainly_there(self, ref: OwnerReference, namespace: str) -> bool:
        owner = self._owners.find(ref.uid)
        return owner is not None and refers_to(ref, owner, namespace) and not owner.waits_for_dependents

    def _waiting_owners(self, obj: KubeObject) -> list[str]:
        owners = ((ref.uid, self._owners.find(ref.uid)) for ref in obj.metadata.owner_references)
        return [uid for uid, owner in owners if owner is not None and owner.waits_for_dependents]
