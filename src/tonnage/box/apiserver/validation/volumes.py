"""Validation of a pod's volumes and volume mounts (pkg/apis/core/validation).

Every volume source of Kubernetes is accepted. The box's kubelet rejects sources that it does not mount (NFS, iSCSI
...) by name when the pod starts, as a kubelet without their plugin does.
"""

from __future__ import annotations

from typing import Any

from tonnage.api.quantity import Quantity
from tonnage.box.apiserver.schema import schemas
from tonnage.box.apiserver.validation import claim
from tonnage.box.apiserver.validation.config import config_key
from tonnage.box.apiserver.validation.field_errors import Faults
from tonnage.box.apiserver.validation.meta import annotation_map, dns_label, dns_subdomain, labels
from tonnage.box.apiserver.validation.persistent_volume import driver_name, host_path, no_backsteps, required_fields

Obj = dict[str, Any]
_ANOTHER = "may not specify more than 1 volume type"
_FILE_MODES = "must be a number between 0 and 0777 (octal), both inclusive"
# Of several sources the first in Kubernetes' order is accepted, the others are the faults.
_ORDER = {"emptyDir": 0, "hostPath": 1, "csi": 3, "ephemeral": 4, "image": 5}
_BLOCK = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"


def volumes(faults: Faults, pod_name: str, every: list[Obj], path: str) -> dict[str, Obj]:
    """spec.volumes; answers the good ones by name. pod_name is "" inside a template, where it is not known."""
    made = {f"{pod_name}-{v.get('name', '')}" for v in every if "ephemeral" in v} if pod_name else set()
    found: dict[str, Obj] = {}
    for index, volume in enumerate(every):
        here, name = f"{path}[{index}]", volume.get("name", "")
        own = Faults()
        _source(own, volume, pod_name, here)
        if not name:
            own.required(f"{here}.name")
        else:
            own.each(f"{here}.name", name, dns_label(name))
        if name in found:
            own.duplicate(f"{here}.name", name)
        if not own:
            found[name] = volume
        faults.extend(own)
        claimed = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        if claimed in made:
            detail = "must not reference a PVC that gets created for an ephemeral volume"
            faults.invalid(f"{here}.persistentVolumeClaim.claimName", claimed, detail)
    return found


def _source(faults: Faults, volume: Obj, pod_name: str, path: str) -> None:
    given = sorted(volume.keys() - {"name"}, key=lambda word: (_ORDER.get(word, 2), word))
    if not given:
        faults.required(path, "must specify a volume type")
        return
    for word in given[1:]:
        faults.forbidden(f"{path}.{word}", _ANOTHER)
    word = given[0]
    source, here = volume[word], f"{path}.{word}"
    check = _SOURCES.get(word)
    if check is not None:
        check(faults, source, here)
    else:
        struct = schemas.struct("core.v1.Volume").fields[word].type.struct
        required_fields(faults, struct, source, here)
    name = volume.get("name", "")
    if word == "ephemeral" and pod_name and name:
        claim_name = f"{pod_name}-{name}"
        for message in dns_subdomain(claim_name):
            faults.invalid(f"{path}.name", name, f'PVC name "{claim_name}": {message}')


def _ephemeral(faults: Faults, source: Obj, path: str) -> None:
    template, here = source.get("volumeClaimTemplate"), f"{path}.volumeClaimTemplate"
    if template is None:
        faults.required(here)
        return
    meta = template.get("metadata") or {}
    labels(faults, meta.get("labels") or {}, f"{here}.metadata.labels")
    annotation_map(faults, meta.get("annotations") or {}, f"{here}.metadata.annotations")
    for word in sorted(meta.keys() - {"labels", "annotations", "creationTimestamp"}):
        faults.forbidden(f"{here}.metadata.{word}", "cannot be set")
    claim.spec(faults, template.get("spec") or {}, f"{here}.spec")


def _empty_dir(faults: Faults, source: Obj, path: str) -> None:
    if "sizeLimit" in source and Quantity.parse(source["sizeLimit"]).nanos < 0:
        faults.forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _claim(faults: Faults, source: Obj, path: str) -> None:
    if not source.get("claimName"):
        faults.required(f"{path}.claimName")


def _csi(faults: Faults, source: Obj, path: str) -> None:
    driver_name(faults, source.get("driver", ""), f"{path}.driver")
    if "nodePublishSecretRef" in source:
        name = source["nodePublishSecretRef"].get("name", "")
        if not name:
            faults.required(f"{path}.nodePublishSecretRef.name")
        else:
            faults.each(f"{path}.name", name, dns_subdomain(name))


def _config_map(faults: Faults, source: Obj, path: str) -> None:
    if not source.get("name"):
        faults.required(f"{path}.name")
    _files(faults, source, path)


def _secret(faults: Faults, source: Obj, path: str) -> None:
    if not source.get("secretName"):
        faults.required(f"{path}.secretName")
    _files(faults, source, path)


def _files(faults: Faults, source: Obj, path: str) -> None:
    _mode(faults, source.get("defaultMode"), f"{path}.defaultMode")
    for index, item in enumerate(source.get("items") or ()):
        here = f"{path}.items[{index}]"
        if not item.get("key"):
            faults.required(f"{here}.key")
        else:
            faults.each(f"{here}.key", item["key"], config_key(item["key"]))
        _target(faults, item, here)


