"""LimitRanger: minimum, maximum and default resources of claims, pods and containers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.quantity import NANO, Quantity
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.request.errors import forbidden
from tonnage_box.apiserver.request.negotiate import run_in_thread_if_large
from tonnage_box.apiserver.storage.store import Obj

_ITEM = 512
"""Bytes that one limit of one container counts for."""
Amount = Callable[[str, str], int | None]


async def _items(context: AdmissionContext) -> dict[str, list[Obj]]:
    """The limits of the namespace by what they limit."""
    found: dict[str, list[Obj]] = {}
    ranges = await context.list(kinds.LIMIT_RANGES, context.namespace)
    for each in sorted(ranges, key=lambda r: str(r["metadata"]["name"])):
        for item in (each.get("spec") or {}).get("limits") or ():
            found.setdefault(str(item.get("type")), []).append(item)
    return found


async def claim(context: AdmissionContext, new: Obj, old: Obj | None = None) -> None:
    """A claim's size must be within the namespace's limits. Raises: ApiError 403."""
    requests = new["spec"].get("resources", {}).get("requests", {})
    if old is not None and old["spec"].get("resources", {}).get("requests", {}) == requests:
        return
    for item in (await _items(context)).get("PersistentVolumeClaim", ()):
        _check(context, kinds.CLAIMS, item, _amount([{"resources": {"requests": requests}}]))


async def pod(context: AdmissionContext, new: Obj) -> None:
    """Give containers the namespace's defaults, then hold them and the pod to its limits. Raises: ApiError 403."""
    spec = new["spec"]
    every = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    items = await _items(context)
    of_containers, of_pods = items.get("Container", ()), items.get("Pod", ())

    def hold() -> None:
        for item in of_containers:
            for container in every:
                _fill(container.setdefault("resources", {}), item)
        for item in of_containers:
            for container in every:
                _check(context, kinds.PODS, item, _amount([container]))
        for item in of_pods:
            _check(context, kinds.PODS, item, _amount(spec.get("containers") or ()))

    await run_in_thread_if_large(_ITEM * len(every) * (len(of_containers) + len(of_pods)), hold)


def _fill(resources: Obj, item: Obj) -> None:
    for word, source in (("limits", "default"), ("requests", "defaultRequest")):
        filled = dict(item.get(source) or {}) | resources.get(word, {})
        if filled:
            resources[word] = filled


def _amount(containers: Sequence[Obj]) -> Amount:
    """What the containers (or a claim, which has resources too) ask for together."""

    def amount(word: str, resource: str) -> int | None:
        found = [_nanos((c.get("resources") or {}).get(word) or {}, resource) for c in containers]
        given = [f for f in found if f is not None]
        return sum(given) if given else None

    return amount


def _nanos(amounts: Obj, resource: str) -> int | None:
    return Quantity.parse(amounts[resource]).nanos if resource in amounts else None


def _text(nanos: int, like: str) -> str:
    return str(Quantity(nanos, "BinarySI" if nanos % (1024 * NANO) == 0 else Quantity.parse(like).form))


def _check(context: AdmissionContext, kind: Kind[Any], item: Obj, amount: Amount) -> None:
    why = next(_faults(item, amount, must_say_limit=kind is kinds.PODS), None)
    if why is not None:
        raise forbidden(kind, context.name, why)


def _faults(item: Obj, amount: Amount, *, must_say_limit: bool) -> Iterator[str]:
    """Which bounds of an item are not met, in the words of LimitRanger, which users search for."""
    for bounds, word, must, breaks in (
        ("min", "minimum", "request", operator.lt),
        ("max", "maximum", "limit" if must_say_limit else "", operator.gt),
    ):
        for resource, text in sorted((item.get(bounds) or {}).items()):
            what, bound = f"{word} {resource} usage per {item['type']} is {text}", Quantity.parse(text).nanos
            found = {"request": amount("requests", resource), "limit": amount("limits", resource)}
            if must and found[must] is None:
                yield f"{what}.  No {must} is specified"
            for name, nanos in found.items():
                if nanos is not None and breaks(nanos, bound):
                    yield f"{what}, but {name} is {_text(nanos, text)}"
