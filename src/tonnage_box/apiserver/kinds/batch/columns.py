"""Columns of `kubectl get jobs,cronjobs` (pkg/printers/internalversion)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from tonnage_box.apiserver.printers.cells import CONTAINERS, SELECTOR, images, names, shown_selector
from tonnage_box.apiserver.printers.table import AGE, NAME, Column, Obj, age, at, dig, duration, moment, of


def _job_status(obj: Obj) -> str:
    true = {c.get("type") for c in dig(obj, "status", "conditions") or () if c.get("status") == "True"}
    for word in ("Complete", "Failed"):
        if word in true:
            return word
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next((word for word in ("Suspended", "FailureTarget", "SuccessCriteriaMet") if word in true), "Running")


def _completions(obj: Obj) -> str:
    done, wanted = dig(obj, "status", "succeeded") or 0, dig(obj, "spec", "completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallelism = dig(obj, "spec", "parallelism") or 0
    return f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"


def _took(obj: Obj, now: datetime) -> str:
    start, end = dig(obj, "status", "startTime"), dig(obj, "status", "completionTime")
    if not start:
        return ""
    if not end:
        ended = [c for c in dig(obj, "status", "conditions") or () if c.get("type") in ("Failed", "Complete")]
        end = next((c.get("lastTransitionTime") for c in ended if c.get("status") == "True"), None)
    until = moment(end) if end else now.astimezone(UTC)
    return duration((until - moment(start)).total_seconds())


JOB = (
    NAME,
    of("Status", _job_status),
    of("Completions", _completions),
    Column("Duration", _took, text="How long it took, or has been running."),
    AGE,
    *CONTAINERS,
    SELECTOR,
)


def _in_job(read: Callable[[Obj], str]) -> Callable[[Obj], str]:
    return lambda obj: read(dig(obj, "spec", "jobTemplate") or {})


CRON_JOB = (
    NAME,
    at("Schedule", "spec", "schedule"),
    at("Timezone", "spec", "timeZone", empty="<none>"),
    of("Suspend", lambda o: str(bool(dig(o, "spec", "suspend")))),
    of("Active", lambda o: len(dig(o, "status", "active") or ()), kind="integer"),
    Column("Last Schedule", lambda o, now: _since(dig(o, "status", "lastScheduleTime"), now)),
    AGE,
    of("Containers", _in_job(names), 1),
    of("Images", _in_job(images), 1),
    of("Selector", _in_job(shown_selector), 1),
)


def _since(text: str | None, now: datetime) -> str:
    return age(text, now) if text else "<none>"
