"""Defaulting of batch (pkg/apis/batch/v1/defaults.go). Pure functions of normalized dicts."""

from __future__ import annotations

from collections.abc import Mapping

from tonnage_box.apiserver.kinds.core.pod_defaults import templated
from tonnage_box.apiserver.storage.store import Obj

_JOB: Mapping[str, str | int] = {
    "parallelism": 1,
    "backoffLimit": 6,
    "completionMode": "NonIndexed",
    "suspend": False,
    "podReplacementPolicy": "TerminatingOrFailed",
}


def cron_job(obj: Obj) -> None:
    """CronJob: runs may overlap; history of three successful Jobs and one failed Job."""
    spec = obj.setdefault("spec", {})
    spec["concurrencyPolicy"] = spec.get("concurrencyPolicy") or "Allow"
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    templated(spec.setdefault("jobTemplate", {}))


def job(obj: Obj) -> None:
    """Job: one pod that must end well, six failures borne."""
    spec = templated(obj)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    for word, value in _JOB.items():
        spec.setdefault(word, value)
