"""Rules of groupsnapshot.storage.k8s.io, in the words of the rules in upstream's CRDs.

Upstream writes them in CEL. A field that is empty text is set, as for CEL's has().
"""

from __future__ import annotations

from tonnage.box.apiserver.storage.store import Obj
from tonnage.box.apiserver.validation.field_errors import Faults
from tonnage.box.apiserver.validation.meta import kind_rules
from tonnage.box.apiserver.validation.snapshot import policy, source, spec_of

SELECTOR, CONTENT = "selector", "volumeGroupSnapshotContentName"
VOLUMES, HANDLES = "volumeHandles", "groupSnapshotHandles"
CLASS, REF = "volumeGroupSnapshotClassName", "volumeGroupSnapshotRef"
BOUND, HANDLE = "boundVolumeGroupSnapshotContentName", "volumeGroupSnapshotHandle"
ONE_SOURCE = "exactly one of selector and volumeGroupSnapshotContentName must be set"
ONE_HANDLE = "exactly one of volumeHandles and groupSnapshotHandles must be set"
NO_EMPTY_CLASS = "volumeGroupSnapshotClassName must not be the empty string when set"
WHOLE_REF = "both volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace must be set"
SAME_REF = "volumeGroupSnapshotRef.name and volumeGroupSnapshotRef.namespace are immutable"
SAME_UID = "volumeGroupSnapshotRef.uid is immutable once set"
SAME_PARAMETERS = "parameters are immutable once set"


def immutable_once_set(field: str) -> str:
    """The message about a field that has another value than before."""
    return f"{field} is immutable once set"


@kind_rules()
def group(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeGroupSnapshot: one source, which never changes; the class may."""
    spec = new.get("spec")
    if spec is None:
        faults.required("spec")
        return
    source(faults, spec, spec_of(old), (SELECTOR, CONTENT), ONE_SOURCE)
    if spec.get(CLASS) == "":
        faults.invalid(f"spec.{CLASS}", "", NO_EMPTY_CLASS)
    _once(faults, new.get("status") or {}, (old or {}).get("status") or {}, BOUND, "status.")


@kind_rules()
def group_content(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeGroupSnapshotContent: only policy, and a uid or class that was missing, may change."""
    spec = new.get("spec")
    if spec is None:
        faults.required("spec")
        return
    before = spec_of(old)
    policy(faults, spec, "spec.")
    if spec.get("driver") is None:
        faults.required("spec.driver")
    for field in ("driver", CLASS):
        _once(faults, spec, before, field, "spec.")
    source(faults, spec, before, (VOLUMES, HANDLES), ONE_HANDLE)
    _handles(faults, (spec.get("source") or {}).get(HANDLES))
    _reference(faults, spec.get(REF), before.get(REF) or {})
    _once(faults, new.get("status") or {}, (old or {}).get("status") or {}, HANDLE, "status.")


@kind_rules()
def group_class(faults: Faults, new: Obj, old: Obj | None) -> None:
    """VolumeGroupSnapshotClass: nothing in it may change."""
    policy(faults, new, "")
    if new.get("driver") is None:
        faults.required("driver")
    before = old or {}
    for field in ("driver", "deletionPolicy"):
        _once(faults, new, before, field, "")
    if "parameters" in before and "parameters" in new and before["parameters"] != new["parameters"]:
        faults.invalid("parameters", new["parameters"], SAME_PARAMETERS)


def _once(faults: Faults, now: Obj, before: Obj, field: str, path: str) -> None:
    """A field that has a value keeps it, as CEL's rule of a field does: it may be removed."""
    if field in before and field in now and before[field] != now[field]:
        faults.invalid(f"{path}{field}", now[field], immutable_once_set(field))


def _handles(faults: Faults, handles: Obj | None) -> None:
    for field in ("volumeGroupSnapshotHandle", "volumeSnapshotHandles") if handles is not None else ():
        if handles is not None and handles.get(field) is None:
            faults.required(f"spec.source.{HANDLES}.{field}")


def _reference(faults: Faults, ref: Obj | None, was: Obj) -> None:
    path = f"spec.{REF}"
    if ref is None:
        faults.required(path)
        return
    if not ("name" in ref and "namespace" in ref):
        faults.invalid(path, ref, WHOLE_REF)
    elif was and (ref["name"], ref["namespace"]) != (was.get("name"), was.get("namespace")):
        faults.invalid(path, ref, SAME_REF)
    if "uid" in was and ref.get("uid") != was["uid"]:
        faults.invalid(path, ref, SAME_UID)
