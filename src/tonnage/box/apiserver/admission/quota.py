"""ResourceQuota ledger: usage of each namespace, and whether one more object fits.

The ledger listens to the store, so it sees each write exactly when readers do. Admission takes the namespace's lock,
asks the ledger and writes before any other request may ask. Amounts are integers in nanos, as in tonnage.api.quantity.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tonnage.aio.tasks import Background
from tonnage.api import kinds
from tonnage.api.quantity import NANO, Quantity
from tonnage.box.apiserver.request.negotiate import MAX_INSIDE, apart
from tonnage.box.apiserver.storage.store import ObjectKey, Store, StoredObject, StoreEvent
from tonnage.errors import InvalidError

log = logging.getLogger(__name__)
Obj = dict[str, Any]
Usage = Mapping[str, int]

_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"
_QUOTAS = "resourcequotas"
# Kinds that have a name of their own besides count/<resource>.
_NAMED = frozenset({"configmaps", "secrets", "resourcequotas"})
_BYTES = ("storage", "memory")
_MUST_SAY = ("cpu", "memory")
_SLICE = 256
"""Objects that are counted without another turn of the event loop."""


def lock(namespace: str) -> str:
    """Key of the lock under which a namespace's quota is checked and used."""
    return f"quota/{namespace}"


def usage(collection: str, obj: Obj) -> dict[str, int]:
    """Usage of one object of a collection (Resource.collection)."""
    group, _, plural = collection.rpartition("/")
    counted = {f"count/{plural}.{group}" if group else f"count/{plural}": NANO}
    if collection == "persistentvolumeclaims":
        counted |= _claim(obj)
    elif collection == "pods":
        counted |= _pod(obj)
    elif collection in _NAMED:
        counted[plural] = NANO
    return counted


def _claim(claim: Obj) -> dict[str, int]:
    spec = claim.get("spec") or {}
    asked = _nanos((spec.get("resources") or {}).get("requests", {}).get("storage", "0"))
    # A claim that was made smaller again keeps being counted for what is allocated for it.
    allocated = ((claim.get("status") or {}).get("allocatedResources") or {}).get("storage", "0")
    size = max(asked, _nanos(allocated))
    counted = {"persistentvolumeclaims": NANO, "requests.storage": size}
    if spec.get("storageClassName"):
        prefix = spec["storageClassName"] + _CLASS_SUFFIX
        counted[prefix + "persistentvolumeclaims"] = NANO
        counted[prefix + "requests.storage"] = size
    return counted


def _pod(pod: Obj) -> dict[str, int]:
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return {}
    counted = {"pods": NANO}
    spec = pod.get("spec") or {}
    for word in ("requests", "limits"):
        for resource, amount in _pod_amounts(spec, word).items():
            if amount:
                counted[f"{word}.{resource}"] = amount
                if word == "requests":
                    counted[resource] = amount
    return counted


def _pod_amounts(spec: Obj, word: str) -> dict[str, int]:
    """Requests or limits of a pod: of all containers that run together, or of the largest that runs before them."""
    found: dict[str, int] = {}
    first: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for resource, text in ((container.get("resources") or {}).get(word) or {}).items():
            found[resource] = found.get(resource, 0) + _nanos(text)
    for container in spec.get("initContainers") or ():
        for resource, text in ((container.get("resources") or {}).get(word) or {}).items():
            first[resource] = max(first.get(resource, 0), _nanos(text))
    for resource, amount in first.items():
        found[resource] = max(found.get(resource, 0), amount)
    for resource, text in (spec.get("overhead") or {}).items():
        found[resource] = found.get(resource, 0) + _nanos(text)
    return found


def _nanos(text: Any) -> int:
    try:
        return Quantity.parse(text).nanos
    except InvalidError:
        return 0


def exceeded(quota: Obj, used: Usage, asked: Usage) -> str | None:
    """Why asked does not fit into the quota any more, in the words of Kubernetes, or None."""
    hard = (quota.get("spec") or {}).get("hard") or {}
    over = sorted(r for r in hard if asked.get(r, 0) > 0 and used.get(r, 0) + asked[r] > _nanos(hard[r]))
    if not over:
        return None
    name = quota["metadata"]["name"]
    return (
        f"exceeded quota: {name}, requested: {_pretty(over, asked)}, used: {_pretty(over, used)}, "
        f"limited: {','.join(f'{r}={hard[r]}' for r in over)}"
    )


def missing(quota: Obj, pod: Obj) -> str | None:
    """Which compute resources a pod must name because the quota bounds them, or None."""
    hard = (quota.get("spec") or {}).get("hard") or {}
    spec = pod.get("spec") or {}
    lacking: dict[str, list[str]] = {}
    for entry in sorted(hard):
        word, _, resource = entry.rpartition(".")
        if resource not in _MUST_SAY or word not in ("", "requests", "limits"):
            continue
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            if resource not in ((container.get("resources") or {}).get(word or "requests") or {}):
                lacking.setdefault(entry, []).append(str(container.get("name")))
    if not lacking:
        return None
    parts = "; ".join(f"{resource} for: {','.join(names)}" for resource, names in lacking.items())
    return f"failed quota: {quota['metadata']['name']}: must specify {parts}"


def _pretty(resources: Iterable[str], amounts: Usage) -> str:
    return ",".join(f"{r}={_shown(amounts.get(r, 0), r)}" for r in resources)


def _shown(nanos: int, resource: str) -> str:
    """An amount: counts in plain numbers, bytes with the family of suffixes that is shorter."""
    plain = str(Quantity(nanos, "DecimalSI"))
    if not resource.endswith(_BYTES) or nanos % NANO:
        return plain
    return min(str(Quantity(nanos, "BinarySI")), plain, key=len)


