"""Validation of storage.k8s.io: StorageClass, CSIDriver, CSINode and others (pkg/apis/storage/validation)."""

from __future__ import annotations

import json

from tonnage_box.apiserver.kinds.core.validation.persistent_volume import driver_name, volume_spec
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import dns_subdomain, kind_rules, label_selector, qualified_name

_MAX_PARAMETERS, _MAX_BYTES = 512, 256 << 10
_MAX_TOPOLOGIES = 1000
"""Values, with terms without any; Kubernetes has no limit. Each is compared on each node."""
_MAX_NODE_ID = 256
_MAX_ERROR = 1024
_BINDING_MODES = ("Immediate", "WaitForFirstConsumer")
_FS_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
_LIFECYCLES = ("Persistent", "Ephemeral")


@kind_rules()
def storage_class(faults: Faults, new: Obj, old: Obj | None) -> None:
    """StorageClass: what volumes are made by may not change, who may mount and grow them may."""
    if old is not None:
        faults.fixed("", new, old, "parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
        return
    faults.name("provisioner", new.get("provisioner"), lambda name: qualified_name(name.lower()))
    _parameters(faults, new.get("parameters") or {})
    faults.one_of("reclaimPolicy", new.get("reclaimPolicy"), ("Delete", "Retain"))
    faults.one_of("volumeBindingMode", new.get("volumeBindingMode"), _BINDING_MODES)
    _topologies(faults, new)


def _parameters(faults: Faults, parameters: Obj) -> None:
    if len(parameters) > _MAX_PARAMETERS:
        faults.too_long("parameters", _MAX_PARAMETERS)
        return
    if "" in parameters:
        faults.invalid("parameters", "", "field can not be empty.")
    if sum(len(k.encode()) + len(v.encode()) for k, v in parameters.items()) > _MAX_BYTES:
        faults.too_long("parameters", _MAX_BYTES)


def _topologies(faults: Faults, new: Obj) -> None:
    terms = new.get("allowedTopologies") or ()
    number = sum(len(e.get("values") or ()) or 1 for t in terms for e in t.get("matchLabelExpressions") or [{}])
    if faults.too_many("allowedTopologies", number, _MAX_TOPOLOGIES, "values"):
        return
    seen = []
    for path, term in items(new, "allowedTopologies", ""):
        keys: dict[str, frozenset[str]] = {}
        for here, expression in items(term, "matchLabelExpressions", f"{path}."):
            key = expression.get("key", "")
            faults.given(here, expression, "values")
            values: set[str] = set()
            for place, value in items(expression, "values", f"{here}."):
                faults.unique(place, value, values)
            faults.check(f"{here}.key", key, qualified_name)
            if key in keys:
                faults.duplicate(f"{here}.key", key)
            keys[key] = frozenset(values)
        if keys in seen:
            faults.duplicate(f"{path}.matchLabelExpressions", "")
        seen.append(keys)


@kind_rules()
def csi_driver(faults: Faults, new: Obj, old: Obj | None) -> None:
    """CSIDriver. The path of attachRequired is wrong in Kubernetes too; tools search for it."""
    spec = new["spec"]
    faults.one_of("spec.fsGroupPolicy", spec.get("fsGroupPolicy", "File"), _FS_GROUP_POLICIES)
    _token_requests(faults, spec)
    for mode in spec.get("volumeLifecycleModes") or ():
        faults.one_of("spec.volumeLifecycleModes", mode, _LIFECYCLES)
    period = spec.get("nodeAllocatableUpdatePeriodSeconds")
    if period is not None and period < 10:
        path = "spec.nodeAllocatableUpdatePeriodSeconds"
        faults.invalid(path, period, "must be greater than or equal to 10 seconds")
    if old is not None:
        faults.immutable("spec.attachedRequired", spec.get("attachRequired"), old["spec"].get("attachRequired"))
        faults.fixed("spec.", spec, old["spec"], "volumeLifecycleModes")


def _token_requests(faults: Faults, spec: Obj) -> None:
    audiences = set()
    for path, request in items(spec, "tokenRequests", "spec."):
        audience, seconds = request.get("audience", ""), request.get("expirationSeconds", 600)
        if audience in audiences:
            faults.duplicate(f"{path}.audience", audience)
            continue
        audiences.add(audience)
        if seconds < 600:
            faults.invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        if seconds > 1 << 32:
            faults.invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")


@kind_rules()
def csi_node(faults: Faults, new: Obj, old: Obj | None) -> None:
    """CSINode: drivers come and go, but one that is there keeps its node id and topology."""
    names: set[str] = set()
    spec = new.get("spec") or {}
    for path, driver in items(spec, "drivers", "spec."):
        driver_name(faults, driver.get("name", ""), f"{path}.name")
        _node_driver(faults, driver, path)
        faults.unique(f"{path}.name", driver.get("name", ""), names)
    before = {d.get("name"): d for d in ((old or {}).get("spec") or {}).get("drivers") or ()}
    for driver in spec.get("drivers") or ():
        faults.immutable("spec.drivers", _fixed(driver), _fixed(before.get(driver.get("name"), driver)))


def _fixed(driver: Obj) -> Obj:
    return {k: v for k, v in driver.items() if k != "allocatable"}


def _node_driver(faults: Faults, driver: Obj, path: str) -> None:
    faults.given(path, driver, "nodeID")
    if len(driver.get("nodeID", "").encode()) > _MAX_NODE_ID:
        faults.invalid(f"{path}.nodeID", driver["nodeID"], f"must be {_MAX_NODE_ID} characters or less")
    faults.not_negative(f"{path}.allocatable", driver.get("allocatable") or {}, "count")
    keys: set[str] = set()
    for key in driver.get("topologyKeys") or ():
        if not key:
            faults.required(path)
        faults.unique(path, key, keys)
        faults.check(path, key, qualified_name)


@kind_rules()
def capacity(faults: Faults, new: Obj, old: Obj | None) -> None:
    """CSIStorageCapacity. Like Kubernetes, this does not check maximumVolumeSize."""
    name = new.get("storageClassName", "")
    if old is not None:
        faults.fixed("", new, old, "nodeTopology")
        faults.immutable("storageClassName", name, old.get("storageClassName", ""))
        return
    label_selector(faults, new.get("nodeTopology") or {}, "nodeTopology")
    faults.check("storageClassName", name, dns_subdomain)
    faults.amount("capacity", new.get("capacity", "0"))


@kind_rules()
def attachment(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeAttachment: what is attached where never changes."""
    spec = new.get("spec") or {}
    faults.given("spec", spec, "attacher")
    _source(faults, spec.get("source") or {})
    faults.check("spec.nodeName", spec.get("nodeName", ""), dns_subdomain)
    _attached(faults, new.get("status") or {})
    if old is None:
        if spec.get("attacher"):
            driver_name(faults, spec["attacher"], "spec.attacher")
        faults.optional("spec.source", spec.get("source") or {}, dns_subdomain, "persistentVolumeName")
    else:
        faults.immutable("spec", spec, old.get("spec") or {})


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


@kind_rules()
def attributes_class(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeAttributesClass: nothing of it changes."""
    if old is not None:
        faults.fixed("", new, old, "driverName", "parameters")
        return
    faults.name("driverName", new.get("driverName"), lambda name: dns_subdomain(name.lower()))
    if not new.get("parameters"):
        faults.required("parameters", "must contain at least one key/value pair")
    elif "" in new["parameters"]:
        faults.invalid("parameters", "", "field can not be empty.")
