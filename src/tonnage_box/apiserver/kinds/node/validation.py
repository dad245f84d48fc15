"""Validation of RuntimeClass, which the box stores (pkg/apis/node/validation)."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.core.validation.scheduling import node_labels, tolerations
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import dns_label, kind_rules, qualified_name


@kind_rules()
def runtime_class(faults: Faults, new: Obj, old: Obj | None) -> None:
    """RuntimeClass: its handler never changes."""
    if old is not None:
        faults.fixed("", new, old, "handler")
    faults.name("handler", new.get("handler"), dns_label)
    for resource, amount in ((new.get("overhead") or {}).get("podFixed") or {}).items():
        faults.check("overhead.podFixed", resource, qualified_name)
        faults.amount(f"overhead.podFixed.{resource}", amount)
    scheduling = new.get("scheduling") or {}
    node_labels(faults, scheduling, "scheduling.")
    tolerations(faults, scheduling, "scheduling.")
