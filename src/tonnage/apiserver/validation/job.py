"""Job (pkg/apis/batch/validation)."""

from __future__ import annotations

from typing import Any

from tonnage.apiserver.validation.faults import Faults
from tonnage.apiserver.validation.meta import metadata
from tonnage.apiserver.validation.workloads import fixed, not_negative, not_offered, selected_template
from tonnage.errors import Cause

Obj = dict[str, Any]
_MAX_INDEXED = 100_000


def validate(new: Obj, old: Obj | None, *, subresource: str) -> list[Cause]:
    """Job. What this server does not do (failure and success policies, limits by index) is refused by name."""
    faults = Faults()
    metadata(faults, new, old=old)
    if subresource:
        return faults
    spec = new.setdefault("spec", {})
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
    if old is not None:
        _update(faults, new, old)
    return faults


def _modes(faults: Faults, spec: Obj) -> None:
    mode = spec.get("completionMode")
    if mode not in ("NonIndexed", "Indexed"):
        faults.not_supported("spec.completionMode", mode, ("NonIndexed", "Indexed"))
    elif mode == "Indexed":
        if "completions" not in spec:
            faults.required("spec.completions", "when completion mode is Indexed")
        elif spec["completions"] > _MAX_INDEXED:
            detail = f"must be less than or equal to {_MAX_INDEXED} when completion mode is Indexed"
            faults.invalid("spec.completions", spec["completions"], detail)
    if spec.get("podReplacementPolicy") not in ("TerminatingOrFailed", "Failed"):
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
