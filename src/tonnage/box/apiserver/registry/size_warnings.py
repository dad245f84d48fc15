"""Warnings about fields of claims and pods that are accepted. Pure.

Sizes of claims are in the words of Kubernetes (pkg/api/persistentvolumeclaim, GetWarningsFor...): a fraction of a byte
is accepted, as whatever uses the size rounds it up. Fields of security contexts without effect in the box are named.
"""

from __future__ import annotations

from typing import Any

from tonnage.api import pod_security
from tonnage.api.quantity import Quantity
from tonnage.box.apiserver.printers.table import dig
from tonnage.box.apiserver.storage.store import Obj

_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_DEPRECATED = (
    f'metadata.annotations[{_CLASS_ANNOTATION}]: deprecated since v1.8; use "storageClassName" attribute instead'
)
"""pkg/api/persistentvolume, deprecatedStorageClassAnnotationsMsg."""


def claim(new: Obj, old: Obj | None) -> list[str]:
    """Of a claim, at each write."""
    notes = new["metadata"].get("annotations") or {}
    return [*([_DEPRECATED] if _CLASS_ANNOTATION in notes else []), *_sizes(new.get("spec"), "spec")]


def pod(new: Obj, old: Obj | None) -> list[str]:
    """Of a pod: of its volumes at each write, of what has no effect when its spec changes."""
    spec = new.get("spec") or {}
    return _volumes(spec, "spec") + (pod_security.warnings(spec) if _is_changed(new, old) else [])


def template(new: Obj, old: Obj | None) -> list[str]:
    """Of a workload with a template of pods, when its spec changes."""
    return _changed(new, old, "spec", "template", "spec")


def cron_job(new: Obj, old: Obj | None) -> list[str]:
    """Of a CronJob, when its spec changes."""
    return _changed(new, old, "spec", "jobTemplate", "spec", "template", "spec")


def stateful_set(new: Obj, old: Obj | None) -> list[str]:
    """Of a StatefulSet: of its claim templates at each write."""
    below = "" if old is None else ".Spec"  # so upstream names it in an update
    warnings = template(new, old)
    for index, claim_template in enumerate(dig(new, "spec", "volumeClaimTemplates") or ()):
        warnings += _sizes(claim_template.get("spec"), f"spec.volumeClaimTemplates[{index}]{below}")
    return warnings


def _changed(new: Obj, old: Obj | None, *where: str) -> list[str]:
    """Of the pod's spec there, when the object's spec changes."""
    if not _is_changed(new, old):
        return []
    spec, path = dig(new, *where) or {}, ".".join(where)
    return _volumes(spec, path) + pod_security.warnings(spec, path)


def _is_changed(new: Obj, old: Obj | None) -> bool:
    return old is None or new.get("spec") != old.get("spec")


def _volumes(spec: Obj, path: str) -> list[str]:
    warnings: list[str] = []
    for index, volume in enumerate(spec.get("volumes") or ()):
        wanted = dig(volume, "ephemeral", "volumeClaimTemplate", "spec")
        warnings += _sizes(wanted, f"{path}.volumes[{index}].ephemeral.volumeClaimTemplate.spec")
    return warnings


def _sizes(spec: Any, path: str) -> list[str]:
    warnings = []
    for word in ("requests", "limits"):
        text = dig(spec or {}, "resources", word, "storage")
        if text is not None and Quantity.parse(text).milli % 1000:
            detail = f'fractional byte value "{text}" is invalid, must be an integer'
            warnings.append(f"{path}.resources.{word}[storage]: {detail}")
    return warnings
