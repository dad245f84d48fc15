"""Validation of a pod's volumes and volume mounts (pkg/apis/core/validation).

Every volume source of Kubernetes is accepted. The box's kubelet rejects sources that it does not mount (NFS, iSCSI
...) by name when the pod starts, as a kubelet without their plugin does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.kinds.certificates.validation import CERTIFICATE_SECONDS, signer_name
from tonnage_box.apiserver.kinds.core.validation import claim
from tonnage_box.apiserver.kinds.core.validation.config import config_key
from tonnage_box.apiserver.kinds.core.validation.persistent_volume import (
    driver_name,
    host_path,
    no_backsteps,
    required_fields,
)
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import annotation_map, dns_label, dns_subdomain, labels

MAX_VOLUMES = 500
"""Of a pod, with the claims of a StatefulSet; Kubernetes has no limit. A claim of each may have to fit on each node."""
_ANOTHER = "may not specify more than 1 volume type"
_FILE_MODES = "must be a number between 0 and 0777 (octal), both inclusive"
# Of several sources the first in Kubernetes' order is accepted, the others are the faults.
_ORDER = {"emptyDir": 0, "hostPath": 1, "csi": 3, "ephemeral": 4, "image": 5}
_KEY_TYPES = ("ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096")
_BLOCK = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"


def volumes(faults: Faults, pod_name: str, spec: Obj, path: str) -> dict[str, Obj]:
    """The volumes of a spec; answers the good ones by name. pod_name: "" inside a template, where it is not known."""
    every = spec.get("volumes") or ()
    faults.too_many(f"{path}volumes", len(every), MAX_VOLUMES)
    made = {f"{pod_name}-{v.get('name', '')}" for v in every if "ephemeral" in v} if pod_name else set()
    found: dict[str, Obj] = {}
    for here, volume in items(spec, "volumes", path):
        name, own = volume.get("name", ""), Faults()
        _source(own, volume, pod_name, here)
        own.name(f"{here}.name", name, dns_label)
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
    if word in _SOURCES:
        _SOURCES[word](faults, source, here)
    else:
        required_fields(faults, "core.v1.Volume", word, source, here)
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


def _csi(faults: Faults, source: Obj, path: str) -> None:
    driver_name(faults, source.get("driver", ""), f"{path}.driver")
    if "nodePublishSecretRef" in source:
        faults.given(f"{path}.nodePublishSecretRef", source["nodePublishSecretRef"], "name")
        faults.optional(path, source["nodePublishSecretRef"], dns_subdomain, "name")


def _files(faults: Faults, source: Obj, path: str, *, name: str = "name") -> None:
    """A ConfigMap or Secret; name: the field with its name."""
    faults.given(path, source, name)
    _mode(faults, source.get("defaultMode"), f"{path}.defaultMode")
    for here, item in items(source, "items", f"{path}."):
        faults.name(f"{here}.key", item.get("key"), config_key)
        _target(faults, item, here)


def _target(faults: Faults, item: Obj, path: str) -> None:
    faults.name(f"{path}.path", item.get("path"), _file_path)
    _mode(faults, item.get("mode"), f"{path}.mode")


def _file_path(target: str) -> list[str]:
    return descending(target) + (["must not start with '..'"] if target.startswith("..") else [])


def _mode(faults: Faults, mode: int | None, path: str) -> None:
    if mode is not None and not 0 <= mode <= 0o777:
        faults.invalid(path, mode, _FILE_MODES)


def _downward(faults: Faults, source: Obj, path: str) -> None:
    _mode(faults, source.get("defaultMode"), f"{path}.defaultMode")
    for here, item in items(source, "items", f"{path}."):
        _target(faults, item, here)
        if "fieldRef" not in item and "resourceFieldRef" not in item:
            faults.required(here, "one of fieldRef and resourceFieldRef is required")
        elif "fieldRef" in item and "resourceFieldRef" in item:
            faults.invalid(here, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")


def _projected(faults: Faults, source: Obj, path: str) -> None:
    _mode(faults, source.get("defaultMode"), f"{path}.defaultMode")
    for here, item in items(source, "sources", f"{path}."):
        given = sorted(item)
        for word in given[1:]:
            faults.forbidden(f"{here}.{word}", _ANOTHER)
        if not given:
            faults.required(here, "must specify a volume type")
        elif given[0] in ("configMap", "secret"):
            _files(faults, item[given[0]], f"{here}.{given[0]}")
        elif given[0] == "downwardAPI":
            _downward(faults, item[given[0]], f"{here}.{given[0]}")
        elif given[0] == "serviceAccountToken":
            faults.given(here, item[given[0]], "path")
        elif given[0] == "podCertificate":
            _pod_certificate(faults, item[given[0]], f"{here}.{given[0]}")
        elif given[0] == "clusterTrustBundle":
            _trust_bundle(faults, item[given[0]], f"{here}.{given[0]}")


def _pod_certificate(faults: Faults, source: Obj, path: str) -> None:
    faults.name(f"{path}.signerName", source.get("signerName"), signer_name)
    faults.one_of(f"{path}.keyType", source.get("keyType", ""), _KEY_TYPES)
    faults.in_range(f"{path}.maxExpirationSeconds", source.get("maxExpirationSeconds"), *CERTIFICATE_SECONDS)
    words = ("credentialBundlePath", "keyPath", "certificateChainPath")
    targets = [source[word] for word in words if source.get(word)]
    if not targets:
        faults.required(path, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
    if len(set(targets)) < len(targets):
        faults.invalid(path, targets, "paths must be unique")
    for word in words:
        faults.optional(path, source, _file_path, word)


def _trust_bundle(faults: Faults, source: Obj, path: str) -> None:
    faults.name(f"{path}.path", source.get("path"), _file_path)
    if source.get("name") and source.get("signerName"):
        faults.invalid(path, source["name"], "only one of name and signerName may be used")
    elif source.get("signerName"):
        faults.check(f"{path}.signerName", source["signerName"], signer_name)
    elif source.get("name"):
        if "labelSelector" in source:
            faults.invalid(f"{path}.labelSelector", source["labelSelector"], "labelSelector must be unset if name is")
    else:
        faults.required(path, "either name or signerName must be specified")


_SOURCES: Mapping[str, Callable[[Faults, Obj, str], None]] = {
    "ephemeral": _ephemeral,
    "emptyDir": _empty_dir,
    "persistentVolumeClaim": lambda faults, source, path: faults.given(path, source, "claimName"),
    "csi": _csi,
    "configMap": _files,
    "secret": partial(_files, name="secretName"),
    "downwardAPI": _downward,
    "projected": _projected,
    "hostPath": host_path,
}


def descending(target: str) -> list[str]:
    """Fault of a path that does not stay below where it starts."""
    return (["must be a relative path"] if target.startswith("/") else []) + no_backsteps(target)


def mounts(faults: Faults, container: Obj, known: dict[str, Obj], path: str) -> None:
    """volumeMounts and volumeDevices of one container."""
    targets: set[str] = set()
    devices = _places(container, "volumeDevices") if "volumeDevices" in container else None
    for here, mount in items(container, "volumeMounts", f"{path}."):
        name, target = mount.get("name", ""), mount.get("mountPath", "")
        faults.given(here, mount, "name")
        if name not in known:
            faults.not_found(f"{here}.name", name)
        faults.given(here, mount, "mountPath")
        _unique(faults, f"{here}.mountPath", target, targets)
        if devices is not None:
            _apart(faults, mount, "mountPath", here, devices)
        _sub_paths(faults, mount, here, f"{path}.volumeMounts")
    if devices is None:
        return
    names: set[str] = set()
    targets, mounted = set(), _places(container, "volumeMounts")
    for here, device in items(container, "volumeDevices", f"{path}."):
        name, target = device.get("name", ""), device.get("devicePath", "")
        faults.given(here, device, "name")
        _unique(faults, f"{here}.name", name, names)
        if name not in known:
            faults.not_found(f"{here}.name", name)
        elif not known[name].keys() & {"persistentVolumeClaim", "ephemeral"}:
            faults.invalid(f"{here}.name", name, _BLOCK)
        faults.given(here, device, "devicePath")
        _unique(faults, f"{here}.devicePath", target, targets)
        if ".." in target.split("/"):
            faults.invalid(f"{here}.devicePath", target, "can not contain backsteps ('..')")
        _apart(faults, device, "devicePath", here, mounted)


def _unique(faults: Faults, path: str, value: str, seen: set[str]) -> None:
    """In the words that Kubernetes has for mounts."""
    if value in seen:
        faults.invalid(path, value, "must be unique")
    seen.add(value)


class _Places(NamedTuple):
    """Names and paths of a container's mounts or devices."""

    word: str
    names: set[str | None]
    paths: set[str | None]


def _places(container: Obj, word: str) -> _Places:
    every, path = container.get(word) or (), "devicePath" if word == "volumeDevices" else "mountPath"
    return _Places(word, {one.get("name") for one in every}, {one.get(path) for one in every})


def _apart(faults: Faults, one: Obj, field: str, path: str, others: _Places) -> None:
    """A mount and a device have neither volume nor path in common."""
    name, target = one.get("name", ""), one.get(field, "")
    if name in others.names:
        faults.invalid(f"{path}.name", name, f"must not already exist in {others.word}")
    if target in others.paths:
        faults.invalid(f"{path}.{field}", target, f"must not already exist as a path in {others.word}")


def _sub_paths(faults: Faults, mount: Obj, here: str, path: str) -> None:
    faults.optional(path, mount, descending, "subPath")
    if mount.get("subPath") and mount.get("subPathExpr"):
        faults.invalid(f"{here}.subPathExpr", mount["subPathExpr"], "subPathExpr and subPath are mutually exclusive")
    faults.optional(path, mount, descending, "subPathExpr")
    propagation = mount.get("mountPropagation") or "None"
    faults.one_of(f"{path}.mountPropagation", propagation, ("Bidirectional", "HostToContainer", "None"))