def status(quota: Obj, used: Usage) -> Obj:
    """The status of a quota: hard as wanted, used for the same resources."""
    hard = dict((quota.get("spec") or {}).get("hard") or {})
    return {"hard": hard, "used": {r: _shown(used.get(r, 0), r) for r in sorted(hard)}}


async def count(store: Store, collections: Iterable[str], namespace: str) -> Usage:
    """Usage of a namespace, counted from its objects."""
    changes = [(record, 1) for collection in collections for record in store.records(collection, namespace)]
    return await apart(_weight(changes), _difference, changes)


@dataclass(eq=False)
class _Namespace:
    """Usage of one namespace, and records still to be counted: with 1, or with -1 for deleted ones."""

    used: Counter[str] = field(default_factory=Counter)
    waiting: deque[tuple[StoredObject, int]] = field(default_factory=deque)
    counting: asyncio.Task[None] | None = None

    @property
    def is_counting(self) -> bool:
        """Whether its task runs: one that was cancelled before its first step has run no line of its own."""
        return self.counting is not None and not self.counting.done()


class QuotaLedger:
    """Usage of every namespace that has a ResourceQuota. No cost for namespaces without one.

    A change of small objects is counted at once. Large ones, and all objects of a namespace that gets a quota, are
    counted in slices, outside the event loop; settle() waits for that.
    """

    def __init__(self, store: Store, collections: Iterable[str], changed: Callable[[str], None] | None = None) -> None:
        """Call listen() once the store has been loaded.

        collections: the namespaced ones. changed: called with a tracked namespace whose use or quotas may have changed.
        """
        self._store = store
        self._collections = tuple(dict.fromkeys(collections))
        self._changed = changed
        self._used: dict[str, _Namespace] = {}
        self._tasks = Background("quota count")

    def listen(self) -> None:
        """Begin: count the namespaces that have quotas, then follow the store."""
        self._store.listen(self._on_event)
        for namespace in {record.key.namespace for record in self._store.records(_QUOTAS)}:
            self._begin(namespace)

    async def close(self) -> None:
        """Stop counting. Idempotent."""
        await self._tasks.close()

    def used(self, namespace: str) -> Usage:
        """Usage of a namespace, as far as it is counted."""
        if namespace not in self._used:
            self._begin(namespace)
        return self._used[namespace].used

    async def settle(self, namespace: str) -> None:
        """Wait until all that is visible in the store is counted, or close() has ended the counting."""
        self.used(namespace)
        while (found := self._used.get(namespace)) is not None and found.is_counting:
            assert found.counting is not None
            await asyncio.wait((found.counting,))

    def _begin(self, namespace: str) -> None:
        self._used[namespace] = _Namespace()
        self._count(namespace, [(r, 1) for c in self._collections for r in self._store.records(c, namespace)])
        self._tell(namespace)

    def _on_event(self, event: StoreEvent) -> None:
        collection, namespace, _ = event.record.key
        if namespace not in self._used:
            if collection == _QUOTAS and event.type != "DELETED":
                self._begin(namespace)
            return
        if collection == _QUOTAS and event.type == "DELETED" and not self._store.records(_QUOTAS, namespace):
            del self._used[namespace]
            return
        if collection in self._collections:
            changes = [(event.before, -1)] if event.before else []
            self._count(namespace, changes + ([(event.record, 1)] if event.type != "DELETED" else []))
            if collection == _QUOTAS:
                self._tell(namespace)

    def _count(self, namespace: str, changes: list[tuple[StoredObject, int]]) -> None:
        found = self._used[namespace]
        if not found.is_counting and not found.waiting and _weight(changes) <= MAX_INSIDE:
            self._add(namespace, _difference(changes))
            return
        found.waiting.extend(changes)
        if not found.is_counting:
            found.counting = self._tasks.start(self._count_waiting(namespace, found))

    async def _count_waiting(self, namespace: str, found: _Namespace) -> None:
        while found.waiting and self._used.get(namespace) is found:
            some = [found.waiting.popleft() for _ in range(min(_SLICE, len(found.waiting)))]
            try:
                difference = await apart(_weight(some), _difference, some)
            except Exception:  # the others are still to be counted
                log.exception("objects not counted namespace=%s", namespace)
                continue
            if self._used.get(namespace) is found:  # else its last quota has been deleted meanwhile
                self._add(namespace, difference)

    def _add(self, namespace: str, difference: Usage) -> None:
        # Quotas change their own status all the time; only what counts is worth telling.
        if any(difference.values()):
            self._used[namespace].used.update(difference)
            self._tell(namespace)

    def _tell(self, namespace: str) -> None:
        if self._changed is not None:
            self._changed(namespace)


def _weight(changes: list[tuple[StoredObject, int]]) -> int:
    return sum(len(record.data) for record, _ in changes)


def _difference(changes: Iterable[tuple[StoredObject, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for record, sign in changes:
        for resource, amount in usage(record.key.collection, record.decode()).items():
            total[resource] += sign * amount
    return total


def stale(store: Store, ledger: QuotaLedger, namespace: str) -> list[tuple[ObjectKey, Obj, int]]:
    """The quotas of a namespace whose status is not what the ledger says: key, new object, revision it is based on."""
    found = []
    for record in store.records(_QUOTAS, namespace):
        obj = record.decode()
        right = status(obj, ledger.used(namespace))
        if obj.get("status") != right:
            found.append((record.key, obj | {"status": right}, record.revision))
    return found


COUNTED = tuple(kind.key for kind in kinds.ALL if kind.namespaced and kind is not kinds.EVENTS)
