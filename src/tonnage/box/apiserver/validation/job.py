"""Validation of Job and CronJob (pkg/apis/batch/validation)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tonnage.box.apiserver.validation.field_errors import Faults
from tonnage.box.apiserver.validation.meta import metadata
from tonnage.box.apiserver.validation.workloads import fixed, not_negative, not_offered, selected_template
from tonnage.errors import FieldCause, Invalid

Obj = dict[str, Any]
_MAX_INDEXED = 100_000
_LONGEST_CRON = 52
"""So that the names of its Jobs fit a label."""
_POLICIES = ("Allow", "Forbid", "Replace")


def validate(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Job. What this server does not do (failure and success policies, limits by index) is refused by name."""
    faults = Faults()
    metadata(faults, new, old=old)
    if subresource:
        return faults
    _job_spec(faults, new.setdefault("spec", {}))
    if old is not None:
        _update(faults, new, old)
    return faults


def _job_spec(faults: Faults, spec: Obj) -> None:
    not_negative(
        faults, spec, "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"
    )
    not_offered(
        faults, spec, "podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes", "managedBy"
    )
    selected_template(faults, spec, "job")
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy", "")
    if policy not in ("OnFailure", "Never"):
        faults.not_supported("spec.template.spec.restartPolicy", policy, ("OnFailure", "Never"))
    _modes(faults, spec)


def cron(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """CronJob: its schedule can be read, its Jobs could be made."""
    faults = Faults()
    metadata(faults, new, old=old)
    if subresource:
        return faults
    name, spec = new["metadata"].get("name", ""), new.setdefault("spec", {})
    if old is None and len(name) > _LONGEST_CRON:
        faults.invalid("metadata.name", name, f"must be no more than {_LONGEST_CRON} characters")
    if not spec.get("schedule"):
        faults.required("spec.schedule")
    else:
        _schedule(faults, spec)
    if spec.get("concurrencyPolicy") not in _POLICIES:
        faults.not_supported("spec.concurrencyPolicy", spec.get("concurrencyPolicy", ""), _POLICIES)
    not_negative(faults, spec, "startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
    made = (spec.get("jobTemplate") or {}).get("spec") or {}
    for word in ("selector", "manualSelector"):
        if made.get(word):
            faults.forbidden(f"spec.jobTemplate.spec.{word}", f"`{word}` will be auto-generated")
    labels = {"a": "a"}  # those that each Job gets for itself
    template = made.get("template") or {}
    meta = template.get("metadata") or {}
    meta = meta | {"labels": (meta.get("labels") or {}) | labels}
    whole = made | {"selector": {"matchLabels": labels}, "template": template | {"metadata": meta}}
    found = Faults()
    _job_spec(found, {word: value for word, value in whole.items() if word != "manualSelector"})
    faults += (replace(fault, field=fault.field.replace("spec.", "spec.jobTemplate.spec.", 1)) for fault in found)
    return faults


def _schedule(faults: Faults, spec: Obj) -> None:
    from tonnage.api import cron as cron_schedule  # few boxes have CronJobs, all read this file

    try:
        cron_schedule.parse(spec["schedule"])
    except Invalid as wrong:
        faults.invalid("spec.schedule", spec["schedule"], str(wrong))
        return
    try:
        cron_schedule.parse(spec["schedule"], spec.get("timeZone") or "")
    except Invalid as wrong:
        faults.invalid("spec.timeZone", spec["timeZone"], str(wrong))


def _modes(faults: Faults, spec: Obj) -> None:
    mode = spec.get("completionMode", "NonIndexed")
    if mode not in ("NonIndexed", "Indexed"):
        faults.not_supported("spec.completionMode", mode, ("NonIndexed", "Indexed"))
    elif mode == "Indexed":
        if "completions" not in spec:
            faults.required("spec.completions", "when completion mode is Indexed")
        elif spec["completions"] > _MAX_INDEXED:
            detail = f"must be less than or equal to {_MAX_INDEXED} when completion mode is Indexed"
            faults.invalid("spec.completions", spec["completions"], detail)
    if spec.get("podReplacementPolicy", "Failed") not in ("TerminatingOrFailed", "Failed"):
        words = ("Failed", "TerminatingOrFailed")
        faults.not_supported("spec.podReplacementPolicy", spec.get("podReplacementPolicy"), words)


def _update(faults: Faults, new: Obj, old: Obj) -> None:
    """An indexed Job may be made larger or smaller with its parallelism; pods of a suspended one may be changed."""
    spec, before = new["spec"], old["spec"]
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    fixed(faults, new, old, "selector", "completionMode", *(() if elastic else ("completions",)))
    unstarted = before.get("suspend") and not (old.get("status") or {}).get("startTime")
    if not unstarted:
        fixed(faults, new, old, "template")
