"""Queue keys of the workload controllers: the owner that a pod's change concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from tonnage.api.kinds import Kind
from tonnage.api.meta import KubeObject, LabelSelector
from tonnage.api.selectors import Selector, from_label_selector
from tonnage.box.controllers.podcontrol.expectations import controller_of
from tonnage.errors import Invalid
from tonnage.kube.cache import Cache

T = TypeVar("T", bound=KubeObject)
Keys = Callable[[KubeObject | None, KubeObject | None], Iterable[str]]


def owner_keys(kind: Kind[T], owners: Cache[T], selector: Callable[[T], LabelSelector] | None) -> Keys:
    """Keys of the owners of that kind which the change of an object concerns: its controller, before and after;
    of an object without any, all owners of its namespace that would take it (selector None: they take none).
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


def own_key(old: KubeObject | None, new: KubeObject | None) -> Iterable[str]:
    """The key of the object that changed."""
    changed = new or old
    return () if changed is None else (changed.key,)


def compiled(selector: LabelSelector) -> Selector:
    """The selector; an empty one would take everything, so it takes nothing. Raises Invalid."""
    if not selector.match_labels and not selector.match_expressions:
        raise Invalid("an empty selector selects nothing here: name labels")
    return from_label_selector(selector)
