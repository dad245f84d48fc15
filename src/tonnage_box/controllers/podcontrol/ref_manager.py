"""Controller references: the owner that a change concerns; adopt matching orphans, release what no longer matches.

Source: pkg/controller/controller_ref_manager.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from tonnage.base.errors import ApiNotFoundError, InvalidError, PreconditionError
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import KubeObject, LabelSelector, to_builtins
from tonnage.kubernetes.api.selectors import Selector, from_label_selector
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.object_write import patch_object
from tonnage_box.controllers.podcontrol.expectations import Dependents, controller_of
from tonnage_box.controllers.podcontrol.pod_template import owner_reference

T = TypeVar("T", bound=KubeObject)
Keys = Callable[[KubeObject | None, KubeObject | None], Iterable[str]]


class Adopter(Generic[T]):
    """Adopts and releases objects of one kind for owners of another.

    finalizer: added to an adopted object as well. fits: whether a matching orphan may be adopted at all.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        owner_kind: Kind[Any],
        objects: Dependents[T],
        *,
        finalizer: str = "",
        fits: Callable[[KubeObject, T], bool] = lambda owner, orphan: True,
    ) -> None:
        self._client, self._kind, self._owner_kind = client, kind, owner_kind
        self._objects, self._finalizer, self._fits = objects, finalizer, fits

    async def claim(self, owner: KubeObject, selector: LabelSelector) -> list[T]:
        """The objects that belong to owner, after those that match are adopted and others released.

        An owner that is being deleted changes nothing, and objects that are being deleted are not written.
        Raises: ApiError, InvalidError.
        """
        meta, fits = owner.metadata, compiled(selector).matches
        mine: list[T] = []
        for obj in self._objects.owned(meta.uid):
            if fits(obj.metadata.labels):
                mine.append(obj)
            elif not (meta.deleting or obj.metadata.deleting):
                await self._release(owner, obj)
        if meta.deleting:
            return mine
        free = [obj for obj in self._objects.orphans(meta.namespace) if not obj.metadata.deleting]
        adopted = [obj for obj in free if fits(obj.metadata.labels) and self._fits(owner, obj)]
        if adopted:
            await self._check_alive(owner)
        for obj in adopted:
            with suppress(ApiNotFoundError):
                mine.append(await self._adopt(owner, obj))
        return mine

    async def _check_alive(self, owner: KubeObject) -> None:
        """Our cache may be behind: what is deleted adopts nothing."""
        live = await self._client.get(self._owner_kind, owner.metadata.name, owner.metadata.namespace)
        if live.metadata.uid != owner.metadata.uid or live.metadata.deleting:
            raise PreconditionError(f"{self._owner_kind.kind} {owner.key} is being deleted: it adopts nothing")

    async def _adopt(self, owner: KubeObject, obj: T) -> T:
        refs = [to_builtins(ref) for ref in obj.metadata.owner_references]
        meta: dict[str, Any] = {"ownerReferences": [*refs, owner_reference(self._owner_kind, owner)]}
        if self._finalizer:
            meta["finalizers"] = list(dict.fromkeys([*obj.metadata.finalizers, self._finalizer]))
        return await self._patch(obj, meta)

    async def _release(self, owner: KubeObject, obj: T) -> None:
        refs = [to_builtins(ref) for ref in obj.metadata.owner_references if ref.uid != owner.metadata.uid]
        meta: dict[str, Any] = {"ownerReferences": refs or None}
        if self._finalizer:
            meta["finalizers"] = [f for f in obj.metadata.finalizers if f != self._finalizer] or None
        with suppress(ApiNotFoundError):
            await self._patch(obj, meta)

    async def _patch(self, obj: T, meta: dict[str, Any]) -> T:
        return self._objects.wrote(await patch_object(self._client, self._kind, obj, {"metadata": meta}))


def owner_keys(kind: Kind[T], owners: Cache[T], selector: Callable[[T], LabelSelector] | None) -> Keys:
    """Keys of the owners of that kind which the change of an object concerns: its controller, before and after.

    Of an object without any these are all owners of its namespace that would take it (selector None: they take none).
    """

    def keys(old: KubeObject | None, new: KubeObject | None) -> Iterable[str]:
        found: dict[str, None] = {}
        for obj in (old, new):
            if obj is None:
                continue
            ref = controller_of(obj)
            if ref is not None:
                if (ref.api_version, ref.kind) == (kind.api_version, kind.kind):
                    found[f"{obj.metadata.namespace}/{ref.name}"] = None
            elif obj is new:
                found |= dict.fromkeys(_takers(obj))
        return list(found)

    def _takers(obj: KubeObject) -> Iterable[str]:
        for owner in owners if selector is not None else ():
            assert selector is not None
            same = owner.metadata.namespace == obj.metadata.namespace and not owner.metadata.deleting
            if same and compiled(selector(owner)).matches(obj.metadata.labels):
                yield owner.key

    return keys


def compiled(selector: LabelSelector) -> Selector:
    """The selector; an empty one would take everything, so it takes nothing. Raises: InvalidError."""
    if not selector.match_labels and not selector.match_expressions:
        raise InvalidError("an empty selector selects nothing here: name labels")
    return from_label_selector(selector)
