"""Warnings that answer a create or update, in the words of Kubernetes: the `warn` hooks of the resource table's rows.

They tell what is accepted and has another effect than its author may think, or none (pkg/api/*, GetWarningsFor...).
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from tonnage_box.api import pod_fields
from tonnage_box.apiserver.kinds.core import pod_warnings
from tonnage_box.apiserver.kinds.core.node_labels import of_terms
from tonnage_box.apiserver.printers.table import dig
from tonnage_box.apiserver.storage.store import Obj

_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_OLD_CLASS = (
    f'metadata.annotations[{_CLASS_ANNOTATION}]: deprecated since v1.8; use "storageClassName" attribute instead'
)
_MOUNT_ANNOTATION = "volume.beta.kubernetes.io/mount-options"
_OLD_MOUNT_OPTIONS = (
    f'metadata.annotations[{_MOUNT_ANNOTATION}]: deprecated since v1.31; use "mountOptions" attribute instead'
)
_RECYCLE = (
    "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach "
    "is to use dynamic provisioning."
)
_GONE_SOURCES: Mapping[str, tuple[str, str]] = {
    "cephfs": ("1.28", "1.31"),
    "photonPersistentDisk": ("1.11", "1.16"),
    "scaleIO": ("1.16", "1.22"),
    "storageos": ("1.22", "1.25"),
    "glusterfs": ("1.25", "1.26"),
    "rbd": ("1.28", "1.31"),
}
"""Source of a PersistentVolume -> the Kubernetes that deprecates it, and that it does nothing in."""


def claim(new: Obj, old: Obj | None) -> list[str]:
    """Of a claim, at each write."""
    return [*_old_class(new), *pod_warnings.sizes(new.get("spec"), "spec")]


def volume(new: Obj, old: Obj | None) -> list[str]:
    """Of a PersistentVolume, at each write."""
    spec = new.get("spec") or {}
    warnings = _old_class(new)
    if _MOUNT_ANNOTATION in (new["metadata"].get("annotations") or {}):
        warnings.append(_OLD_MOUNT_OPTIONS)
    if spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        warnings.append(_RECYCLE)
    terms = dig(spec, "nodeAffinity", "required", "nodeSelectorTerms") or ()
    warnings += of_terms(terms, "spec.nodeAffinity.required.nodeSelectorTerms")
    for word, (deprecated, gone) in _GONE_SOURCES.items():
        if word in spec:
            shown = "storageOS" if word == "storageos" else word
            warnings.append(f"spec.{shown}: deprecated in v{deprecated}, non-functional in v{gone}+")
    return warnings


def pod(new: Obj, old: Obj | None) -> list[str]:
    """Of a new pod. Programs write pods much more often than people, so updates have none, as in Kubernetes."""
    return of_pod(new, "") if old is None else []


def template(new: Obj, old: Obj | None) -> list[str]:
    """Of a workload with a template of pods, when its spec changes."""
    return of_pod(dig(new, "spec", "template") or {}, "spec.template.") if is_changed(new, old) else []


def is_changed(new: Obj, old: Obj | None) -> bool:
    """Whether the spec is new or another one."""
    return old is None or new.get("spec") != old.get("spec")


def _old_class(obj: Obj) -> list[str]:
    return [_OLD_CLASS] if _CLASS_ANNOTATION in (obj["metadata"].get("annotations") or {}) else []


def of_pod(pod: Obj, path: str) -> list[str]:
    """In Kubernetes' words, and then of what has no effect in the box. path: of the pod, with its dot."""
    return [*pod_warnings.of_pod(pod, path), *pod_fields.warnings(pod.get("spec") or {}, f"{path}spec")]
