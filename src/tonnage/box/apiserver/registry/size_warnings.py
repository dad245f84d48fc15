"""Warnings about sizes of claims, in the words of Kubernetes (pkg/api/persistentvolumeclaim, GetWarningsFor...).

A fraction of a byte is accepted: whatever uses the size rounds it up. Pure.
"""

from __future__ import annotations

from typing import Any

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
    """Of a pod, at each write."""
    return _volumes(new.get("spec"), "spec")


def template(new: Obj, old: Obj | None) -> list[str]:
    """Of a workload with a template of pods, when its spec changes."""
    return _volumes(dig(new, "spec", "template", "spec"), "spec.template.spec") if _is_changed(new, old) else []


def cron_job(new: Obj, old: Obj | None) -> list[str]:
    """Of a CronJob, when its spec changes."""
    where = ("spec", "jobTemplate", "spec", "template", "spec")
    return _volumes(dig(new, *where), ".".join(where)) if _is_changed(new, old) else []


def stateful_set(new: Obj, old: Obj | None) -> list[str]:
    """Of a StatefulSet: of its claim templates at each write."""
    below = "" if old is None else ".Spec"  # so upstream names it in an update
    warnings = template(new, old)
    for index, claim_template in enumerate(dig(new, "spec", "volumeClaimTemplates") or ()):
        warnings += _sizes(claim_template.get("spec"), f"spec.volumeClaimTemplates[{index}]{below}")
    return warnings


def _is_changed(new: Obj, old: Obj | None) -> bool:
    return old is None or new.get("spec") != old.get("spec")


def _volumes(spec: Any, path: str) -> list[str]:
    warnings: list[str] = []
    for index, volume in enumerate((spec or {}).get("volumes") or ()):
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
