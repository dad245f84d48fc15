"""Rules of snapshot.storage.k8s.io, in the words of the rules in upstream's CRDs.

Upstream writes them in CEL. A field that is empty text is set, as for CEL's has().
"""

from __future__ import annotations

from tonnage.box.apiserver.storage.store import Obj
from tonnage.box.apiserver.validation.field_errors import Faults
from tonnage.box.apiserver.validation.meta import kind_rules

POLICIES = ("Delete", "Retain")
ONE_SOURCE = "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"
ONE_HANDLE = "exactly one of volumeHandle and snapshotHandle must be set"
NO_EMPTY_CLASS = "volumeSnapshotClassName must not be the empty string when set"
WHOLE_REF = "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set"
CLAIM, CONTENT = "persistentVolumeClaimName", "volumeSnapshotContentName"
VOLUME, SNAPSHOT = "volumeHandle", "snapshotHandle"
MODE = "sourceVolumeMode"


def immutable(field: str) -> str:
    """The message about a field that has another value."""
    return f"{field} is immutable"


def required_once_set(field: str) -> str:
    """The message about a field that is gone."""
    return f"{field} is required once set"


@kind_rules()
def snapshot(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeSnapshot: one source, which never changes; the class may."""
    spec = new.get("spec")
    if spec is None:
        faults.required("spec")
        return
    source(faults, spec, spec_of(old), (CONTENT, CLAIM), ONE_SOURCE)
    if spec.get("volumeSnapshotClassName") == "":
        faults.invalid("spec.volumeSnapshotClassName", "", NO_EMPTY_CLASS)


@kind_rules()
def content(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeSnapshotContent: source and mode never change; policy, driver, class and the uid of its reference may."""
    spec = new.get("spec")
    if spec is None:
        faults.required("spec")
        return
    before = spec_of(old)
    policy(faults, spec, "spec.")
    if spec.get("driver") is None:
        faults.required("spec.driver")
    source(faults, spec, before, (VOLUME, SNAPSHOT), ONE_HANDLE)
    if MODE in before and MODE not in spec:
        faults.invalid("spec", spec, required_once_set(MODE))
    elif MODE in before and before[MODE] != spec[MODE]:
        faults.invalid(f"spec.{MODE}", spec[MODE], immutable(MODE))
    if (ref := spec.get("volumeSnapshotRef")) is None:
        faults.required("spec.volumeSnapshotRef")
    elif not ("name" in ref and "namespace" in ref):
        faults.invalid("spec.volumeSnapshotRef", ref, WHOLE_REF)
    size = (new.get("status") or {}).get("restoreSize")
    if size is not None and size < 0:
        faults.invalid("status.restoreSize", size, "should be greater than or equal to 0")


@kind_rules()
def snapshot_class(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeSnapshotClass: nothing in it is immutable."""
    policy(faults, new, "")
    if new.get("driver") is None:
        faults.required("driver")


def spec_of(old: Obj | None) -> Obj:
    """The spec before a change, empty for a new object."""
    spec: Obj = (old or {}).get("spec") or {}
    return spec


def policy(faults: Faults, obj: Obj, path: str) -> None:
    """Record what is wrong with a deletionPolicy."""
    if obj.get("deletionPolicy") is None:
        faults.required(f"{path}deletionPolicy")
    else:
        faults.one_of(f"{path}deletionPolicy", obj["deletionPolicy"], POLICIES)


def source(faults: Faults, spec: Obj, before: Obj, words: tuple[str, str], one: str) -> None:
    """Record what is wrong with spec.source: exactly one of two fields, which never changes. one: the message."""
    source, was = spec.get("source"), before.get("source") or {}
    if source is None:
        faults.required("spec.source")
        return
    if sum(word in source for word in words) != 1:
        faults.invalid("spec.source", source, one)
    for word in words:
        if word in was and word not in source:
            faults.invalid("spec.source", source, required_once_set(word))
        elif word in was and was[word] != source[word]:
            faults.invalid(f"spec.source.{word}", source[word], immutable(word))
