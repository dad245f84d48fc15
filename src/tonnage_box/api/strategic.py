"""Strategic merge patch: a merge patch that merges lists as sets, by a merge key of their items.

Directives: `$patch: replace|delete|merge`, `$setElementOrder/<list>`, `$retainKeys`, `$deleteFromPrimitiveList/<list>`
(kubernetes/community: strategic-merge-patch). Which lists merge is defined in each kind's Go types. The table below
lists them for the served kinds, by the path of field names from the object's root (lists add no step).
"""

from __future__ import annotations

from typing import Any

import msgspec

from tonnage.base.errors import InvalidError

Json = Any
Object = dict[str, Any]
_DELETED = object()
PRIMITIVE = ""  # a list of strings that merges as a set

_CONTAINER = {
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "resizePolicy": None,
}
_POD_SPEC: dict[str, str | None] = {
    "spec.volumes": "name",
    "spec.imagePullSecrets": "name",
    "spec.hostAliases": "ip",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.resourceClaims": "name",
    "spec.tolerations": None,
    "spec.schedulingGates": "name",
}
for _kind in ("containers", "initContainers", "ephemeralContainers"):
    _POD_SPEC[f"spec.{_kind}"] = "name"
    _POD_SPEC.update({f"spec.{_kind}.{field}": key for field, key in _CONTAINER.items()})
_POD_SPEC["spec.volumes.projected.sources"] = None

_POD_STATUS: dict[str, str | None] = {
    f"status.{statuses}.{field}": key
    for statuses in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    for field, key in (("volumeMounts", "mountPath"), ("allocatedResourcesStatus", "name"))
}
_META: dict[str, str | None] = {"metadata.ownerReferences": "uid", "metadata.finalizers": PRIMITIVE}
_BY_KIND: dict[str, dict[str, str | None]] = {
    "Pod": {
        **_POD_SPEC,
        **_POD_STATUS,
        "status.conditions": "type",
        "status.podIPs": "ip",
        "status.hostIPs": "ip",
        "status.resourceClaimStatuses": "name",
    },
    "Node": {
        "spec.podCIDRs": PRIMITIVE,
        "status.conditions": "type",
        "status.addresses": "type",
    },
    "Namespace": {"status.conditions": "type"},
    "PersistentVolumeClaim": {"status.conditions": "type"},
    "PodDisruptionBudget": {"status.conditions": "type"},
    "ServiceAccount": {"secrets": "name"},
    "CSINode": {"spec.drivers": "name"},
    "Service": {"spec.ports": "port", "status.conditions": "type"},
    "PodCertificateRequest": {"status.conditions": "type"},
}
_POD_TEMPLATE = {path.replace("spec.", "spec.template.spec.", 1): key for path, key in _POD_SPEC.items()} | {
    f"spec.template.{path}": key for path, key in _META.items()
}
for _kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"):
    _BY_KIND[_kind] = _POD_TEMPLATE | {"status.conditions": "type"}
_BY_KIND["ReplicationController"] = _BY_KIND["ReplicaSet"]
_BY_KIND["PodTemplate"] = {path.removeprefix("spec."): key for path, key in _POD_TEMPLATE.items()}
_BY_KIND["CronJob"] = {path.replace("spec.", "spec.jobTemplate.spec.", 1): k for path, k in _POD_TEMPLATE.items()} | {
    f"spec.jobTemplate.{path}": key for path, key in _META.items()
}
_BY_KIND["Job"] |= {f"status.uncountedTerminatedPods.{field}": PRIMITIVE for field in ("succeeded", "failed")}


def merge_keys(kind: str) -> dict[str, str | None]:
    """Path of a merging list -> merge key, "" for lists of strings; lists that are not here are replaced."""
    return _META | _BY_KIND.get(kind, {})


def apply(target: Json, patch: Json, kind: str) -> Object:
    """Apply a strategic merge patch to an object of kind. Raises: InvalidError on malformed directives."""
    if not isinstance(patch, dict):
        raise InvalidError("a strategic merge patch is an object")
    return _merge_object(target if isinstance(target, dict) else {}, patch, "", merge_keys(kind))


def _directive(patch: Object) -> str:
    action = patch.get("$patch", "merge")
    if action not in ("merge", "replace", "delete"):
        raise InvalidError(f"strategic merge patch: $patch is merge, replace or delete, not {action!r}")
    return str(action)


def _plain(patch: Json) -> Json:
    """The value of a patch without a target: without directives and nulls."""
    if isinstance(patch, list):
        items = [_plain(item) for item in patch if not (isinstance(item, dict) and item.get("$patch") == "delete")]
        return items if {} in patch else [item for item in items if item != {}]
    if not isinstance(patch, dict):
        return patch
    return {k: _plain(v) for k, v in patch.items() if v is not None and not k.startswith("$")}


