"""Rules of snapshot.storage.k8s.io and groupsnapshot.storage.k8s.io, in the words of the rules in upstream's CRDs.

Upstream writes them in CEL. A field that is empty text is set, as for CEL's has().
"""

from __future__ import annotations

from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import MAX_REQUIREMENTS, kind_rules, requirements

POLICIES = ("Delete", "Retain")
ONE_SOURCE = "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"
ONE_HANDLE = "exactly one of volumeHandle and snapshotHandle must be set"
NO_EMPTY_CLASS = "volumeSnapshotClassName must not be the empty string when set"
WHOLE_REF = "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set"
CLAIM, CONTENT = "persistentVolumeClaimName", "volumeSnapshotContentName"
VOLUME, SNAPSHOT = "volumeHandle", "snapshotHandle"
MODE = "sourceVolumeMode"
SELECTOR, GROUP_CONTENT = "selector", "volumeGroupSnapshotContentName"
VOLUMES, HANDLES = "volumeHandles", "groupSnapshotHandles"
GROUP_CLASS, GROUP_REF = "volumeGroupSnapshotClassName", "volumeGroupSnapshotRef"
GROUP_BOUND, GROUP_HANDLE = "boundVolumeGroupSnapshotContentName", "volumeGroupSnapshotHandle"
ONE_GROUP_SOURCE = "exactly one of selector and volumeGroupSnapshotContentName must be set"
ONE_GROUP_HANDLE = "exactly one of volumeHandles and groupSnapshotHandles must be set"
NO_EMPTY_GROUP_CLASS = "volumeGroupSnapshotClassName must not be the empty string when set"
WHOLE_GROUP_REF = "both volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace must be set"
SAME_REF = "volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace are immutable"
SAME_UID = "volumeGroupSnapshotRef.uid is immutable once set"
SAME_PARAMETERS = "parameters are immutable once set"


def immutable(field: str) -> str:
    """The message about a field that has another value."""
    return f"{field} is immutable"


def required_once_set(field: str) -> str:
    """The message about a field that is gone."""
    return f"{field} is required once set"


def immutable_once_set(field: str) -> str:
    """The message about a field that has another value than before."""
    return f"{field} is immutable once set"


@kind_rules()
def snapshot(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeSnapshot: one source, which never changes; the class may."""
    spec = new.get("spec")
    if spec is None:
        faults.required("spec")
        return
    _source(faults, spec, _spec(old), (CONTENT, CLAIM), ONE_SOURCE)
    if spec.get("volumeSnapshotClassName") == "":
        faults.invalid("spec.volumeSnapshotClassName", "", NO_EMPTY_CLASS)


@kind_rules()
def content(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeSnapshotContent: source and mode never change; policy, driver, class and the uid of its reference may."""
    spec = new.get("spec")
    if spec is None:
        faults.required("spec")
        return
    before = _spec(old)
    _policy(faults, spec, "spec.")
    if spec.get("driver") is None:
        faults.required("spec.driver")
    _source(faults, spec, before, (VOLUME, SNAPSHOT), ONE_HANDLE)
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
    _policy(faults, new, "")
    if new.get("driver") is None:
        faults.required("driver")


@kind_rules()
def group(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeGroupSnapshot: one source, which never changes; the class may."""
    spec = new.get("spec")
    if spec is None:
        faults.required("spec")
        return
    _source(faults, spec, _spec(old), (SELECTOR, GROUP_CONTENT), ONE_GROUP_SOURCE)
    selector = (spec.get("source") or {}).get(SELECTOR) or {}
    faults.too_many(f"spec.source.{SELECTOR}", requirements(selector), MAX_REQUIREMENTS, "requirements")
    if spec.get(GROUP_CLASS) == "":
        faults.invalid(f"spec.{GROUP_CLASS}", "", NO_EMPTY_GROUP_CLASS)
    _once(faults, new.get("status") or {}, (old or {}).get("status") or {}, GROUP_BOUND, "status.")


@kind_rules()
def group_content(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeGroupSnapshotContent: only policy, and a uid or class that was missing, may change."""
    spec = new.get("spec")
    if spec is None:
        faults.required("spec")
        return
    before = _spec(old)
    _policy(faults, spec, "spec.")
    if spec.get("driver") is None:
        faults.required("spec.driver")
    for field in ("driver", GROUP_CLASS):
        _once(faults, spec, before, field, "spec.")
    _source(faults, spec, before, (VOLUMES, HANDLES), ONE_GROUP_HANDLE)
    _handles(faults, (spec.get("source") or {}).get(HANDLES))
    _reference(faults, spec.get(GROUP_REF), before.get(GROUP_REF) or {})
    _once(faults, new.get("status") or {}, (old or {}).get("status") or {}, GROUP_HANDLE, "status.")


@kind_rules()
def group_class(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeGroupSnapshotClass: nothing in it may change."""
    _policy(faults, new, "")
    if new.get("driver") is None:
        faults.required("driver")
    before = old or {}
    for field in ("driver", "deletionPolicy"):
        _once(faults, new, before, field, "")
    if "parameters" in before and "parameters" in new and before["parameters"] != new["parameters"]:
        faults.invalid("parameters", new["parameters"], SAME_PARAMETERS)


def _spec(old: Obj | None) -> Obj:
    spec: Obj = (old or {}).get("spec") or {}
    return spec


def _policy(faults: Faults, obj: Obj, path: str) -> None:
    if obj.get("deletionPolicy") is None:
        faults.required(f"{path}deletionPolicy")
    else:
        faults.one_of(f"{path}deletionPolicy", obj["deletionPolicy"], POLICIES)


def _source(faults: Faults, spec: Obj, before: Obj, words: tuple[str, str], one: str) -> None:
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


def _once(faults: Faults, now: Obj, before: Obj, field: str, path: str) -> None:
    """A field that has a value keeps it, as CEL's rule of a field does: it may be removed."""
    if field in before and field in now and before[field] != now[field]:
        faults.invalid(f"{path}{field}", now[field], immutable_once_set(field))


def _handles(faults: Faults, handles: Obj | None) -> None:
    for field in ("volumeGroupSnapshotHandle", "volumeSnapshotHandles") if handles is not None else ():
        if handles is not None and handles.get(field) is None:
            faults.required(f"spec.source.{HANDLES}.{field}")


def _reference(faults: Faults, ref: Obj | None, was: Obj) -> None:
    path = f"spec.{GROUP_REF}"
    if ref is None:
        faults.required(path)
        return
    if not ("name" in ref and "namespace" in ref):
        faults.invalid(path, ref, WHOLE_GROUP_REF)
    elif was and (ref["name"], ref["namespace"]) != (was.get("name"), was.get("namespace")):
        faults.invalid(path, ref, SAME_REF)
    if "uid" in was and ref.get("uid") != was["uid"]:
        faults.invalid(path, ref, SAME_UID)
