"""Validation of Lease (pkg/apis/coordination/validation)."""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules


@kind_rules()
def lease(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Lease."""
    spec = new.get("spec") or {}
    if spec.get("leaseDurationSeconds", 1) < 1:
        faults.invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    faults.not_negative("spec", spec, "leaseTransitions")
    if "preferredHolder" in spec and not spec.get("strategy"):
        faults.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")
