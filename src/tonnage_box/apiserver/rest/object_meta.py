"""ObjectMeta through an object's life: pure functions on dicts, no store, no I/O."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tonnage.base.aio.clock import Clock, rfc3339
from tonnage.base.errors import FieldCause
from tonnage.kubernetes.api import names
from tonnage_box.apiserver.request.errors import bad_request, invalid, wrong_precondition
from tonnage_box.apiserver.request.options import DeleteOptions
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.request.routes import RequestPath
from tonnage_box.apiserver.storage.store import Obj

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATED_BASE = 58
_PRESERVED = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
    "generateName",
)  # fmt: skip
_DEFAULT_GRACE = 30
STATUS_LIKE = ("status", "approval")
"""Subresources that write the status and preserve the rest."""
EPHEMERAL_CONTAINERS = "ephemeralcontainers"
"""The subresource that writes a pod's spec.ephemeralContainers and preserves the rest."""


_LAST_SECOND = 253402300799
"""Of the year 9999: a grace period of 64 bits ends later than can be printed."""


@dataclass(frozen=True)
class Stamps:
    """Source of timestamps, uids and generated names."""

    clock: Clock
    random: random.Random = field(default_factory=random.Random)

    def now(self, ahead: float = 0) -> str:
        """The time, some seconds ahead, as Kubernetes prints it."""
        return _printed(int(min(self.clock.time() + ahead, _LAST_SECOND)))

    def uid(self) -> str:
        """A fresh uid: a random UUID (RFC 9562, version 4)."""
        text = f"{self.random.getrandbits(128):032x}"
        variant = "89ab"[int(text[16], 16) & 3]
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"

    def suffix(self) -> str:
        """Five characters for generateName."""
        return "".join(self.random.choices(_SUFFIX, k=5))


_printed = functools.lru_cache(maxsize=8)(rfc3339)


def metadata(obj: Obj) -> dict[str, Any]:
    """metadata of an object that comes from a client. Raises: a 400 when it has the wrong form."""
    meta = obj.setdefault("metadata", {})
    if not isinstance(meta, dict):
        raise bad_request("metadata is not an object")
    for name in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        if not isinstance(meta.get(name, ""), str):
            raise bad_request(f"metadata.{name} is not a string")
    for name in ("labels", "annotations"):
        pairs = meta.get(name, {})
        if not isinstance(pairs, dict) or not all(isinstance(v, str) for v in pairs.values()):
            raise bad_request(f"metadata.{name} is not a map of strings")
    for name, member, what in (("finalizers", str, "strings"), ("ownerReferences", dict, "objects")):
        members = meta.get(name, [])
        if not isinstance(members, list) or not all(isinstance(m, member) for m in members):
            raise bad_request(f"metadata.{name} is not a list of {what}")
    return meta


def check_kind(obj: Obj, resource: Resource) -> None:
    """The body must be of the kind that the path names (or say nothing). Raises: a 400."""
    kind = resource.kind
    version, name = obj.get("apiVersion", kind.api_version), obj.get("kind", kind.kind)
    if (version, name) != (kind.api_version, kind.kind):
        raise bad_request(
            f"the object provided is unrecognized: want apiVersion {kind.api_version!r}, kind {kind.kind!r}, "
            f"found apiVersion {str(version)[:80]!r}, kind {str(name)[:80]!r}"
        )


def begin(obj: Obj, resource: Resource, namespace: str, stamps: Stamps) -> str:
    """Give a new object (of checked form) its identity, in place, and return its name. Raises: 400 and 422."""
    meta: dict[str, Any] = obj["metadata"]
    if meta.get("resourceVersion"):
        raise bad_request("resourceVersion should not be set on objects to be created")
    _check_namespace(meta, resource, namespace)
    if resource.kind.namespaced:
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)
    if not meta.get("name"):
        meta["name"] = _generated(meta, resource, stamps)
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"):
        meta.pop(name, None)
    meta["uid"] = stamps.uid()
    meta["creationTimestamp"] = stamps.now()
    obj |= resource.kind.head()
    _tidy(meta)
    return str(meta["name"])


def _generated(meta: Mapping[str, Any], resource: Resource, stamps: Stamps) -> str:
    base = meta.get("generateName")
    if not base:
        cause = FieldCause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
        raise invalid(resource.kind.group, resource.kind.kind, "", [cause])
    return str(base)[:_MAX_GENERATED_BASE] + stamps.suffix()


def first_generation(obj: Obj, resource: Resource) -> None:
    """Begin to count changes. What a client sent stays where Kubernetes does not count."""
    if resource.generation:
        obj["metadata"]["generation"] = resource.generation
    elif not obj["metadata"].get("generation"):
        obj["metadata"].pop("generation", None)


def _tidy(meta: dict[str, Any]) -> None:
    """Empty maps and lists are left out, as Kubernetes' omitempty does."""
    for name in ("labels", "annotations", "finalizers", "ownerReferences", "generateName"):
        if name in meta and not meta[name]:
            del meta[name]


def check_name(obj: Obj, place: RequestPath) -> None:
    """An update's body must be of the object that the path names. Raises: a 400."""
    meta, name = metadata(obj), place.name
    check_kind(obj, place.resource)
    if meta.setdefault("name", name) != name:
        raise bad_request(
            f"the name of the object ({str(meta['name'])[:80]}) does not match the name on the URL ({name[:80]})"
        )
    _check_namespace(meta, place.resource, place.namespace or "")