def _merge_object(target: Object, patch: Object, path: str, keys: dict[str, str | None]) -> Object:
    action = _directive(patch)
    if action == "replace":
        return {k: _plain(v) for k, v in patch.items() if k != "$patch" and v is not None}
    if action == "delete":
        return {}
    result = _retained(target, patch)
    for name, value in patch.items():
        if name.startswith("$"):
            _check_directive(name)
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = _merge_value(result.get(name), value, f"{path}.{name}" if path else name, keys)
            if isinstance(value, dict) and value.get("$patch") == "delete":
                del result[name]
    _list_directives(result, patch, path, keys)
    return result


def _check_directive(name: str) -> None:
    if name not in ("$patch", "$retainKeys") and not name.startswith(
        ("$setElementOrder/", "$deleteFromPrimitiveList/")
    ):
        raise InvalidError(f"strategic merge patch: {name!r} is not a directive")


def _retained(target: Object, patch: Object) -> Object:
    """A copy of target with only the fields that $retainKeys names (all, without it)."""
    if "$retainKeys" not in patch:
        return dict(target)
    retained = patch["$retainKeys"]
    if not isinstance(retained, list):
        raise InvalidError("strategic merge patch: $retainKeys is a list of field names")
    named = {k for k in retained if isinstance(k, str)}
    extra = [k for k, v in patch.items() if not k.startswith("$") and v is not None and k not in named]
    if extra:
        raise InvalidError(f"strategic merge patch: {extra[0]!r} is set but $retainKeys does not name it")
    return {k: v for k, v in target.items() if k in named}


def _merge_value(old: Json, value: Json, path: str, keys: dict[str, str | None]) -> Json:
    if isinstance(value, dict):
        return _merge_object(old if isinstance(old, dict) else {}, value, path, keys)
    if not isinstance(value, list):
        return value
    key = keys.get(path)
    if key is None:
        return _plain(value)
    current = old if isinstance(old, list) else []
    if key == PRIMITIVE:
        there = {_identity(item) for item in current}
        new = {identity: item for item in value if (identity := _identity(item)) not in there}
        return current + list(new.values())
    return _merge_list(current, value, path, key, keys)


def _identity(item: Json) -> str | bytes:
    """A key that equal values share, to find one without comparing all."""
    return item if isinstance(item, str) else msgspec.json.encode(item, order="deterministic")


def _merge_list(old: list[Json], patch: list[Json], path: str, key: str, keys: dict[str, str | None]) -> list[Json]:
    """Merge items by key; `- $patch: replace` alone replaces the list by the other items."""
    for item in patch:
        if not isinstance(item, dict):
            raise InvalidError(f"strategic merge patch: items of {path} are objects, found {item!r}")
    if any(item.get("$patch") == "replace" for item in patch):
        return [_plain(item) for item in patch if item.get("$patch") != "replace" or len(item) > 1]
    result = list(old)
    places = _places(old, key)
    for item in patch:
        if key not in item:
            raise InvalidError(f"strategic merge patch: an item of {path} has no {key!r}, its merge key")
        identity = _identity(item[key])
        if _directive(item) == "delete":
            for n in places.pop(identity, ()):
                result[n] = _DELETED
        elif identity in places:
            n = places[identity][0]
            result[n] = _merge_object(result[n], item, path, keys)
        else:
            places[identity] = [len(result)]
            result.append(_merge_object({}, item, path, keys))
    return [item for item in result if item is not _DELETED]


def _places(items: list[Json], key: str) -> dict[str | bytes, list[int]]:
    """Where items with each value of the merge key are."""
    places: dict[str | bytes, list[int]] = {}
    for n, item in enumerate(items):
        if isinstance(item, dict):
            places.setdefault(_identity(item.get(key)), []).append(n)
    return places


def _list_directives(result: Object, patch: Object, path: str, keys: dict[str, str | None]) -> None:
    for name, value in patch.items():
        verb, _, listed = name.partition("/")
        if not listed or not name.startswith("$"):
            continue
        if not isinstance(value, list):
            raise InvalidError(f"strategic merge patch: {name} is a list")
        current = result.get(listed)
        if not isinstance(current, list):
            continue
        if verb == "$deleteFromPrimitiveList":
            unwanted = {_identity(item) for item in value}
            result[listed] = [item for item in current if _identity(item) not in unwanted]
        elif verb == "$setElementOrder":
            key = keys.get(f"{path}.{listed}" if path else listed)
            result[listed] = _ordered(current, value, key)


def _ordered(items: list[Json], order: list[Json], key: str | None) -> list[Json]:
    """Items in the given order; others stay behind their predecessor."""

    def identity(item: Json) -> str | bytes:
        return _identity(item.get(key) if key and isinstance(item, dict) else item)

    ranks: dict[str | bytes, int] = {}
    for item in order:
        ranks.setdefault(identity(item), len(ranks))
    runs: list[tuple[int, list[Json]]] = [(-1, [])]  # each item named, with those that follow it and are not
    for item in items:
        rank = ranks.get(identity(item))
        if rank is None:
            runs[-1][1].append(item)
        else:
            runs.append((rank, [item]))
    return [item for _, run in sorted(runs, key=lambda run: run[0]) for item in run]
