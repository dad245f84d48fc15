"""Makes the template snapshot-crds.yaml of the box's own schemas: python scripts/gen_snapshot_crds.py.

Fields and their texts are those of the schema text, messages those of the box's validation, so that both say the same.
What only a CustomResourceDefinition has is here: its rules in CEL and the columns' paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage_box.apiserver.kinds.snapshot import validation as rules
from tonnage_box.apiserver.schema import schemas
from tonnage_box.apiserver.schema.schemas import Struct, Type

FILE = Path(__file__).parent.parent / "src/tonnage/tools/ops/install/templates/snapshot-crds.yaml"
_HEADER = "# Made by scripts/gen_snapshot_crds.py of the box's schemas: change it there.\n"
_APPROVED = "https://github.com/kubernetes-csi/external-snapshotter/pull/"
"""Kubernetes rejects definitions of its own groups that do not say where they were approved."""
_SCALARS: Mapping[str, Mapping[str, str]] = {
    "str": {"type": "string"},
    "bool": {"type": "boolean"},
    "long": {"type": "integer", "format": "int64"},
    "time": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string", "pattern": r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"},
}
_POLICY = {"enum": list(rules.POLICIES)}

Obj = dict[str, Any]


def _rule(cel: str, message: str) -> Obj:
    return {"rule": cel, "message": message}


def _kept(field: str) -> Obj:
    return _rule(f"!has(oldSelf.{field}) || has(self.{field})", rules.required_once_set(field))


def _one(first: str, second: str, message: str) -> list[Obj]:
    """One of two fields, which stays."""
    return [_rule(f"has(self.{first}) != has(self.{second})", message), _kept(first), _kept(second)]


def _fixed(message: str) -> list[Obj]:
    return [_rule("self == oldSelf", message)]


_GROUP_RULES: Mapping[str, list[Obj]] = {
    "VolumeGroupSnapshotSource": _one(rules.SELECTOR, rules.GROUP_CONTENT, rules.ONE_GROUP_SOURCE),
    "VolumeGroupSnapshotContentSource": _one(rules.VOLUMES, rules.HANDLES, rules.ONE_GROUP_HANDLE),
    **{
        f"{struct}.{field}": _fixed(rules.immutable(field))
        for struct, fields in (
            ("VolumeGroupSnapshotSource", (rules.SELECTOR, rules.GROUP_CONTENT)),
            ("VolumeGroupSnapshotContentSource", (rules.VOLUMES, rules.HANDLES)),
        )
        for field in fields
    },
    **{
        f"{struct}.{field}": _fixed(rules.immutable_once_set(field))
        for struct, field in (
            ("VolumeGroupSnapshotStatus", rules.GROUP_BOUND),
            ("VolumeGroupSnapshotContentSpec", "driver"),
            ("VolumeGroupSnapshotContentSpec", rules.GROUP_CLASS),
            ("VolumeGroupSnapshotContentStatus", rules.GROUP_HANDLE),
            ("VolumeGroupSnapshotClass", "driver"),
            ("VolumeGroupSnapshotClass", "deletionPolicy"),
        )
    },
    "VolumeGroupSnapshotClass.parameters": _fixed(rules.SAME_PARAMETERS),
    f"VolumeGroupSnapshotSpec.{rules.GROUP_CLASS}": [_rule("size(self) > 0", rules.NO_EMPTY_GROUP_CLASS)],
    f"VolumeGroupSnapshotContentSpec.{rules.GROUP_REF}": [
        _rule("has(self.name) && has(self.__namespace__)", rules.WHOLE_GROUP_REF),
        _rule("self.name == oldSelf.name && self.__namespace__ == oldSelf.__namespace__", rules.SAME_REF),
        _rule("!has(oldSelf.uid) || (has(self.uid) && self.uid == oldSelf.uid)", rules.SAME_UID),
    ],
}
_RULES: Mapping[str, list[Obj]] = {
    **_GROUP_RULES,
    "VolumeSnapshotSource": _one(rules.CLAIM, rules.CONTENT, rules.ONE_SOURCE),
    **{
        f"VolumeSnapshotSource.{field}": [_rule("self == oldSelf", rules.immutable(field))]
        for field in (rules.CLAIM, rules.CONTENT)
    },
    "VolumeSnapshotSpec.volumeSnapshotClassName": [_rule("size(self) > 0", rules.NO_EMPTY_CLASS)],
    "VolumeSnapshotContentSource": _one(rules.VOLUME, rules.SNAPSHOT, rules.ONE_HANDLE),
    **{
        f"VolumeSnapshotContentSource.{field}": [_rule("self == oldSelf", rules.immutable(field))]
        for field in (rules.VOLUME, rules.SNAPSHOT)
    },
    "VolumeSnapshotContentSpec": [_kept(rules.MODE)],
    f"VolumeSnapshotContentSpec.{rules.MODE}": [_rule("self == oldSelf", rules.immutable(rules.MODE))],
    "VolumeSnapshotContentSpec.volumeSnapshotRef": [
        _rule("has(self.name) && has(self.__namespace__)", rules.WHOLE_REF)
    ],
}
"""Struct, or struct and field -> rules."""
_MORE: Mapping[str, Obj] = {
    "VolumeGroupSnapshotContentSpec.deletionPolicy": _POLICY,
    "VolumeGroupSnapshotClass.deletionPolicy": _POLICY,
    f"VolumeGroupSnapshotContentSpec.{rules.GROUP_REF}": {"x-kubernetes-map-type": "atomic"},
    f"VolumeGroupSnapshotSource.{rules.SELECTOR}": {"x-kubernetes-map-type": "atomic"},
    "VolumeSnapshotContentSpec.deletionPolicy": _POLICY,
    "VolumeSnapshotClass.deletionPolicy": _POLICY,
    "VolumeSnapshotContentStatus.restoreSize": {"minimum": 0},
    "VolumeSnapshotContentSpec.volumeSnapshotRef": {"x-kubernetes-map-type": "atomic"},
}


def _schema(kind: Type) -> Obj:
    if kind.item is not None and kind.word == "[]":
        return {"type": "array", "items": _schema(kind.item)}
    if kind.item is not None:
        return {"type": "object", "additionalProperties": _schema(kind.item)}
    return _struct(schemas.struct(kind.struct)) if kind.struct else dict(_SCALARS[kind.word])


def _struct(struct: Struct) -> Obj:
    """Structural: a schema without references."""
    found: Obj = {"type": "object"}
    if struct.text:
        found["description"] = struct.text
    if required := [field.name for field in struct.fields.values() if field.required]:
        found["required"] = required
    found["properties"] = {}
    for field in struct.fields.values():
        place = f"{struct.short}.{field.name}"
        schema: Obj = {"type": "object"} if field.name == "metadata" else _schema(field.type)
        if field.text and field.name != "metadata":
            schema["description"] = field.text
        schema |= _MORE.get(place, {})
        if place in _RULES:
            schema["x-kubernetes-validations"] = [dict(rule) for rule in _RULES[place]]
        found["properties"][field.name] = schema
    if struct.short in _RULES:
        found["x-kubernetes-validations"] = [dict(rule) for rule in _RULES[struct.short]]
    return found


_AGE = ("Age", "date", ".metadata.creationTimestamp")
_READY = ("ReadyToUse", "boolean", ".status.readyToUse")
_OF_CLASS = (("Driver", "string", ".driver"), ("DeletionPolicy", "string", ".deletionPolicy"), _AGE)
_COLUMNS: Mapping[Kind[Any], tuple[tuple[str, str, str], ...]] = {
    kinds.SNAPSHOTS: (
        _READY,
        ("SourcePVC", "string", f".spec.source.{rules.CLAIM}"),
        ("SourceSnapshotContent", "string", f".spec.source.{rules.CONTENT}"),
        ("RestoreSize", "string", ".status.restoreSize"),
        ("SnapshotClass", "string", ".spec.volumeSnapshotClassName"),
        ("SnapshotContent", "string", ".status.boundVolumeSnapshotContentName"),
        ("CreationTime", "date", ".status.creationTime"),
        _AGE,
    ),
    kinds.SNAPSHOT_CONTENTS: (
        _READY,
        ("RestoreSize", "integer", ".status.restoreSize"),
        ("DeletionPolicy", "string", ".spec.deletionPolicy"),
        ("Driver", "string", ".spec.driver"),
        ("VolumeSnapshotClass", "string", ".spec.volumeSnapshotClassName"),
        ("VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"),
        ("VolumeSnapshotNamespace", "string", ".spec.volumeSnapshotRef.namespace"),
        _AGE,
    ),
    kinds.SNAPSHOT_CLASSES: _OF_CLASS,
    kinds.GROUP_SNAPSHOTS: (
        _READY,
        ("VolumeGroupSnapshotClass", "string", f".spec.{rules.GROUP_CLASS}"),
        ("VolumeGroupSnapshotContent", "string", f".status.{rules.GROUP_BOUND}"),
        ("CreationTime", "date", ".status.creationTime"),
        _AGE,
    ),
    kinds.GROUP_CONTENTS: (
        _READY,
        ("DeletionPolicy", "string", ".spec.deletionPolicy"),
        ("Driver", "string", ".spec.driver"),
        ("VolumeGroupSnapshotClass", "string", f".spec.{rules.GROUP_CLASS}"),
        ("VolumeGroupSnapshotNamespace", "string", f".spec.{rules.GROUP_REF}.namespace"),
        ("VolumeGroupSnapshot", "string", f".spec.{rules.GROUP_REF}.name"),
        _AGE,
    ),
    kinds.GROUP_CLASSES: _OF_CLASS,
}
_PULLS = {
    kinds.SNAPSHOTS: 814, kinds.SNAPSHOT_CONTENTS: 955, kinds.SNAPSHOT_CLASSES: 814, kinds.GROUP_SNAPSHOTS: 1337,
    kinds.GROUP_CONTENTS: 1337, kinds.GROUP_CLASSES: 1337,
}  # fmt: skip
_CLASSES = (kinds.SNAPSHOT_CLASSES, kinds.GROUP_CLASSES)
"""Kinds without status."""


def definition(kind: Kind[Any]) -> Obj:
    """The CustomResourceDefinition of a kind."""
    short = {"shortNames": list(kind.short)}
    version: Obj = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [{"name": n, "type": t, "jsonPath": path} for n, t, path in _COLUMNS[kind]],
        "schema": {
            "openAPIV3Schema": _struct(schemas.struct(f"{kind.group.partition('.')[0]}.{kind.version}.{kind.kind}"))
        },
        "subresources": {} if kind in _CLASSES else {"status": {}},
    }
    return {
        **kinds.DEFINITIONS.head(),
        "metadata": {
            "name": kind.qualified,
            "annotations": {"api-approved.kubernetes.io": f"{_APPROVED}{_PULLS[kind]}"},
        },
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural, "singular": kind.singular,
                **short,
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }  # fmt: skip


def text() -> str:
    """The whole file."""
    documents = [yaml.safe_dump(definition(kind), sort_keys=False, width=120) for kind in _COLUMNS]
    return _HEADER + "---\n".join(documents)


if __name__ == "__main__":
    FILE.write_text(text())
