"""Rules of CustomResourceDefinition: only those of kinds that the server has are taken.

So files and charts that bring such a definition can be applied. The kind is the server's own: what the definition says
of its fields is stored, and has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tonnage.kubernetes.api.kinds import (
    CERTIFICATE_REQUESTS,
    GROUP_CLASSES,
    GROUP_CONTENTS,
    GROUP_SNAPSHOTS,
    SNAPSHOT_CLASSES,
    SNAPSHOT_CONTENTS,
    SNAPSHOTS,
    Kind,
)
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules

_KINDS: tuple[Kind[Any], ...] = (
    SNAPSHOTS, SNAPSHOT_CONTENTS, SNAPSHOT_CLASSES, GROUP_SNAPSHOTS, GROUP_CONTENTS, GROUP_CLASSES,
    CERTIFICATE_REQUESTS,
)  # fmt: skip
NATIVE: Mapping[str, Kind[Any]] = MappingProxyType({kind.qualified: kind for kind in _KINDS})
"""Name of the definition -> the kind, which Kubernetes has as a custom resource and this server as its own."""


@kind_rules()
def definition(faults: Faults, new: Obj, old: Obj | None) -> None:
    """CustomResourceDefinition: its name, group, kind, scope and a served version are those of a native kind."""
    name = new["metadata"].get("name", "")
    kind, spec = NATIVE.get(name), new.get("spec") or {}
    if kind is None:
        has = ", ".join(sorted(NATIVE))
        faults.forbidden("metadata.name", f"custom resources are not served here, only these kinds: {has}")
        return
    names, scope = spec.get("names") or {}, "Namespaced" if kind.namespaced else "Cluster"
    for path, found, wanted in (
        ("spec.group", spec.get("group"), kind.group),
        ("spec.names.plural", names.get("plural"), kind.plural),
        ("spec.names.kind", names.get("kind"), kind.kind),
        ("spec.scope", spec.get("scope"), scope),
    ):
        if found != wanted:
            faults.invalid(path, found or "", f"{name} is served with {wanted} here")
    served = [version.get("name") for version in spec.get("versions") or () if version.get("served")]
    if kind.version not in served:
        faults.invalid("spec.versions", served, f"{name} is served in version {kind.version} here")
