"""What an object uses of the quotas of its namespace, and whether it fits into one.

Admission takes the namespace's lock, asks what is used and writes before any other request may ask. Amounts are
integers in nanos, as in tonnage.kubernetes.api.quantity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.quantity import NANO, Quantity

Obj = dict[str, Any]
Usage = Mapping[str, int]

_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"
# Kinds that have a name of their own besides count/<resource>.
_NAMED = frozenset({"configmaps", "secrets", "resourcequotas", "replicationcontrollers", "services"})
_BYTES = ("storage", "memory")
_MUST_SAY = ("cpu", "memory")
_SEPARATOR = "\0"
"""Between a resource and the VolumeAttributesClasses of a claim: what quotas with that scope count."""


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
        if collection == "services":
            counted |= _service(obj)
    return counted


def _service(service: Obj) -> dict[str, int]:
    spec = service.get("spec") or {}
    kind, ports = spec.get("type"), len(spec.get("ports") or ())
    if kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is False:
        ports = 0
    counted = {"services.nodeports": ports * NANO} if kind in ("LoadBalancer", "NodePort") and ports else {}
    return counted | ({"services.loadbalancers": NANO} if kind == "LoadBalancer" else {})


def _bytes(text: Any) -> int:
    """A size in whole bytes, which is what a claim gets; also in nanos."""
    return -(-_nanos(text) // NANO) * NANO


def _claim(claim: Obj) -> dict[str, int]:
    spec = claim.get("spec") or {}
    asked = _bytes((spec.get("resources") or {}).get("requests", {}).get("storage", "0"))
    # A claim that was made smaller again keeps being counted for what is allocated for it.
    allocated = ((claim.get("status") or {}).get("allocatedResources") or {}).get("storage", "0")
    size = max(asked, _bytes(allocated))
    counted = {"persistentvolumeclaims": NANO, "requests.storage": size}
    if spec.get("storageClassName"):
        prefix = spec["storageClassName"] + _CLASS_SUFFIX
        counted[prefix + "persistentvolumeclaims"] = NANO
        counted[prefix + "requests.storage"] = size
    named = _SEPARATOR.join(sorted(_attributes_classes(claim)))
    return counted | ({f"{r}{_SEPARATOR}{named}": amount for r, amount in counted.items()} if named else {})


def _attributes_classes(claim: Obj) -> set[str]:
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    target = (status.get("modifyVolumeStatus") or {}).get("targetVolumeAttributesClassName")
    named = {spec.get("volumeAttributesClassName"), status.get("currentVolumeAttributesClassName"), target}
    return {name for name in named if name}


def is_scoped(resource: str) -> bool:
    """Whether an amount counts for quotas with a scope only."""
    return _SEPARATOR in resource


def _of_quota(quota: Obj, amounts: Usage) -> Usage:
    """The amounts that the quota counts: all, or those of the claims that its scopes select."""
    requirements = _requirements(quota.get("spec") or {})
    if not requirements:
        return amounts
    counted, scoped = Counter[str](), Counter[str]()
    for key, amount in amounts.items():
        resource, *named = key.split(_SEPARATOR)
        if not named:
            continue
        scoped[resource] += amount
        if all(any(_selects(r, name) for name in named) for r in requirements):
            counted[resource] += amount
    if all(_selects(r, "") for r in requirements):
        for resource in (quota["spec"].get("hard") or {}).keys() & amounts.keys():
            counted[resource] += amounts[resource] - scoped[resource]
    return counted


def _requirements(spec: Obj) -> list[Obj]:
    """The conditions of a quota's scopes and scope selector."""
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    return plain + list((spec.get("scopeSelector") or {}).get("matchExpressions") or ())


def _selects(requirement: Obj, name: str) -> bool:
    """Whether a condition holds for a class, "" for none (labels.Requirement.Matches)."""
    values = requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case "Exists":
            return bool(name)
        case _:
            return not name


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
    found, first = Counter[str](), Counter[str]()
    for container in spec.get("containers") or ():
        found.update(_amounts((container.get("resources") or {}).get(word)))
    for container in spec.get("initContainers") or ():
        first |= _amounts((container.get("resources") or {}).get(word))
    found |= first
    found.update(_amounts(spec.get("overhead")))
    return found


def _amounts(texts: Mapping[str, str] | None) -> Counter[str]:
    return Counter({resource: _nanos(text) for resource, text in (texts or {}).items()})


def _nanos(text: Any) -> int:
    try:
        return Quantity.parse(text).nanos
    except InvalidError:
        return 0


def exceeded(quota: Obj, used: Usage, asked: Usage) -> str | None:
    """Why asked does not fit into the quota any more, in the words of Kubernetes, or None."""
    hard = (quota.get("spec") or {}).get("hard") or {}
    used, asked = _of_quota(quota, used), _of_quota(quota, asked)
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
    used = _of_quota(quota, used)
    return {"hard": hard, "used": {r: _shown(used.get(r, 0), r) for r in sorted(hard)}}
