"""Validation of pods: at creation, and the few fields that may change later."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import msgspec

from tonnage.box.apiserver.validation.containers import containers
from tonnage.box.apiserver.validation.field_errors import Faults, difference
from tonnage.box.apiserver.validation.meta import annotation_map, dns_label, dns_subdomain, labels, metadata
from tonnage.box.apiserver.validation.scheduling import added_tolerations, removed_gates, scheduling
from tonnage.box.apiserver.validation.volumes import volumes
from tonnage.errors import FieldCause

Obj = dict[str, Any]
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_INT32 = 2**31 - 1
_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Validate a pod. Writes of a subresource (status, binding ...) preserve the spec, so only metadata is checked."""
    faults = Faults()
    metadata(faults, new, old=old)
    if subresource:
        return faults
    if old is not None and new["spec"] == old["spec"]:
        return faults
    _spec(faults, new)
    if old is not None:
        _update(faults, new["spec"], old["spec"])
    return faults


def template(template: Obj, path: str) -> Faults:
    """A template of pods: what is wrong with the pods that would be made from it."""
    found, placed = Faults(), Faults()
    meta = template.get("metadata") or {}
    labels(found, meta.get("labels") or {}, "metadata.labels")
    annotation_map(found, meta.get("annotations") or {}, "metadata.annotations")
    _spec(found, {"metadata": meta, "spec": template.get("spec") or {}})
    placed += (replace(fault, field=f"{path}.{fault.field}") for fault in found)
    return placed


def _spec(faults: Faults, pod: Obj) -> None:
    spec = pod["spec"]
    if b"\\u0000" in msgspec.json.encode(spec):  # rare, and much faster than a check of each string
        _no_nul(faults, spec, "spec")
    known = volumes(faults, pod["metadata"].get("name", ""), spec.get("volumes") or [], "spec.volumes")
    containers(faults, spec, known)
    for word, words in (("restartPolicy", _RESTART_POLICIES), ("dnsPolicy", _DNS_POLICIES)):
        if spec.get(word) not in words:
            faults.not_supported(f"spec.{word}", spec.get(word, ""), words)
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        path, seconds = "spec.terminationGracePeriodSeconds", spec["terminationGracePeriodSeconds"]
        faults.invalid(path, seconds, "must be greater than or equal to 0")
    for word, rule in (("serviceAccountName", dns_subdomain), ("nodeName", dns_subdomain), ("hostname", dns_label)):
        if spec.get(word):
            faults.each(f"spec.{word}", spec[word], rule(spec[word]))
    if spec.get("nodeName") and spec.get("schedulingGates"):
        faults.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _INT32:
        faults.invalid("spec.activeDeadlineSeconds", deadline, f"must be between 1 and {_INT32}, inclusive")
    scheduling(faults, spec)


def _no_nul(faults: Faults, value: Any, path: str) -> None:
    """No text of a pod may hold a NUL byte: programs, paths and mounts cannot be given one."""
    if isinstance(value, str):
        if "\0" in value:
            faults.invalid(path, value, "must not contain NUL characters")
    elif isinstance(value, dict):
        for key, item in value.items():
            if "\0" in key:
                faults.invalid(path, key, "must not contain NUL characters")
            _no_nul(faults, item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _no_nul(faults, item, f"{path}[{index}]")


def _update(faults: Faults, new: Obj, old: Obj) -> None:
    for word in ("containers", "initContainers"):
        if len(new.get(word) or ()) != len(old.get(word) or ()):
            faults.forbidden(f"spec.{word}", "pod updates may not add or remove containers")
            return
    if not _deadline(faults, new, old):
        return
    added_tolerations(faults, new.get("tolerations") or [], old.get("tolerations") or [], "spec.tolerations")
    removed_gates(faults, new.get("schedulingGates") or [], old.get("schedulingGates") or [], "spec.schedulingGates")
    wanted, before = copy.deepcopy(new), copy.deepcopy(old)
    _forget_changeable(wanted, before)
    if old.get("schedulingGates"):
        _forget_gated(faults, wanted, before)
    if wanted != before:
        detail = f"pod updates may not change fields other than {_UPDATABLE}\n{difference(wanted, before)}"
        faults.forbidden("spec", detail)


def _deadline(faults: Faults, new: Obj, old: Obj) -> bool:
    """A deadline may be set, and be brought forward."""
    path, now, was = "spec.activeDeadlineSeconds", new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if was is not None and now is None:
        faults.invalid(path, None, "must not update from a positive integer to nil value")
    elif was is not None and now > was:
        faults.invalid(path, now, "must be less than or equal to previous value")
        return False
    return True


def _forget_changeable(wanted: Obj, before: Obj) -> None:
    for spec in (wanted, before):
        for word in ("containers", "initContainers"):
            for container in spec.get(word) or ():
                container.pop("image", None)
        for word in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
            spec.pop(word, None)
    if before.get("terminationGracePeriodSeconds", 0) < 0 and wanted.get("terminationGracePeriodSeconds") == 1:
        del before["terminationGracePeriodSeconds"], wanted["terminationGracePeriodSeconds"]


def _forget_gated(faults: Faults, wanted: Obj, before: Obj) -> None:
    """While gated, a pod's node selector may get more demanding."""
    was, now = before.pop("nodeSelector", None) or {}, wanted.pop("nodeSelector", None) or {}
    if was | now != now or any(now[k] != v for k, v in was.items() if k in now):
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        faults.invalid("spec.nodeSelector", now, detail)
