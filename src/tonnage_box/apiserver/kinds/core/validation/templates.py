"""Validation of ReplicationController and PodTemplate, which the box stores."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.core.validation import pod
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules


@kind_rules(whole=True)
def replication_controller(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ReplicationController: its selector chooses the pods of its template."""
    spec = new["spec"]
    faults.not_negative("spec", spec, "replicas", "minReadySeconds")
    selector = spec.get("selector") or {}
    template = spec.get("template") or {}
    found = (template.get("metadata") or {}).get("labels") or {}
    if not selector:
        faults.required("spec.selector")
    elif not selector.items() <= found.items():
        faults.invalid("spec.template.metadata.labels", found, "`selector` does not match template `labels`")
    pod.template(faults, template, "spec.template")


@kind_rules(whole=True)
def pod_template(faults: Faults, new: Obj, old: Obj | None) -> None:
    """PodTemplate."""
    pod.template(faults, new.get("template") or {}, "template")
