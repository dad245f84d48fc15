"""Columns of `kubectl get deploy,rs,sts,ds,job` (pkg/printers/internalversion)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from tonnage_box.apiserver.printers.table import AGE, NAME, Column, Obj, age, at, dig, duration, moment, of


def _count(name: str, *path: str) -> Column:
    return at(name, *path, empty=0, kind="integer")


def _each(word: str, obj: Obj) -> str:
    return ",".join(c.get(word, "") for c in dig(obj, "spec", "template", "spec", "containers") or ())


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


_names, _images = partial(_each, "name"), partial(_each, "image")
CONTAINERS = (of("Containers", _names, 1), of("Images", _images, 1))
_SELECTOR = of("Selector", shown_selector, 1)
_READY = of("Ready", _ready, text="Pods that are ready, of how many.")
DEPLOYMENT = (
    NAME,
    _READY,
    _count("Up-to-date", "status", "updatedReplicas"),
    _count("Available", "status", "availableReplicas"),
    AGE,
    *CONTAINERS,
    _SELECTOR,
)
REPLICA_SET = (
    NAME,
    _count("Desired", "spec", "replicas"),
    _count("Current", "status", "replicas"),
    _count("Ready", "status", "readyReplicas"),
    AGE,
    *CONTAINERS,
    _SELECTOR,
)
STATEFUL_SET = (NAME, _READY, AGE, *CONTAINERS)


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
    of("Node Selector", _nodes),
    AGE,
    *CONTAINERS,
    _SELECTOR,
)


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
    _SELECTOR,
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
    of("Containers", _in_job(_names), 1),
    of("Images", _in_job(_images), 1),
    of("Selector", _in_job(shown_selector), 1),
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


CONTROLLER_REVISION = (NAME, of("Controller", _controller), _count("Revision", "revision"), AGE)