def subresource_metadata(body: Obj, place: RequestPath, kind: str) -> dict[str, Any]:
    """metadata of a Binding or Eviction, which must name the path's object. Raises: a 400."""
    meta = metadata(body)
    if meta.setdefault("name", place.name) != place.name:
        raise bad_request(f"the name in the {kind} does not match the name on the URL")
    return meta


def _check_namespace(meta: Mapping[str, Any], resource: Resource, namespace: str) -> None:
    if resource.kind.namespaced and meta.get("namespace", namespace) not in ("", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def carry_over(new: Obj, old: Obj, resource: Resource, subresource: str) -> None:
    """Put back into new, in place, what an update may not change: identity, times, the other half of the object.

    Raises: a 409 for another uid.
    """
    meta, was = metadata(new), old["metadata"]
    if meta.get("uid") and meta["uid"] != was["uid"]:
        raise wrong_precondition(resource.kind, was["name"], "UID", meta["uid"], was["uid"])
    for name in _PRESERVED:
        _put_back(meta, was, name)
    for name in ("managedFields", "selfLink"):
        meta.pop(name, None)
    new["apiVersion"], new["kind"] = old["apiVersion"], old["kind"]
    if subresource in STATUS_LIKE:
        _only_status(new, old)
    elif subresource == EPHEMERAL_CONTAINERS:
        _only_ephemeral_containers(new, old)
    elif not subresource and "status" in resource.subresources:
        _put_back(new, old, "status")
    _tidy(meta)


def _put_back(new: Obj, old: Mapping[str, Any], member: str) -> None:
    if member in old:
        new[member] = old[member]
    else:
        new.pop(member, None)


def _only_status(new: Obj, old: Obj) -> None:
    for member in {*new, *old} - {"metadata", "status"}:
        _put_back(new, old, member)
    for member in ("ownerReferences", "finalizers"):
        _put_back(new["metadata"], old["metadata"], member)


def _only_ephemeral_containers(new: Obj, old: Obj) -> None:
    added = (new.get("spec") or {}).get("ephemeralContainers")
    new.clear()
    new |= copy.deepcopy(old)
    new["spec"].pop("ephemeralContainers", None)
    if added:
        new["spec"]["ephemeralContainers"] = added


def count_generation(new: Obj, old: Obj, resource: Resource) -> None:
    """Increment metadata.generation when anything besides metadata and status changes, if that counts."""
    if resource.generation is None:
        return
    changed = any(new.get(member) != old.get(member) for member in {*new, *old} - {"metadata", "status"})
    if part := resource.counted_metadata:
        changed = changed or (new["metadata"].get(part) or {}) != (old["metadata"].get(part) or {})
    if changed:
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def held(obj: Obj) -> bool:
    """Whether finalizers keep an object that is being deleted."""
    if obj["metadata"].get("finalizers"):
        return True
    return obj["kind"] == "Namespace" and bool(obj.get("spec", {}).get("finalizers"))


def ended(obj: Obj) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    meta = obj["metadata"]
    return "deletionTimestamp" in meta and not meta.get("deletionGracePeriodSeconds") and not held(obj)


Fate = Literal["remove", "mark", "wait"]


def delete(obj: Obj, options: DeleteOptions, resource: Resource, stamps: Stamps) -> Fate:
    """Take the next step of a deletion on obj, in place: delete now, mark, or wait as before."""
    meta = obj["metadata"]
    already = "deletionTimestamp" in meta
    before = (meta.get("deletionTimestamp"), meta.get("deletionGracePeriodSeconds"), list(meta.get("finalizers", [])))
    _propagate(meta, options)
    grace = _grace(obj, options) if resource.graceful else 0
    if already:
        pending = meta.get("deletionGracePeriodSeconds") or 0
        shorten = options.grace is not None or not resource.graceful
        grace = min(grace, pending) if shorten else pending
    if not grace and not held(obj):
        if not already and resource.graceful:
            meta["deletionTimestamp"] = stamps.now()
            _count_deletion(meta)
        if already or resource.graceful:
            meta["deletionGracePeriodSeconds"] = 0
        return "remove"
    if not already or grace != (before[1] or 0):
        meta["deletionTimestamp"] = stamps.now(grace)
    meta["deletionGracePeriodSeconds"] = grace
    if not already:
        _count_deletion(meta)
    if obj["kind"] == "Namespace":
        obj.setdefault("status", {})["phase"] = "Terminating"
    after = (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"], list(meta.get("finalizers", [])))
    return "wait" if after == before else "mark"


def _count_deletion(meta: dict[str, Any]) -> None:
    """Count the mark as a change: controllers do other things with the object from now on."""
    if meta.get("generation"):
        meta["generation"] += 1


def _grace(obj: Obj, options: DeleteOptions) -> int:
    """Seconds that a pod gets; one that runs nowhere, or no longer, gets none."""
    if not obj.get("spec", {}).get("nodeName") or obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = options.grace
    if grace is None:
        grace = obj["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
    return 1 if grace < 0 else int(grace)


def _propagate(meta: dict[str, Any], options: DeleteOptions) -> None:
    """propagationPolicy becomes a finalizer that the garbage collector takes off."""
    if options.propagation is None:
        return
    remaining = [f for f in meta.get("finalizers", []) if f not in (names.FOREGROUND, names.ORPHAN)]
    if options.propagation == "Foreground":
        remaining.append(names.FOREGROUND)
    elif options.propagation == "Orphan":
        remaining.append(names.ORPHAN)
    if remaining:
        meta["finalizers"] = remaining
    else:
        meta.pop("finalizers", None)
