"""Validation of tonnage.dev Content: the rules that an agent has, and those of its CRD."""

from __future__ import annotations

from tonnage.storage.content import spec
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules


@kind_rules()
def content(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Content: exactly one form, whose fields make sense."""
    for path, value, why in spec.faults(new.get("spec") or {}):
        field = f"spec.{path}" if path else "spec"
        if why:
            faults.invalid(field, value, why)
        else:
            faults.required(field)
