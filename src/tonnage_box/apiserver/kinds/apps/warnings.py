"""Warnings that answer a write of a StatefulSet, in the words of Kubernetes (pkg/api). Pure."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.core import pod_warnings
from tonnage_box.apiserver.kinds.core.warnings import template
from tonnage_box.apiserver.printers.table import dig
from tonnage_box.apiserver.storage.store import Obj


def stateful_set(new: Obj, old: Obj | None) -> list[str]:
    """Of a StatefulSet: of its claim templates at each write."""
    below = "" if old is None else ".Spec"  # so upstream names it in an update
    warnings = template(new, old)
    for index, claim_template in enumerate(dig(new, "spec", "volumeClaimTemplates") or ()):
        warnings += pod_warnings.sizes(claim_template.get("spec"), f"spec.volumeClaimTemplates[{index}]{below}")
    return warnings
