"""Validation of the kinds of apps (pkg/apis/apps/validation)."""

from __future__ import annotations

import re

import msgspec

from tonnage.kubernetes.api.meta import LabelSelector
from tonnage.kubernetes.api.number import whole
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage_box.apiserver.kinds.core.validation import pod
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import NEGATIVE, Faults
from tonnage_box.apiserver.validation.meta import MAX_REQUIREMENTS, kind_rules, label_selector

_PERCENT = re.compile(r"[0-9]+%")
_STATEFUL_UPDATABLE = frozenset(
    {
        "replicas", "ordinals", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds", "revisionHistoryLimit",
    }
)  # fmt: skip
MAX_REPLICAS = 10_000
"""Pods of one workload. Kubernetes has no bound but that of the number, which no box could hold."""
_UPDATE_STRATEGIES = ("RollingUpdate", "OnDelete")


@kind_rules(whole=True)
def deployment(faults: Faults, new: Obj, old: Obj | None) -> None:
    """Deployment."""
    spec = new.setdefault("spec", {})
    _replicated(faults, spec, "deployment", "ReplicaSet")
    faults.not_negative("spec", spec, "revisionHistoryLimit", "progressDeadlineSeconds")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds", 0)
    if deadline is not None and deadline <= ready:
        faults.invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")
    _deployment_strategy(faults, spec.get("strategy") or {})
    _fixed_selector(faults, spec, old)


