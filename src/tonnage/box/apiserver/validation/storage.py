"""Validation of storage kinds: StorageClass, CSIDriver, CSINode and others (pkg/apis/storage/validation)."""

from __future__ import annotations

import json
from typing import Any

from tonnage.api.quantity import Quantity
from tonnage.box.apiserver.validation.field_errors import Faults, immutable
from tonnage.box.apiserver.validation.meta import dns_subdomain, label_selector, metadata, qualified_name
from tonnage.box.apiserver.validation.persistent_volume import driver_name, volume_spec
from tonnage.errors import FieldCause

Obj = dict[str, Any]
_MAX_PARAMETERS, _MAX_BYTES = 512, 256 << 10
_MAX_NODE_ID = 256
_MAX_ERROR = 1024
_BINDING_MODES = ("Immediate", "WaitForFirstConsumer")
_FS_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
_LIFECYCLES = ("Persistent", "Ephemeral")


def storage_class(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """StorageClass: what volumes are made by may not change, who may mount and grow them may."""
    faults = Faults()
    metadata(faults, new, old=old)
    if old is not None:
        for field in ("parameters", "provisioner", "reclaimPolicy"):
            if new.get(field) != old.get(field):
                faults.forbidden(field, f"updates to {field} are forbidden.")
        immutable(faults, new.get("volumeBindingMode"), old.get("volumeBindingMode"), "volumeBindingMode")
        return faults
    if not new.get("provisioner"):
        faults.required("provisioner")
    else:
        faults.each("provisioner", new["provisioner"], qualified_name(new["provisioner"].lower()))
    _parameters(faults, new.get("parameters") or {})
    if new.get("reclaimPolicy") not in ("Delete", "Retain"):
        faults.not_supported("reclaimPolicy", new.get("reclaimPolicy"), ("Delete", "Retain"))
    if new.get("volumeBindingMode") not in _BINDING_MODES:
        faults.not_supported("volumeBindingMode", new.get("volumeBindingMode"), _BINDING_MODES)
    _topologies(faults, new.get("allowedTopologies") or [])
    return faults


def _parameters(faults: Faults, parameters: Obj) -> None:
    if len(parameters) > _MAX_PARAMETERS:
        faults.too_long("parameters", _MAX_PARAMETERS)
        return
    if "" in parameters:
        faults.invalid("parameters", "", "field can not be empty.")
    if sum(len(k.encode()) + len(v.encode()) for k, v in parameters.items()) > _MAX_BYTES:
        faults.too_long("parameters", _MAX_BYTES)


def _topologies(faults: Faults, terms: list[Obj]) -> None:
    seen = []
    for index, term in enumerate(terms):
        path = f"allowedTopologies[{index}].matchLabelExpressions"
        keys: dict[str, frozenset[str]] = {}
        for number, expression in enumerate(term.get("matchLabelExpressions") or ()):
            here = f"{path}[{number}]"
            key, values = expression.get("key", ""), expression.get("values") or []
            if not values:
                faults.required(f"{here}.values")
            for place, value in enumerate(values):
                if value in values[:place]:
                    faults.duplicate(f"{here}.values[{place}]", value)
            faults.each(f"{here}.key", key, qualified_name(key))
            if key in keys:
                faults.duplicate(f"{here}.key", key)
            keys[key] = frozenset(values)
        if keys in seen:
            faults.duplicate(path, "")
        seen.append(keys)


def csi_driver(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """CSIDriver. The path of attachRequired is wrong in Kubernetes too; tools search for it."""
    faults = Faults()
    metadata(faults, new, old=old)
    spec = new["spec"]
    policy = spec.get("fsGroupPolicy")
    if policy is not None and policy not in _FS_GROUP_POLICIES:
        faults.not_supported("spec.fsGroupPolicy", policy, _FS_GROUP_POLICIES)
    _token_requests(faults, spec.get("tokenRequests") or [])
    for mode in spec.get("volumeLifecycleModes") or ():
        if mode not in _LIFECYCLES:
            faults.not_supported("spec.volumeLifecycleModes", mode, _LIFECYCLES)
    period = spec.get("nodeAllocatableUpdatePeriodSeconds")
    if period is not None and period < 10:
        path = "spec.nodeAllocatableUpdatePeriodSeconds"
        faults.invalid(path, period, "must be greater than or equal to 10 seconds")
    if old is not None:
        for field, path in (("attachRequired", "attachedRequired"), ("volumeLifecycleModes",) * 2):
            immutable(faults, spec.get(field), old["spec"].get(field), f"spec.{path}")
    return faults


def _token_requests(faults: Faults, requests: list[Obj]) -> None:
    audiences = set()
    for index, request in enumerate(requests):
        path, audience = f"spec.tokenRequests[{index}]", request.get("audience", "")
        if audience in audiences:
            faults.duplicate(f"{path}.audience", audience)
            continue
        audiences.add(audience)
        seconds = request.get("expirationSeconds")
        if seconds is not None and seconds < 600:
            faults.invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        if seconds is not None and seconds > 1 << 32:
            faults.invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")


def csi_node(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """CSINode: drivers come and go, but one that is there keeps its node id and topology."""
    faults = Faults()
    metadata(faults, new, old=old)
    names = set()
    drivers = (new.get("spec") or {}).get("drivers") or []
    for index, driver in enumerate(drivers):
        path = f"spec.drivers[{index}]"
        driver_name(faults, driver.get("name", ""), f"{path}.name")
        _node_driver(faults, driver, path)
        if driver.get("name") in names:
            faults.duplicate(f"{path}.name", driver.get("name", ""))
        names.add(driver.get("name"))
    before = {d.get("name"): d for d in ((old or {}).get("spec") or {}).get("drivers") or ()}
    for driver in drivers:
        was = before.get(driver.get("name"))
        if was is not None and _fixed(driver) != _fixed(was):
            faults.invalid("spec.drivers", _fixed(driver), "field is immutable")
    return faults


def _fixed(driver: Obj) -> Obj:
    return {k: v for k, v in driver.items() if k != "allocatable"}


def _node_driver(faults: Faults, driver: Obj, path: str) -> None:
    node_id = driver.get("nodeID", "")
    if not node_id:
        faults.required(f"{path}.nodeID")
    elif len(node_id.encode()) > _MAX_NODE_ID:
        faults.invalid(f"{path}.nodeID", node_id, f"must be {_MAX_NODE_ID} characters or less")
    count = (driver.get("allocatable") or {}).get("count")
    if count is not None and count < 0:
        faults.invalid(f"{path}.allocatable.count", count, "must be greater than or equal to 0")
    keys = driver.get("topologyKeys") or []
    for index, key in enumerate(keys):
        if not key:
            faults.required(path)
        if key in keys[:index]:
            faults.duplicate(path, key)
        faults.each(path, key, qualified_name(key))


def capacity(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """CSIStorageCapacity. Like Kubernetes, this does not check maximumVolumeSize."""
    faults = Faults()
    metadata(faults, new, old=old)
    if old is not None:
        immutable(faults, new.get("nodeTopology"), old.get("nodeTopology"), "nodeTopology")
        immutable(faults, new.get("storageClassName", ""), old.get("storageClassName", ""), "storageClassName")
        return faults
    if "nodeTopology" in new:
        label_selector(faults, new["nodeTopology"], "nodeTopology")
    name = new.get("storageClassName", "")
    faults.each("storageClassName", name, dns_subdomain(name))
    if "capacity" in new and Quantity.parse(new["capacity"]).nanos < 0:
        faults.invalid("capacity", new["capacity"], "must be greater than or equal to 0")
    return faults


def attachment(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """VolumeAttachment: what is attached where never changes."""
    faults = Faults()
    metadata(faults, new, old=old)
    spec = new.get("spec") or {}
    if not spec.get("attacher"):
        faults.required("spec.attacher")
    _source(faults, spec.get("source") or {})
    faults.each("spec.nodeName", spec.get("nodeName", ""), dns_subdomain(spec.get("nodeName", "")))
    _attached(faults, new.get("status") or {})
    if old is None:
        if spec.get("attacher"):
            driver_name(faults, spec["attacher"], "spec.attacher")
        volume = (spec.get("source") or {}).get("persistentVolumeName")
        if volume:
            faults.each("spec.source.persistentVolumeName", volume, dns_subdomain(volume))
    elif spec != (old.get("spec") or {}):
        faults.invalid("spec", spec, "field is immutable")
    return faults


def _source(faults: Faults, source: Obj) -> None:
    path, one = "spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    given = source.keys() & {"inlineVolumeSpec", "persistentVolumeName"}
    if not given:
        faults.required(path, one)
    elif len(given) == 2:
        faults.forbidden(path, one)
    elif source.get("persistentVolumeName") == "":
        faults.required(f"{path}.persistentVolumeName", "must specify non empty persistentVolumeName")
    elif "inlineVolumeSpec" in given:
        volume_spec(faults, source["inlineVolumeSpec"], f"{path}.inlineVolumeSpec", inline=True)


def _attached(faults: Faults, status: Obj) -> None:
    if len(json.dumps(status.get("attachmentMetadata") or {}).encode()) > _MAX_BYTES:
        faults.too_long("status.attachmentMetadata", _MAX_BYTES)
    for word in ("attachError", "detachError"):
        if len((status.get(word) or {}).get("message", "").encode()) > _MAX_ERROR:
            faults.too_long(f"status.{word}.message", _MAX_ERROR)
