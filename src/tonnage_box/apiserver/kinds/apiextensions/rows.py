"""The row of CustomResourceDefinition: the definitions of kinds that the server has are stored, others rejected."""

from __future__ import annotations

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.apiextensions.validation import definition
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.storage.store import Obj

_CONDITIONS = (
    ("NamesAccepted", "NoConflicts", "no conflicts found"),
    ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
)


def establish(new: Obj, old: Obj | None) -> None:
    """A definition is established at once: the kind is served. Clients wait for its conditions."""
    spec, since = new.get("spec") or {}, new["metadata"].get("creationTimestamp", "")
    names = spec.get("names") or {}
    kind = names.get("kind", "")
    stored = [version.get("name", "") for version in spec.get("versions") or () if version.get("storage")]
    new["status"] = {
        "acceptedNames": {"listKind": f"{kind}List", "singular": kind.lower()} | names,
        "conditions": [
            {"type": word, "status": "True", "reason": reason, "message": text, "lastTransitionTime": since}
            for word, reason, text in _CONDITIONS
        ],
        "storedVersions": stored,
    }


ROWS: tuple[Resource, ...] = (
    Resource(
        kinds.DEFINITIONS,
        subresources=frozenset({"status"}),
        prepare=establish,
        generation=1,
        validate=definition,
        notice="this kind is served here without its definition, which is stored and has no effect",
        delete_warning="only the definition is deleted: this kind is served here without it, and its objects stay",
    ),
)
