"""Columns of `kubectl get deploy,rs,sts,ds,job` (pkg/printers/internalversion)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from tonnage.box.apiserver.printers.core import AGE, dig
from tonnage.box.apiserver.printers.table import NAME, Column, Obj, age, duration, moment


def _count(name: str, *path: str, priority: int = 0) -> Column:
    return Column(name, lambda o, _: dig(o, *path) or 0, priority, "integer")


def _text(name: str, read: Callable[[Obj], str], priority: int = 1) -> Column:
    return Column(name, lambda o, _: read(o), priority)


def _each(word: str) -> Callable[[Obj], str]:
    def read(obj: Obj) -> str:
        return ",".join(c.get(word, "") for c in dig(obj, "spec", "template", "spec", "containers") or ())

    return read


def shown_selector(obj: Obj) -> str:
    """metav1.FormatLabelSelector."""
    selector = dig(obj, "spec", "selector") or {}
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or ():
        key, values = one.get("key", ""), ",".join(sorted(one.get("values") or ()))
        words = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "DoesNotExist": f"!{key}"}
        parts.append(words.get(one.get("operator", ""), key))
    return ",".join(sorted(parts)) or "<none>"


def _ready(obj: Obj) -> str:
    return f"{dig(obj, 'status', 'readyReplicas') or 0}/{dig(obj, 'spec', 'replicas') or 0}"


_WHAT = (_text("Containers", _each("name")), _text("Images", _each("image")))
_SELECTOR = _text("Selector", shown_selector)
DEPLOYMENT = (
    NAME,
    Column("Ready", lambda o, _: _ready(o), text="Pods that are ready, of how many."),
    _count("Up-to-date", "status", "updatedReplicas"),
    _count("Available", "status", "availableReplicas"),
    AGE,
    *_WHAT,
    _SELECTOR,
)
REPLICA_SET = (
    NAME,
    _count("Desired", "spec", "replicas"),
    _count("Current", "status", "replicas"),
    _count("Ready", "status", "readyReplicas"),
    AGE,
    *_WHAT,
    _SELECTOR,
)
STATEFUL_SET = (NAME, Column("Ready", lambda o, _: _ready(o), text="Pods that are ready, of how many."), AGE, *_WHAT)


def _nodes(obj: Obj) -> str:
    pairs = dig(obj, "spec", "template", "spec", "nodeSelector") or {}
    return ",".join(sorted(f"{key}={value}" for key, value in pairs.items())) or "<none>"


DAEMON_SET = (
    NAME,
    _count("Desired", "status", "desiredNumberScheduled"),
    _count("Current", "status", "currentNumberScheduled"),
    _count("Ready", "status", "numberReady"),
    _count("Up-to-date", "status", "updatedNumberScheduled"),
    _count("Available", "status", "numberAvailable"),
    _text("Node Selector", _nodes, 0),
    AGE,
    *_WHAT,
    _SELECTOR,
)


def _job_status(obj: Obj) -> str:
    true = {c.get("type") for c in dig(obj, "status", "conditions") or () if c.get("status") == "True"}
    if "Complete" in true:
        return "Complete"
    if "Failed" in true:
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    words = {"Suspended": "Suspended", "FailureTarget": "FailureTarget", "SuccessCriteriaMet": "SuccessCriteriaMet"}
    return next((shown for word, shown in words.items() if word in true), "Running")


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
    _text("Status", _job_status, 0),
    _text("Completions", _completions, 0),
    Column("Duration", _took, text="How long it took, or has been running."),
    AGE,
    *_WHAT,
    _SELECTOR,
)


def _in_job(read: Callable[[Obj], str]) -> Callable[[Obj], str]:
    return lambda obj: read(dig(obj, "spec", "jobTemplate") or {})


CRON_JOB = (
    NAME,
    _text("Schedule", lambda o: str(dig(o, "spec", "schedule") or ""), 0),
    _text("Timezone", lambda o: str(dig(o, "spec", "timeZone") or "<none>"), 0),
    _text("Suspend", lambda o: str(bool(dig(o, "spec", "suspend"))), 0),
    Column("Active", lambda o, _: len(dig(o, "status", "active") or ()), type="integer"),
    Column("Last Schedule", lambda o, now: _since(dig(o, "status", "lastScheduleTime"), now)),
    AGE,
    _text("Containers", _in_job(_each("name"))),
    _text("Images", _in_job(_each("image"))),
    _text("Selector", _in_job(shown_selector)),
)


def _since(text: str | None, now: datetime) -> str:
    return age(text, now) if text else "<none>"


def _controller(obj: Obj) -> str:
    for owner in dig(obj, "metadata", "ownerReferences") or ():
        if owner.get("controller"):
            group = owner.get("apiVersion", "").rpartition("/")[0]
            kind = str(owner.get("kind", "")).lower()
            return f"{kind}.{group}/{owner.get('name')}" if group else f"{kind}/{owner.get('name')}"
    return "<none>"


CONTROLLER_REVISION = (NAME, _text("Controller", _controller, 0), _count("Revision", "revision"), AGE)
