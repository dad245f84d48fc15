"""Validation of PersistentVolumes: capacity, modes, exactly one source, immutable fields."""

from __future__ import annotations

import posixpath

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.schema import schemas
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, difference
from tonnage_box.apiserver.validation.meta import dns_label, dns_subdomain, kind_rules, node_selector_terms

_SPEC = "core.v1.PersistentVolumeSpec"
_RECLAIM = ("Delete", "Recycle", "Retain")
VOLUME_MODES = ("Block", "Filesystem")
_HOST_PATH_TYPES = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_SECRETS = (
    "controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef",
)  # fmt: skip
_MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
_WITH_MOUNT_OPTIONS = frozenset(
    {
        "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "gcePersistentDisk", "glusterfs", "iscsi",
        "nfs", "photonPersistentDisk", "quobyte", "rbd", "vsphereVolume",
    }
)  # fmt: skip
"""Sources that may have that annotation."""
_COMMON = frozenset(
    {
        "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity", "persistentVolumeReclaimPolicy",
        "storageClassName", "volumeAttributesClassName", "volumeMode",
    }
)  # fmt: skip


def sources(spec: Obj) -> list[str]:
    """Which of the volume's sources are given: every field that is not common to all volumes."""
    return [word for word in schemas.struct(_SPEC).fields if word in spec and word not in _COMMON]


@kind_rules(whole=True)
def validate(faults: Faults, new: Obj, old: Obj | None) -> None:
    """PersistentVolume."""
    notes = new["metadata"].get("annotations") or {}
    if old is None and _MOUNT_OPTIONS in notes and not _WITH_MOUNT_OPTIONS & new["spec"].keys():
        where = f"metadata.annotations.{_MOUNT_OPTIONS}"
        faults.forbidden(where, "may not specify mount options for this volume type")
    if old is None or new["spec"] != old["spec"]:
        volume_spec(faults, new["spec"], "spec", inline=False)
        if old is not None:
            _update(faults, new["spec"], old["spec"])


def _update(faults: Faults, new: Obj, old: Obj) -> None:
    source = {word: new[word] for word in sources(new)}
    before = {word: old[word] for word in sources(old)}
    csi = before.get("csi")
    if csi and "controllerExpandSecretRef" not in csi and "csi" in source:
        # It may be added once, so that volumes made before expansion was known can grow.
        source["csi"] = {k: v for k, v in source["csi"].items() if k != "controllerExpandSecretRef"}
    if source != before:
        path = "spec.persistentvolumesource"
        faults.forbidden(path, f"{path} is immutable after creation\n{difference(source, before)}")
    faults.fixed("", new, old, "volumeMode")
    if "nodeAffinity" in old and new.get("nodeAffinity") != old["nodeAffinity"]:
        detail = "field is immutable, except for updating from beta label to GA"
        faults.invalid("nodeAffinity", new.get("nodeAffinity"), detail)


def volume_spec(faults: Faults, spec: Obj, path: str, *, inline: bool) -> None:
    """PersistentVolumeSpec; inline is the one inside a VolumeAttachment, which has no claim and no capacity."""
    if inline:
        _inline(faults, spec, path)
    faults.given(path, spec, "accessModes")
    access_modes(faults, spec.get("accessModes") or [], f"{path}.accessModes")
    if not inline:
        _capacity(faults, spec.get("capacity") or {}, f"{path}.capacity")
    policy = spec.get("persistentVolumeReclaimPolicy") or "Retain"
    faults.one_of(f"{path}.persistentVolumeReclaimPolicy", policy, _RECLAIM)
    if "nodeAffinity" in spec and not inline:
        _node_affinity(faults, spec["nodeAffinity"], f"{path}.nodeAffinity")
    _source(faults, spec, path, policy)
    faults.optional(path, spec, dns_subdomain, "storageClassName")
    faults.one_of(f"{path}.volumeMode", spec.get("volumeMode", "Filesystem"), VOLUME_MODES)
    if "volumeAttributesClassName" in spec:
        _attributes_class(faults, spec, path)


def _inline(faults: Faults, spec: Obj, path: str) -> None:
    for word in ("claimRef", "capacity", "nodeAffinity", "storageClassName"):
        if spec.get(word):
            faults.forbidden(f"{path}.{word}", "may not be specified in the context of inline volumes")
    if "csi" not in spec:
        faults.required(f"{path}.csi", "has to be specified in the context of inline volumes")


