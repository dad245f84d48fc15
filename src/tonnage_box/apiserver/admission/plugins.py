"""Kubernetes' built-in admission plugins for the served kinds.

Run after validation and before the store, in this order: NamespaceLifecycle, the rewrite of limited emptyDirs
(tonnage's own), RuntimeClass, LimitRanger, ServiceAccount,
DefaultTolerationSeconds, Priority, StorageObjectInUseProtection, DefaultStorageClass, PersistentVolumeClaimResize,
ResourceQuota.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tonnage.base.errors import ApiNotFoundError, FieldCause
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.matching import default_class
from tonnage.kubernetes.api.meta import PartialObject
from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.admission import account, empty_dir, limit_ranger, priority, quota, runtime_class
from tonnage_box.apiserver.request import errors
from tonnage_box.apiserver.request.admission_context import AdmissionContext
from tonnage_box.apiserver.request.negotiate import run_in_thread_if_large
from tonnage_box.apiserver.request.resource import Admit
from tonnage_box.apiserver.storage.store import Obj

IMMORTAL = frozenset({"default", "kube-system", "kube-public"})
_TOLERATED = 300
_CONTAINER = 512
_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"


def plain(kind: Kind[Any]) -> Admit:
    """Admission of a namespaced kind without peculiarities: its namespace must take it, its count must fit."""

    async def admit(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
        check_namespace(context, kind)
        await _count(context, kind, new, old)

    return admit


async def cluster_scoped(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """Namespaces: some may never go."""
    if context.operation == "DELETE" and context.name in IMMORTAL:
        raise errors.forbidden(kinds.NAMESPACES, context.name, "this namespace may not be deleted")


async def pod(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """Pods: limits, account, priority, tolerations, quota."""
    check_namespace(context, kinds.PODS)
    if context.operation == "CREATE":
        empty_dir.of_pod(context, new)
        runtime_class.of_pod(context, new)
        await limit_ranger.pod(context, new)
        account.of_pod(context, new)
        await priority.of_pod(context, new)
        _tolerate(new["spec"])
    await _count(context, kinds.PODS, new, old)


async def claim(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """Claims: limits, finalizer, default class, growth, quota."""
    check_namespace(context, kinds.CLAIMS)
    if context.operation == "CREATE":
        _protect(new, names.PVC_PROTECTION)
        await _default_class(context, new)
        await limit_ranger.claim(context, new)
    elif context.operation == "UPDATE" and old is not None and not context.subresource:
        _growth(context, new, old)
        await limit_ranger.claim(context, new, old)
    await _count(context, kinds.CLAIMS, new, old)


async def volume(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """Volumes: the finalizer that keeps one that is in use."""
    if context.operation == "CREATE":
        _protect(new, names.PV_PROTECTION)


async def attributes_class(context: AdmissionContext, new: Obj, old: Obj | None) -> None:
    """VolumeAttributesClasses: the finalizer that keeps one that a claim or a volume names."""
    if context.operation == "CREATE":
        _protect(new, names.VAC_PROTECTION)


def check_namespace(context: AdmissionContext, kind: Kind[Any]) -> None:
    """Require that a new object's namespace exists (404) and is not being deleted (403)."""
    if context.operation != "CREATE" or context.subresource:
        return
    namespace = context.get(kinds.NAMESPACES, context.namespace)
    if namespace is None:
        raise ApiNotFoundError(f'namespaces "{context.namespace}" not found', kind="namespaces", name=context.namespace)
    if namespace["metadata"].get("deletionTimestamp"):
        cause = FieldCause(
            "metadata.namespace", f"namespace {context.namespace} is being terminated", "NamespaceTerminating"
        )
        why = f"unable to create new content in namespace {context.namespace} because it is being terminated"
        raise errors.forbidden(kind, context.name, why, [cause])


def _protect(obj: Obj, finalizer: str) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if finalizer not in finalizers:
        finalizers.append(finalizer)


async def _default_class(context: AdmissionContext, claim: Obj) -> None:
    if "storageClassName" in claim["spec"] or _BETA_CLASS in (claim["metadata"].get("annotations") or {}):
        return
    # Only metadata: a class of which the rest cannot be read must not stop the creation of all claims.
    found = default_class(msgspec.convert(await context.list(kinds.STORAGE_CLASSES), list[PartialObject]))
    if found is not None:
        claim["spec"]["storageClassName"] = found.metadata.name


def _size(claim: Obj) -> int:
    return Quantity.parse(claim["spec"].get("resources", {}).get("requests", {}).get("storage", "0")).nanos


def _growth(context: AdmissionContext, new: Obj, old: Obj) -> None:
    """Only a bound claim of a class that allows it may grow (PersistentVolumeClaimResize)."""
    if _size(new) <= _size(old):
        return
    if (old.get("status") or {}).get("phase") != "Bound":
        raise errors.forbidden(kinds.CLAIMS, context.name, "Only bound persistent volume claims can be expanded")
    name = old["spec"].get("storageClassName")
    found = context.get(kinds.STORAGE_CLASSES, name) if name else None
    if not (found and found.get("allowVolumeExpansion")):
        why = (
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support "
            "resize"
        )
        raise errors.forbidden(kinds.CLAIMS, context.name, why)


def _tolerate(spec: Obj) -> None:
    """Add tolerations that let a pod stay 300 s on an unreachable or not-ready node."""
    tolerations = spec.setdefault("tolerations", [])
    for key in (names.NOT_READY_TAINT, names.UNREACHABLE_TAINT):
        if not any(_covers(t, key) for t in tolerations):
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED}
            tolerations.append(toleration)


def _covers(toleration: Obj, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")


async def _count(context: AdmissionContext, kind: Kind[Any], new: Obj, old: Obj | None) -> None:
    """Reject an object that would exceed a quota of its namespace."""
    if context.operation == "DELETE" or (context.subresource and context.subresource != "status"):
        return
    if context.operation == "UPDATE" and kind is not kinds.CLAIMS:
        return
    if not await context.list(kinds.RESOURCE_QUOTAS, context.namespace):
        return
    await context.hold(quota.lock(context.namespace))
    asked = await run_in_thread_if_large(_weight(new), quota.usage, kind.key, new)
    if context.operation == "UPDATE" and old is not None:
        before = await run_in_thread_if_large(_weight(old), quota.usage, kind.key, old)
        asked = {r: asked.get(r, 0) - before.get(r, 0) for r in asked.keys() | before.keys()}
    if context.subresource:  # what a scope counts is checked when the spec changes only
        asked = {r: amount for r, amount in asked.items() if not quota.is_scoped(r)}
    if not any(amount > 0 for amount in asked.values()):
        return
    quotas = await context.list(kinds.RESOURCE_QUOTAS, context.namespace)
    used = await context.used(context.namespace)

    def check() -> None:
        for found in sorted(quotas, key=lambda q: str(q["metadata"]["name"])):
            why = quota.missing(found, new) if kind is kinds.PODS else None
            why = why or quota.exceeded(found, used, asked)
            if why:
                raise errors.forbidden(kind, context.name, why)

    await run_in_thread_if_large(_weight(new) * len(quotas), check)


def _weight(obj: Obj) -> int:
    """Bytes that the containers of a pod count for, where its text is not at hand; 0 for other objects."""
    spec = obj.get("spec") or {}
    return sum(_CONTAINER * len(spec.get(word) or ()) for word in ("containers", "initContainers"))
