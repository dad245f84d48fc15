"""Validation of Namespace and Node."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.core.validation.containers import MAX_RESOURCES
from tonnage_box.apiserver.kinds.core.validation.scheduling import EFFECTS, MAX_TAINTS
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items
from tonnage_box.apiserver.validation.meta import dns_label, kind_rules, label_value, qualified_name


def _phase(faults: Faults, new: Obj, old: Obj | None) -> None:
    phase = (new.get("status") or {}).get("phase", "Active")
    leaving = new["metadata"].get("deletionTimestamp") or (old or new)["metadata"].get("deletionTimestamp")
    if bool(leaving) != (phase == "Terminating"):
        want, why = ("Terminating", "is not empty") if leaving else ("Active", "is empty")
        faults.invalid("status.Phase", phase, f"may only be '{want}' if `deletionTimestamp` {why}")


@kind_rules(dns_label, status=_phase)
def namespace(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Namespace: its name is a DNS label."""
    for finalizer in (new.get("spec") or {}).get("finalizers") or ():
        faults.check("spec.finalizers", finalizer, qualified_name)


@kind_rules()
def node(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Node: taints, addresses, resources; the pod range and provider id may be set once."""
    spec, status = new.get("spec") or {}, new.get("status") or {}
    _taints(faults, spec)
    for word in ("capacity", "allocatable"):
        faults.too_many(f"status.{word}", len(status.get(word) or ()), MAX_RESOURCES)
        for resource, text in (status.get(word) or {}).items():
            faults.amount(f"status.{word}.{resource}", text)
    addresses = status.get("addresses") or []
    seen: set[tuple[str, str]] = set()
    for index, address in enumerate(addresses):
        key = address.get("type", ""), address.get("address", "")
        if key in seen:
            faults.duplicate(f"status.addresses[{index}]", address)
        seen.add(key)
    before = ((old or {}).get("spec")) or {}
    for field, shown in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
        if before.get(field) and spec.get(field) != before[field]:
            faults.forbidden(f"spec.{field}", f'node updates may not change {shown} except from "" to valid')


def _taints(faults: Faults, spec: Obj) -> None:
    if faults.too_many("spec.taints", len(spec.get("taints") or ()), MAX_TAINTS):
        return
    seen = set()
    for path, taint in items(spec, "taints", "metadata."):
        key, effect = taint.get("key", ""), taint.get("effect")
        faults.check(f"{path}.key", key, qualified_name)
        faults.check(f"{path}.value", taint.get("value", ""), label_value)
        if effect:
            faults.one_of(f"{path}.effect", effect, EFFECTS)
        else:
            faults.required(f"{path}.effect")
        if (key, effect) in seen:
            faults.duplicate(path, taint)
        seen.add((key, effect))