def access_modes(faults: Faults, modes: list[str], path: str) -> None:
    """Known modes; ReadWriteOncePod only alone."""
    for mode in modes:
        faults.one_of(path, mode, sorted(names.ACCESS_MODES))
    if names.READ_WRITE_ONCE_POD in modes and set(modes) & set(names.ACCESS_MODES) - {names.READ_WRITE_ONCE_POD}:
        faults.forbidden(path, "may not use ReadWriteOncePod with other access modes")


def _capacity(faults: Faults, capacity: Obj, path: str) -> None:
    if not capacity:
        faults.required(path)
    if capacity.keys() != {"storage"}:
        faults.not_supported(path, capacity, ["storage"])
    for resource, text in capacity.items():
        if Quantity.parse(text).nanos <= 0:
            faults.invalid(f"{path}[{resource}]", text, "must be greater than zero")


def _node_affinity(faults: Faults, affinity: Obj, path: str) -> None:
    if "required" in affinity:
        node_selector_terms(faults, affinity["required"], f"{path}.required")
    else:
        faults.required(f"{path}.required", "must specify required node constraints")


def _source(faults: Faults, spec: Obj, path: str, policy: str) -> None:
    given = sources(spec)
    if not given:
        faults.required(path, "must specify a volume type")
        return
    for word in given[1:]:
        faults.forbidden(f"{path}.{word}", "may not specify more than 1 volume type")
    word, source = given[0], spec[given[0]]
    here = f"{path}.{word}"
    if word == "csi":
        _csi(faults, source, here)
    elif word == "local":
        _path(faults, source, here)
        if "nodeAffinity" not in spec:
            faults.required(f"{path}.nodeAffinity", "Local volume requires node affinity")
    elif word == "hostPath":
        host_path(faults, source, here)
        if posixpath.normpath(source.get("path", ".")) == "/" and policy == "Recycle":
            detail = "may not be 'recycle' for a hostPath mount of '/'"
            faults.forbidden(f"{path}.persistentVolumeReclaimPolicy", detail)
    else:
        required_fields(faults, _SPEC, word, source, here)


def required_fields(faults: Faults, owner: str, word: str, source: Obj, path: str) -> None:
    """Sources of other systems are held to the fields that their schema requires, no further.

    owner: the struct that has a source below that word.
    """
    for field in schemas.struct(schemas.struct(owner).fields[word].type.struct).fields.values():
        if field.required and source.get(field.name) in (None, "", [], {}):
            faults.required(f"{path}.{field.name}")


def _csi(faults: Faults, csi: Obj, path: str) -> None:
    driver_name(faults, csi.get("driver", ""), f"{path}.driver")
    faults.given(path, csi, "volumeHandle")
    for word in _SECRETS:
        if word in csi:
            for field, rule in (("name", dns_subdomain), ("namespace", dns_label)):
                faults.name(f"{path}.{word}.{field}", csi[word].get(field), rule)


def driver_name(faults: Faults, name: str, path: str) -> None:
    """A CSI driver's name: a DNS subdomain in any case, at most 63 bytes."""
    if not name:
        faults.required(path)
    if len(name.encode()) > 63:
        faults.too_long(path, 63)
    faults.check(path, name, lambda name: dns_subdomain(name.lower()))


def _path(faults: Faults, source: Obj, path: str) -> None:
    faults.name(f"{path}.path", source.get("path"), no_backsteps)


def host_path(faults: Faults, source: Obj, path: str) -> None:
    """HostPathVolumeSource, of volumes and of pods."""
    _path(faults, source, path)
    faults.one_of(f"{path}.type", source.get("type", ""), _HOST_PATH_TYPES)


def no_backsteps(target: str) -> list[str]:
    """Fault of a path with `..`."""
    return ["must not contain '..'"] if ".." in target.split("/") else []


def _attributes_class(faults: Faults, spec: Obj, path: str) -> None:
    name, here = spec["volumeAttributesClassName"], f"{path}.volumeAttributesClassName"
    faults.name(here, name, dns_subdomain, "an empty string is disallowed")
    if "csi" not in spec:
        faults.required(f"{path}.csi", "has to be specified when using volumeAttributesClassName")
