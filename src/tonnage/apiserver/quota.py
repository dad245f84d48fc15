"""ResourceQuota: what each object counts for, how much a namespace uses, and whether one more fits.

The Ledger listens to the store, so it knows of each write exactly when readers do; admission takes the namespace's
lock, asks the ledger and writes before anybody else may ask. Amounts are nanos, as in api/quantity.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tonnage.api import kinds
from tonnage.api.quantity import NANO, Quantity
from tonnage.apiserver.store import Event, Key, Store
from tonnage.errors import Invalid

Obj = dict[str, Any]
Usage = Mapping[str, int]

_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"
_QUOTAS = "resourcequotas"
# Kinds that have a name of their own besides count/<resource>.
_NAMED = frozenset({"configmaps", "secrets", "resourcequotas"})
_BYTES = ("storage", "memory")
_MUST_SAY = ("cpu", "memory")


def lock(namespace: str) -> str:
    """Key of the lock under which a namespace's quota is checked and used."""
    return f"quota/{namespace}"


def usage(collection: str, obj: Obj) -> dict[str, int]:
    """What one object of a collection (Resource.collection) counts for."""
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
    except Invalid:
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


def count(store: Store, collections: Iterable[str], namespace: str) -> Counter[str]:
    """What the objects of a namespace use, counted from nothing."""
    total: Counter[str] = Counter()
    for collection in collections:
        for record in store.records(collection, namespace):
            total.update(usage(collection, record.decode()))
    return total


class Ledger:
    """What every namespace that has a quota uses. Costs nothing for those that have none."""

    def __init__(self, store: Store, collections: Iterable[str], changed: Callable[[str], None] | None = None) -> None:
        """collections are the namespaced ones; changed(namespace) is called when a tracked namespace's use or
        quotas may have changed. Call listen() once the store has been loaded."""
        self._store = store
        self._collections = tuple(dict.fromkeys(collections))
        self._changed = changed
        self._used: dict[str, Counter[str]] = {}

    def listen(self) -> None:
        """Begin: count the namespaces that have quotas, then follow the store."""
        self._store.listen(self._on_event)
        for namespace in {record.key.namespace for record in self._store.records(_QUOTAS)}:
            self._begin(namespace)

    def used(self, namespace: str) -> Usage:
        """What the objects of a namespace use now."""
        if namespace not in self._used:
            self._begin(namespace)
        return self._used[namespace]

    def _begin(self, namespace: str) -> None:
        self._used[namespace] = count(self._store, self._collections, namespace)
        self._tell(namespace)

    def _on_event(self, event: Event) -> None:
        collection, namespace, _ = event.record.key
        if namespace not in self._used:
            if collection == _QUOTAS and event.type != "DELETED":
                self._begin(namespace)
            return
        if collection == _QUOTAS and event.type == "DELETED" and not self._store.records(_QUOTAS, namespace):
            del self._used[namespace]
            return
        if collection in self._collections:
            before = usage(collection, event.before.decode()) if event.before else {}
            after = usage(collection, event.record.decode()) if event.type != "DELETED" else {}
            # Quotas change their own status all the time; only what counts is worth telling.
            if before != after or collection == _QUOTAS:
                total = self._used[namespace]
                total.update(after)
                total.subtract(before)
                self._tell(namespace)

    def _tell(self, namespace: str) -> None:
        if self._changed is not None:
            self._changed(namespace)


def stale(store: Store, ledger: Ledger, namespace: str) -> list[tuple[Key, Obj, int]]:
    """The quotas of a namespace whose status is not what the ledger says: key, new object, revision it is based on."""
    found = []
    for record in store.records(_QUOTAS, namespace):
        obj = record.decode()
        right = status(obj, ledger.used(namespace))
        if obj.get("status") != right:
            found.append((record.key, obj | {"status": right}, record.revision))
    return found


COUNTED = tuple(
    (f"{k.group}/{k.plural}" if k.group else k.plural) for k in kinds.ALL if k.namespaced and k is not kinds.EVENTS
)
