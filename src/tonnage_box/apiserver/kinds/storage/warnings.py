"""Warnings that answer a write of a StorageClass, in the words of Kubernetes (pkg/api/storage). Pure."""

from __future__ import annotations

from tonnage_box.apiserver.kinds.core.node_labels import OLD_LABELS
from tonnage_box.apiserver.storage.store import Obj


def storage_class(new: Obj, old: Obj | None) -> list[str]:
    """Of a StorageClass, at each write."""
    return [
        f"allowedTopologies[{index}].matchLabelExpressions[{number}].key: {OLD_LABELS[expression['key']]}"
        for index, term in enumerate(new.get("allowedTopologies") or ())
        for number, expression in enumerate(term.get("matchLabelExpressions") or ())
        if expression.get("key") in OLD_LABELS
    ]
