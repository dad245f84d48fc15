"""Columns of `kubectl get` for storage.k8s.io (pkg/printers/internalversion)."""

from __future__ import annotations

from tonnage.kubernetes.api import names
from tonnage_box.apiserver.printers.table import AGE, NAME, Column, Obj, at, dig, of


def _class_name(obj: Obj) -> str:
    annotations = obj["metadata"].get("annotations") or {}
    default = any(annotations.get(key) == "true" for key in (names.DEFAULT_CLASS, names.BETA_DEFAULT_CLASS))
    return str(obj["metadata"]["name"]) + (" (default)" if default else "")


STORAGE_CLASS = (
    Column("Name", lambda o, _: _class_name(o), format="name", text="Name, and whether it is the default."),
    at("Provisioner", "provisioner", text="The driver that makes its volumes."),
    at("ReclaimPolicy", "reclaimPolicy", empty="Delete", text="What happens to a volume when its claim goes."),
    at("VolumeBindingMode", "volumeBindingMode", empty="Immediate", text="When volumes are bound."),
    at("AllowVolumeExpansion", "allowVolumeExpansion", empty=False, text="Whether claims may grow."),
    AGE,
)


def _audiences(obj: Obj) -> str:
    requests = dig(obj, "spec", "tokenRequests")
    return "<unset>" if requests is None else ",".join(r.get("audience", "") for r in requests)


CSI_DRIVER = (
    NAME,
    at("AttachRequired", "spec", "attachRequired", empty=True, kind="boolean"),
    at("PodInfoOnMount", "spec", "podInfoOnMount", empty=False, kind="boolean"),
    at("StorageCapacity", "spec", "storageCapacity", empty=False, kind="boolean"),
    of("TokenRequests", _audiences),
    at("RequiresRepublish", "spec", "requiresRepublish", empty=False, kind="boolean"),
    of("Modes", lambda o: ",".join(dig(o, "spec", "volumeLifecycleModes") or ()) or "<none>"),
    AGE,
)
CSI_NODE = (NAME, of("Drivers", lambda o: len(dig(o, "spec", "drivers") or ()), kind="integer"), AGE)
CAPACITY = (NAME, at("StorageClassName", "storageClassName"), at("Capacity", "capacity", empty="<unset>"))
ATTACHMENT = (
    NAME,
    at("Attacher", "spec", "attacher"),
    at("PV", "spec", "source", "persistentVolumeName"),
    at("Node", "spec", "nodeName"),
    at("Attached", "status", "attached", empty=False, kind="boolean"),
    AGE,
)
ATTRIBUTES_CLASS = (NAME, at("DriverName", "driverName"), AGE)
