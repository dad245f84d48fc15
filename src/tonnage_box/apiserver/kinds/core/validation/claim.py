"""Validation of PersistentVolumeClaims and claim templates."""

from __future__ import annotations

import copy

from tonnage.kubernetes.api.quantity import Quantity
from tonnage_box.apiserver.kinds.core.validation.persistent_volume import VOLUME_MODES, access_modes
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, difference
from tonnage_box.apiserver.validation.meta import dns_label, dns_subdomain, kind_rules, label_selector

_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"


def _status(faults: Faults, new: Obj, old: Obj | None) -> None:
    for resource, text in ((new.get("status") or {}).get("capacity") or {}).items():
        faults.amount(f"status.capacity[{resource}]", text)


@kind_rules(whole=True, status=_status)
def validate(faults: Faults, new: Obj, old: Obj | None) -> None:
    """PersistentVolumeClaim."""
    if old is None or new["spec"] != old["spec"]:
        spec(faults, new["spec"], "spec")
        if old is not None:
            _update(faults, new, old)


def spec(faults: Faults, claim: Obj, path: str) -> None:
    """PersistentVolumeClaimSpec."""
    if not claim.get("accessModes"):
        faults.required(f"{path}.accessModes", "at least 1 access mode is required")
    label_selector(faults, claim.get("selector") or {}, f"{path}.selector")
    access_modes(faults, claim.get("accessModes") or [], f"{path}.accessModes")
    _size(faults, claim, f"{path}.resources[storage]")
    faults.optional(path, claim, dns_subdomain, "storageClassName", "volumeAttributesClassName")
    faults.one_of(f"{path}.volumeMode", claim.get("volumeMode", "Filesystem"), VOLUME_MODES)
    _data_sources(faults, claim, path)


def _size(faults: Faults, claim: Obj, path: str) -> None:
    text = ((claim.get("resources") or {}).get("requests") or {}).get("storage")
    if text is None:
        faults.required(path)
        return
    if Quantity.parse(text).nanos <= 0:
        faults.invalid(path, text, "must be greater than zero")


def _data_sources(faults: Faults, claim: Obj, path: str) -> None:
    source, ref = claim.get("dataSource"), claim.get("dataSourceRef")
    for word, value in (("dataSource", source), ("dataSourceRef", ref)):
        if value is not None:
            _data_source(faults, value, f"{path}.{word}")
    if ref is not None and ref.get("namespace"):
        faults.check(f"{path}.dataSourceRef.namespace", ref["namespace"], dns_label)
        if source is not None:
            detail = "may not be specified when dataSourceRef.namespace is specified"
            faults.invalid(path, f"{path}.dataSource", detail)
    elif source is not None and ref is not None and _identity(source) != _identity(ref):
        faults.invalid(path, f"{path}.dataSource", "must match dataSourceRef")


def _identity(source: Obj) -> tuple[str, str, str]:
    return (source.get("apiGroup") or "", source.get("kind", ""), source.get("name", ""))


def _data_source(faults: Faults, source: Obj, path: str) -> None:
    faults.given(path, source, "name", "kind")
    if not source.get("apiGroup") and source.get("kind") != "PersistentVolumeClaim":
        detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        faults.invalid(path, source.get("kind", ""), detail)
    faults.optional(path, source, dns_subdomain, "apiGroup")


def _update(faults: Faults, new: Obj, old: Obj) -> None:
    """The spec stays, but for the volume's name and the class when they are filled in, and growth once bound."""
    wanted, before = copy.deepcopy(new["spec"]), copy.deepcopy(old["spec"])
    bound = (new.get("status") or old.get("status") or {}).get("phase") == "Bound"
    if not before.get("volumeName"):
        before.pop("volumeName", None)
        wanted.pop("volumeName", None)
    if "storageClassName" not in before and not _annotated(old) and wanted.get("storageClassName"):
        # The default class came later than the claim: it may be filled in.
        del wanted["storageClassName"]
    if bound:
        wanted.pop("volumeAttributesClassName", None)
        before.pop("volumeAttributesClassName", None)
        _same_size(wanted, before)
    if wanted != before:
        detail = (
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        )
        faults.forbidden("spec", f"{detail}\n{difference(wanted, before)}")
    if _amount(new) < _amount(old):
        # A growth that cannot be had may be taken back, but not below what there already is.
        capacity = ((old.get("status") or {}).get("capacity") or {}).get("storage", "0")
        if _amount(new) <= Quantity.parse(capacity).nanos:
            faults.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")
    faults.fixed("", new["spec"], old["spec"], "volumeMode")
    current = (old.get("status") or {}).get("currentVolumeAttributesClassName")
    if current is not None and not new["spec"].get("volumeAttributesClassName"):
        what = "nil" if "volumeAttributesClassName" not in new["spec"] else "empty string"
        detail = f"update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil"
        faults.forbidden("spec.volumeAttributesClassName", detail)


def _annotated(claim: Obj) -> bool:
    return _CLASS_ANNOTATION in (claim["metadata"].get("annotations") or {})


def _same_size(wanted: Obj, before: Obj) -> None:
    for claim in (wanted, before):
        ((claim.get("resources") or {}).get("requests") or {}).pop("storage", None)


def _amount(claim: Obj) -> int:
    text = ((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage", "0")
    return Quantity.parse(text).nanos