def _target(faults: Faults, item: Obj, path: str) -> None:
    if not item.get("path"):
        faults.required(f"{path}.path")
    else:
        descending(faults, item["path"], f"{path}.path")
        if item["path"].startswith(".."):
            faults.invalid(f"{path}.path", item["path"], "must not start with '..'")
    _mode(faults, item.get("mode"), f"{path}.mode")


def _mode(faults: Faults, mode: int | None, path: str) -> None:
    if mode is not None and not 0 <= mode <= 0o777:
        faults.invalid(path, mode, _FILE_MODES)


def _downward(faults: Faults, source: Obj, path: str) -> None:
    _mode(faults, source.get("defaultMode"), f"{path}.defaultMode")
    for index, item in enumerate(source.get("items") or ()):
        here = f"{path}.items[{index}]"
        _target(faults, item, here)
        if "fieldRef" not in item and "resourceFieldRef" not in item:
            faults.required(here, "one of fieldRef and resourceFieldRef is required")
        elif "fieldRef" in item and "resourceFieldRef" in item:
            faults.invalid(here, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")


def _projected(faults: Faults, source: Obj, path: str) -> None:
    _mode(faults, source.get("defaultMode"), f"{path}.defaultMode")
    checks = {"configMap": _config_map, "secret": _config_map, "downwardAPI": _downward}
    for index, item in enumerate(source.get("sources") or ()):
        here, given = f"{path}.sources[{index}]", sorted(item)
        for word in given[1:]:
            faults.forbidden(f"{here}.{word}", _ANOTHER)
        if not given:
            faults.required(here, "must specify a volume type")
        elif given[0] in checks:
            checks[given[0]](faults, item[given[0]], f"{here}.{given[0]}")
        elif given[0] == "serviceAccountToken" and not item[given[0]].get("path"):
            faults.required(f"{here}.path")


_SOURCES = {
    "ephemeral": _ephemeral,
    "emptyDir": _empty_dir,
    "persistentVolumeClaim": _claim,
    "csi": _csi,
    "configMap": _config_map,
    "secret": _secret,
    "downwardAPI": _downward,
    "projected": _projected,
    "hostPath": host_path,
}


def descending(faults: Faults, target: str, path: str) -> None:
    """A path that stays below where it starts."""
    if target.startswith("/"):
        faults.invalid(path, target, "must be a relative path")
    no_backsteps(faults, target, path)


def mounts(faults: Faults, container: Obj, known: dict[str, Obj], path: str) -> None:
    """volumeMounts and volumeDevices of one container."""
    devices = container.get("volumeDevices") or []
    seen: set[str] = set()
    device_names, device_paths = {d.get("name") for d in devices}, {d.get("devicePath") for d in devices}
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        here = f"{path}.volumeMounts[{index}]"
        name, target = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            faults.required(f"{here}.name")
        if name not in known:
            faults.not_found(f"{here}.name", name)
        if not target:
            faults.required(f"{here}.mountPath")
        if target in seen:
            faults.invalid(f"{here}.mountPath", target, "must be unique")
        seen.add(target)
        if name in device_names:
            faults.invalid(f"{here}.name", name, "must not already exist in volumeDevices")
        if target in device_paths:
            faults.invalid(f"{here}.mountPath", target, "must not already exist as a path in volumeDevices")
        _sub_paths(faults, mount, here, f"{path}.volumeMounts")
    _devices(faults, container, known, f"{path}.volumeDevices")


def _sub_paths(faults: Faults, mount: Obj, here: str, path: str) -> None:
    if mount.get("subPath"):
        descending(faults, mount["subPath"], f"{path}.subPath")
    if mount.get("subPathExpr"):
        if mount.get("subPath"):
            detail = "subPathExpr and subPath are mutually exclusive"
            faults.invalid(f"{here}.subPathExpr", mount["subPathExpr"], detail)
        descending(faults, mount["subPathExpr"], f"{path}.subPathExpr")
    propagation = mount.get("mountPropagation")
    if propagation and propagation not in ("None", "HostToContainer", "Bidirectional"):
        words = ("Bidirectional", "HostToContainer", "None")
        faults.not_supported(f"{path}.mountPropagation", propagation, words)


def _devices(faults: Faults, container: Obj, known: dict[str, Obj], path: str) -> None:
    names: set[str] = set()
    paths: set[str] = set()
    mounted = container.get("volumeMounts") or []
    for index, device in enumerate(container.get("volumeDevices") or ()):
        here, name, target = f"{path}[{index}]", device.get("name", ""), device.get("devicePath", "")
        if not name:
            faults.required(f"{here}.name")
        if name in names:
            faults.invalid(f"{here}.name", name, "must be unique")
        if name in known and not known[name].keys() & {"persistentVolumeClaim", "ephemeral"}:
            faults.invalid(f"{here}.name", name, _BLOCK)
        if name not in known:
            faults.not_found(f"{here}.name", name)
        if not target:
            faults.required(f"{here}.devicePath")
        if target in paths:
            faults.invalid(f"{here}.devicePath", target, "must be unique")
        if ".." in target.split("/"):
            faults.invalid(f"{here}.devicePath", target, "can not contain backsteps ('..')")
        if name in {m.get("name") for m in mounted}:
            faults.invalid(f"{here}.name", name, "must not already exist in volumeMounts")
        if target in {m.get("mountPath") for m in mounted}:
            faults.invalid(f"{here}.devicePath", target, "must not already exist as a path in volumeMounts")
        names.add(name)
        paths.add(target)