@kind_rules(whole=True)
def replica_set(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ReplicaSet."""
    spec = new.setdefault("spec", {})
    # While a Deployment rolls out, its ReplicaSets have its surge as well; each selects by its template's hash, too.
    _replicated(faults, spec, "deployment", "ReplicaSet", most=2 * MAX_REPLICAS, requirements=MAX_REQUIREMENTS + 1)
    _fixed_selector(faults, spec, old)


@kind_rules(whole=True)
def stateful_set(faults: Faults, new: Obj, old: Obj | None) -> None:
    """StatefulSet. Its pods' volumes are those of the template and one for each claim."""
    spec = new.setdefault("spec", {})
    template = spec.get("template") or {}
    claims = [(c.get("metadata") or {}).get("name", "") for c in spec.get("volumeClaimTemplates") or ()]
    volumes = [v for v in (template.get("spec") or {}).get("volumes") or () if v.get("name") not in claims]
    volumes += [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    whole = template | {"spec": (template.get("spec") or {}) | {"volumes": volumes}}
    _replicated(faults, spec | {"template": whole}, "statefulset", "StatefulSet")
    faults.not_negative("spec", spec, "revisionHistoryLimit")
    faults.not_negative("spec.ordinals", spec.get("ordinals") or {}, "start")
    management = spec.get("podManagementPolicy", "")
    if management not in ("OrderedReady", "Parallel"):
        faults.invalid("spec.podManagementPolicy", management, "must be 'OrderedReady' or 'Parallel'")
    retention = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    for word in ("whenDeleted", "whenScaled"):
        path = f"spec.persistentVolumeClaimRetentionPolicy.{word}"
        faults.one_of(path, retention.get(word), ("Delete", "Retain"))
    _stateful_strategy(faults, spec.get("updateStrategy") or {})
    if old is not None and any(
        spec.get(word) != old["spec"].get(word) for word in {*spec, *old["spec"]} - _STATEFUL_UPDATABLE
    ):
        allowed = (
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
            "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
        )
        faults.forbidden("spec", allowed)


def _stateful_strategy(faults: Faults, strategy: Obj) -> None:
    path, rolling = "spec.updateStrategy", strategy.get("rollingUpdate")
    if strategy.get("type") not in _UPDATE_STRATEGIES:
        faults.invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")
    elif strategy["type"] == "OnDelete" and rolling is not None:
        faults.invalid(f"{path}.rollingUpdate", rolling, "only allowed for updateStrategy 'RollingUpdate'")
    if rolling is not None:
        faults.not_negative(f"{path}.rollingUpdate", rolling, "partition")
        if "maxUnavailable" in rolling:
            int_or_percent(faults, rolling["maxUnavailable"], f"{path}.rollingUpdate.maxUnavailable")
            if share(rolling["maxUnavailable"]) == 0:
                faults.invalid(f"{path}.rollingUpdate.maxUnavailable", rolling["maxUnavailable"], "cannot be 0")


@kind_rules(whole=True)
def daemon_set(faults: Faults, new: Obj, old: Obj | None) -> None:
    """DaemonSet."""
    spec = new.setdefault("spec", {})
    selected_template(faults, spec, "daemonset")
    faults.not_negative("spec", spec, "minReadySeconds", "revisionHistoryLimit")
    _only_always(faults, spec, "DaemonSet")
    strategy, path = spec.get("updateStrategy") or {}, "spec.updateStrategy.rollingUpdate"
    faults.one_of("spec.updateStrategy.type", strategy.get("type"), _UPDATE_STRATEGIES)
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "RollingUpdate" and rolling is not None:
        missing, surge = _bounds(faults, rolling, path)
        if missing and surge:
            faults.invalid(f"{path}.maxSurge", rolling["maxSurge"], "may not be set when maxUnavailable is non-zero")
        elif not missing and not surge:
            faults.required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")
    _fixed_selector(faults, spec, old)


@kind_rules()
def controller_revision(faults: Faults, new: Obj, old: Obj | None) -> None:
    """ControllerRevision: its data is an object, and never changes."""
    if old is None and "data" not in new:
        faults.required("data", "data is mandatory")
    elif old is None and not isinstance(new["data"], dict):
        faults.required("data", "data must be a valid JSON object")
    if new.get("revision", 0) < 0:
        faults.invalid("revision", new["revision"], NEGATIVE)
    if old is not None:
        faults.fixed("", new, old, "data")


def _fixed_selector(faults: Faults, spec: Obj, old: Obj | None) -> None:
    if old is not None:
        faults.fixed("spec.", spec, old["spec"], "selector")


def _replicated(
    faults: Faults,
    spec: Obj,
    word: str,
    kind: str,
    *,
    most: int = MAX_REPLICAS,
    requirements: int = MAX_REQUIREMENTS,
) -> None:
    faults.not_negative("spec", spec, "replicas", "minReadySeconds")
    faults.too_large("spec.replicas", spec.get("replicas", 0), most)
    selected_template(faults, spec, word, requirements=requirements)
    _only_always(faults, spec, kind)


def _only_always(faults: Faults, spec: Obj, kind: str) -> None:
    pods = (spec.get("template") or {}).get("spec") or {}
    faults.one_of("spec.template.spec.restartPolicy", pods.get("restartPolicy"), ("Always",))
    if "activeDeadlineSeconds" in pods:
        detail = f"activeDeadlineSeconds in {kind} is not Supported"
        faults.forbidden("spec.template.spec.activeDeadlineSeconds", detail)


def selected_template(faults: Faults, spec: Obj, word: str, *, requirements: int = MAX_REQUIREMENTS) -> None:
    """spec.selector and spec.template: the one must select pods of the other. requirements: of the selector at most."""
    selector, template = spec.get("selector"), spec.get("template") or {}
    if selector is None:
        faults.required("spec.selector")
        return
    before = len(faults)
    label_selector(faults, selector, "spec.selector", most=requirements)
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        faults.invalid("spec.selector", selector, f"empty selector is invalid for {word}")
    labels = (template.get("metadata") or {}).get("labels") or {}
    compiled = from_label_selector(msgspec.convert(selector, LabelSelector)) if len(faults) == before else None
    if compiled is not None and not compiled.matches(labels):
        detail = "`selector` does not match template `labels`"
        faults.invalid("spec.template.metadata.labels", labels, detail)
    pod.template(faults, template, "spec.template")


def _deployment_strategy(faults: Faults, strategy: Obj) -> None:
    path, rolling = "spec.strategy.rollingUpdate", strategy.get("rollingUpdate")
    faults.one_of("spec.strategy.type", strategy.get("type"), ("Recreate", "RollingUpdate"))
    if strategy.get("type") == "Recreate" and rolling is not None:
        faults.forbidden(path, "may not be specified when strategy `type` is 'Recreate'")
    if strategy.get("type") != "RollingUpdate":
        return
    rolling = rolling or {}
    missing, surge = _bounds(faults, rolling, path)
    if missing == 0 and surge == 0:
        detail = "may not be 0 when `maxSurge` is 0"
        faults.invalid(f"{path}.maxUnavailable", rolling.get("maxUnavailable", 0), detail)
    at_most_all(faults, rolling.get("maxUnavailable", 0), f"{path}.maxUnavailable")


def _bounds(faults: Faults, rolling: Obj, path: str) -> tuple[int, int]:
    """maxUnavailable and maxSurge of a rolling update, checked."""
    for word in ("maxUnavailable", "maxSurge"):
        int_or_percent(faults, rolling.get(word, 0), f"{path}.{word}")
    return share(rolling.get("maxUnavailable", 0)), share(rolling.get("maxSurge", 0))


def at_most_all(faults: Faults, value: int | str, path: str) -> None:
    """A share is of 100 % at most."""
    if isinstance(value, str) and share(value) > 100:
        faults.invalid(path, value, "must not be greater than 100%")


def int_or_percent(faults: Faults, value: int | str, path: str) -> None:
    """A number or a part in percent, not below zero."""
    if isinstance(value, str):
        if share(value) < 0:
            detail = "a valid percent string must be a numeric string followed by an ending '%'"
            faults.invalid(path, value, f"{detail} (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')")
    elif value < 0:
        faults.invalid(path, value, NEGATIVE)


def share(value: int | str) -> int:
    """The number of a count or percentage; -1 for text that is neither."""
    if isinstance(value, int):
        return value
    found = whole(value[:-1], digits=9) if _PERCENT.fullmatch(value) else None
    return -1 if found is None else found
