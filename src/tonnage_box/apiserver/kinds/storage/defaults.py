"""Defaulting of storage.k8s.io (pkg/apis/storage/v1/defaults.go). Pure functions of normalized dicts."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj


def storage_class(obj: Obj) -> None:
    """StorageClass."""
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def csi_driver(obj: Obj) -> None:
    """CSIDriver."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("attachRequired", True)
    for key in ("podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"):
        spec.setdefault(key, False)
    spec.setdefault("fsGroupPolicy", "ReadWriteOnceWithFSType")
    spec["volumeLifecycleModes"] = spec.get("volumeLifecycleModes") or ["Persistent"]


def attachment(obj: Obj) -> None:
    """VolumeAttachment: not attached by default."""
    obj.setdefault("status", {}).setdefault("attached", False)
