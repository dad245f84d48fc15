"""The strategy of Jobs (pkg/registry/batch/job/strategy.go)."""

from __future__ import annotations

from tonnage.kubernetes.api import names
from tonnage_box.apiserver.kinds.shared.strategy import without_status
from tonnage_box.apiserver.storage.store import Obj


def job(new: Obj, old: Obj | None) -> None:
    """A Job selects its pods by its own uid, unless its maker says how they are selected."""
    if old is not None:
        return
    without_status(new, old)
    spec = new.get("spec")
    if not isinstance(spec, dict) or spec.get("manualSelector"):
        return
    meta = new["metadata"]
    template = spec.setdefault("template", {}).setdefault("metadata", {})
    if template.get("labels") and not meta.get("labels"):
        meta["labels"] = dict(template["labels"])
    labels = template.setdefault("labels", {})
    uid, name = meta.get("uid", ""), meta.get("name", "")
    labels |= {names.JOB_UID: uid, "controller-uid": uid, names.JOB_NAME: name, "job-name": name}
    selector = spec.setdefault("selector", {})
    selector.setdefault("matchLabels", {})[names.JOB_UID] = uid
