"""Validation of Job and CronJob (pkg/apis/batch/validation)."""

from __future__ import annotations

from tonnage.base.errors import InvalidError
from tonnage_box.apiserver.kinds.apps.validation import selected_template
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults
from tonnage_box.apiserver.validation.meta import kind_rules

_MAX_INDEXED = 100_000
_LONGEST_CRON = 52
"""So that the names of its Jobs fit a label."""
_NUMBERS = (
    "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished",
)  # fmt: skip
_NOT_OFFERED = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes", "managedBy")
_POLICIES = ("Allow", "Forbid", "Replace")


@kind_rules(whole=True)
def validate(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Job. What this server does not do (failure and success policies, limits by index) is rejected by name."""
    _job_spec(faults, new.setdefault("spec", {}))
    if old is not None:
        _update(faults, new["spec"], old)


def _job_spec(faults: Faults, spec: Obj) -> None:
    faults.not_negative("spec", spec, *_NUMBERS)
    for word in _NOT_OFFERED:
        if word in spec:
            faults.forbidden(f"spec.{word}", "is not offered by this server; leave it out")
    selected_template(faults, spec, "job")
    policy = ((spec.get("template") or {}).get("spec") or {}).get("restartPolicy", "")
    faults.one_of("spec.template.spec.restartPolicy", policy, ("OnFailure", "Never"))
    _modes(faults, spec)


@kind_rules(whole=True)
def cron(faults: Faults, new: Obj, old: Obj | None) -> None:
    """CronJob: its schedule can be read, its Jobs could be made."""
    name, spec = new["metadata"].get("name", ""), new.setdefault("spec", {})
    if old is None and len(name) > _LONGEST_CRON:
        faults.invalid("metadata.name", name, f"must be no more than {_LONGEST_CRON} characters")
    if not spec.get("schedule"):
        faults.required("spec.schedule")
    else:
        _schedule(faults, spec)
    faults.one_of("spec.concurrencyPolicy", spec.get("concurrencyPolicy"), _POLICIES)
    faults.not_negative("spec", spec, "startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
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
    faults.moved(found, "spec.", "spec.jobTemplate.spec.")


def _schedule(faults: Faults, spec: Obj) -> None:
    from tonnage_box.api import cron as cron_schedule  # few boxes have CronJobs, all read this file

    if len(spec["schedule"]) > cron_schedule.LONGEST:
        faults.too_long("spec.schedule", cron_schedule.LONGEST)
        return
    try:
        cron_schedule.parse(spec["schedule"])
    except InvalidError as wrong:
        faults.invalid("spec.schedule", spec["schedule"], str(wrong))
        return
    try:
        cron_schedule.parse(spec["schedule"], spec.get("timeZone") or "")
    except InvalidError as wrong:
        faults.invalid("spec.timeZone", spec["timeZone"], str(wrong))


def _modes(faults: Faults, spec: Obj) -> None:
    mode = spec.get("completionMode", "NonIndexed")
    faults.one_of("spec.completionMode", mode, ("NonIndexed", "Indexed"))
    if mode == "Indexed":
        if "completions" not in spec:
            faults.required("spec.completions", "when completion mode is Indexed")
        elif spec["completions"] > _MAX_INDEXED:
            detail = f"must be less than or equal to {_MAX_INDEXED} when completion mode is Indexed"
            faults.invalid("spec.completions", spec["completions"], detail)
    policy = spec.get("podReplacementPolicy", "Failed")
    faults.one_of("spec.podReplacementPolicy", policy, ("Failed", "TerminatingOrFailed"))


def _update(faults: Faults, spec: Obj, old: Obj) -> None:
    """An indexed Job may be made larger or smaller with its parallelism; pods of a suspended one may be changed."""
    before = old["spec"]
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    faults.fixed("spec.", spec, before, "selector", "completionMode", *(() if elastic else ("completions",)))
    unstarted = before.get("suspend") and not (old.get("status") or {}).get("startTime")
    if not unstarted:
        faults.fixed("spec.", spec, before, "template")
