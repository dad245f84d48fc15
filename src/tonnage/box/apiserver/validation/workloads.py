"""Validation of Deployment, ReplicaSet, StatefulSet, DaemonSet and ControllerRevision (pkg/apis/apps/validation)."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tonnage.api.meta import LabelSelector
from tonnage.api.number import whole
from tonnage.api.selectors import from_label_selector
from tonnage.box.apiserver.validation import pod
from tonnage.box.apiserver.validation.field_errors import Faults, immutable
from tonnage.box.apiserver.validation.meta import dns_subdomain, label_selector, metadata
from tonnage.errors import FieldCause

Obj = dict[str, Any]
_PERCENT = re.compile(r"[0-9]+%")
NEGATIVE = "must be greater than or equal to 0"
_STATEFUL_UPDATABLE = frozenset(
    {
        "replicas", "ordinals", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds", "revisionHistoryLimit",
    }
)  # fmt: skip
_NOT_OFFERED = "is not offered by this server; leave it out"


def deployment(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """Deployment."""
    faults = _begin(new, old)
    if subresource:
        return faults
    spec = new["spec"]
    _replicated(faults, spec, "deployment", "ReplicaSet")
    not_negative(faults, spec, "revisionHistoryLimit", "progressDeadlineSeconds")
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds", 0)
    if deadline is not None and deadline <= ready:
        faults.invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")
    _deployment_strategy(faults, spec.get("strategy") or {})
    fixed(faults, new, old, "selector")
    return faults


def replica_set(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """ReplicaSet."""
    faults = _begin(new, old)
    if not subresource:
        _replicated(faults, new["spec"], "deployment", "ReplicaSet")
        fixed(faults, new, old, "selector")
    return faults


def stateful_set(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """StatefulSet. Its pods' volumes are those of the template and one for each claim."""
    faults = _begin(new, old)
    if subresource:
        return faults
    spec = new["spec"]
    template = spec.get("template") or {}
    claims = [(c.get("metadata") or {}).get("name", "") for c in spec.get("volumeClaimTemplates") or ()]
    volumes = [v for v in (template.get("spec") or {}).get("volumes") or () if v.get("name") not in claims]
    volumes += [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    whole = template | {"spec": (template.get("spec") or {}) | {"volumes": volumes}}
    _replicated(faults, spec | {"template": whole}, "statefulset", "StatefulSet")
    not_negative(faults, spec, "revisionHistoryLimit")
    start = (spec.get("ordinals") or {}).get("start", 0)
    if start < 0:
        faults.invalid("spec.ordinals.start", start, NEGATIVE)
    _one_of(faults, spec, "podManagementPolicy", "OrderedReady", "Parallel")
    for word in ("whenDeleted", "whenScaled"):
        policy = (spec.get("persistentVolumeClaimRetentionPolicy") or {}).get(word)
        if policy not in ("Retain", "Delete"):
            path = f"spec.persistentVolumeClaimRetentionPolicy.{word}"
            faults.not_supported(path, policy, ("Delete", "Retain"))
    _stateful_strategy(faults, spec.get("updateStrategy") or {})
    if old is not None and any(
        spec.get(word) != old["spec"].get(word) for word in {*spec, *old["spec"]} - _STATEFUL_UPDATABLE
    ):
        allowed = (
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
            "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
        )
        faults.forbidden("spec", allowed)
    return faults


def _stateful_strategy(faults: Faults, strategy: Obj) -> None:
    path, rolling = "spec.updateStrategy", strategy.get("rollingUpdate")
    if strategy.get("type") not in ("RollingUpdate", "OnDelete"):
        faults.invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")
    elif strategy["type"] == "OnDelete" and rolling is not None:
        faults.invalid(f"{path}.rollingUpdate", rolling, "only allowed for updateStrategy 'RollingUpdate'")
    if rolling is not None:
        if rolling.get("partition", 0) < 0:
            faults.invalid(f"{path}.rollingUpdate.partition", rolling["partition"], NEGATIVE)
        if "maxUnavailable" in rolling:
            int_or_percent(faults, rolling["maxUnavailable"], f"{path}.rollingUpdate.maxUnavailable")
            if share(rolling["maxUnavailable"]) == 0:
                faults.invalid(f"{path}.rollingUpdate.maxUnavailable", rolling["maxUnavailable"], "cannot be 0")


def daemon_set(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """DaemonSet."""
    faults = _begin(new, old)
    if subresource:
        return faults
    spec = new["spec"]
    selected_template(faults, spec, "daemonset")
    not_negative(faults, spec, "minReadySeconds", "revisionHistoryLimit")
    _only_always(faults, spec, "DaemonSet")
    strategy, path = spec.get("updateStrategy") or {}, "spec.updateStrategy"
    if strategy.get("type") not in ("RollingUpdate", "OnDelete"):
        faults.not_supported(f"{path}.type", strategy.get("type", ""), ("RollingUpdate", "OnDelete"))
    rolling = strategy.get("rollingUpdate")
    if strategy.get("type") == "RollingUpdate" and rolling is not None:
        path += ".rollingUpdate"
        for word in ("maxUnavailable", "maxSurge"):
            int_or_percent(faults, rolling.get(word, 0), f"{path}.{word}")
        missing, surge = share(rolling.get("maxUnavailable", 0)), share(rolling.get("maxSurge", 0))
        if missing and surge:
            faults.invalid(f"{path}.maxSurge", rolling["maxSurge"], "may not be set when maxUnavailable is non-zero")
        elif not missing and not surge:
            faults.required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")
    fixed(faults, new, old, "selector")
    return faults


def controller_revision(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
    """ControllerRevision: its data is an object, and never changes."""
    faults = Faults()
    metadata(faults, new, old=old)
    if old is None and "data" not in new:
        faults.required("data", "data is mandatory")
    elif old is None and not isinstance(new["data"], dict):
        faults.required("data", "data must be a valid JSON object")
    if new.get("revision", 0) < 0:
        faults.invalid("revision", new["revision"], NEGATIVE)
    if old is not None:
        immutable(faults, new.get("data"), old.get("data"), "data")
    return faults


def _begin(new: Obj, old: Obj | None) -> Faults:
    faults = Faults()
    metadata(faults, new, dns_subdomain, old=old)
    new.setdefault("spec", {})
    return faults


def _replicated(faults: Faults, spec: Obj, word: str, kind: str) -> None:
    not_negative(faults, spec, "replicas", "minReadySeconds")
    selected_template(faults, spec, word)
    _only_always(faults, spec, kind)


def _only_always(faults: Faults, spec: Obj, kind: str) -> None:
    pods = (spec.get("template") or {}).get("spec") or {}
    if pods.get("restartPolicy") != "Always":
        faults.not_supported("spec.template.spec.restartPolicy", pods.get("restartPolicy", ""), ("Always",))
    if "activeDeadlineSeconds" in pods:
        detail = f"activeDeadlineSeconds in {kind} is not Supported"
        faults.forbidden("spec.template.spec.activeDeadlineSeconds", detail)


def selected_template(faults: Faults, spec: Obj, word: str) -> None:
    """spec.selector and spec.template: the one must select pods of the other."""
    selector, template = spec.get("selector"), spec.get("template") or {}
    if selector is None:
        faults.required("spec.selector")
        return
    before = len(faults)
    label_selector(faults, selector, "spec.selector")
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        faults.invalid("spec.selector", selector, f"empty selector is invalid for {word}")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if len(faults) == before and not selects(selector, labels):
        detail = "`selector` does not match template `labels`"
        faults.invalid("spec.template.metadata.labels", labels, detail)
    faults += pod.template(template, "spec.template")


def selects(selector: Obj, labels: Obj) -> bool:
    """Whether a (valid) label selector takes something with these labels."""
    return from_label_selector(msgspec.convert(selector, LabelSelector)).matches(labels)


def not_negative(faults: Faults, spec: Obj, *words: str) -> None:
    """Numbers of spec that are 0 or more, where they are given."""
    for word in words:
        if spec.get(word, 0) < 0:
            faults.invalid(f"spec.{word}", spec[word], NEGATIVE)


def _one_of(faults: Faults, spec: Obj, word: str, *words: str) -> None:
    if spec.get(word) not in words:
        detail = " or ".join(f"'{w}'" for w in words)
        faults.invalid(f"spec.{word}", spec.get(word, ""), f"must be {detail}")


def _deployment_strategy(faults: Faults, strategy: Obj) -> None:
    path, rolling = "spec.strategy", strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate":
        if rolling is not None:
            detail = "may not be specified when strategy `type` is 'Recreate'"
            faults.forbidden(f"{path}.rollingUpdate", detail)
        return
    if strategy.get("type") != "RollingUpdate":
        faults.not_supported(f"{path}.type", strategy.get("type", ""), ("Recreate", "RollingUpdate"))
        return
    rolling = rolling or {}
    for word in ("maxUnavailable", "maxSurge"):
        int_or_percent(faults, rolling.get(word, 0), f"{path}.rollingUpdate.{word}")
    missing, surge = share(rolling.get("maxUnavailable", 0)), share(rolling.get("maxSurge", 0))
    if missing == 0 and surge == 0:
        detail = "may not be 0 when `maxSurge` is 0"
        faults.invalid(f"{path}.rollingUpdate.maxUnavailable", rolling.get("maxUnavailable", 0), detail)
    if isinstance(rolling.get("maxUnavailable"), str) and missing > 100:
        faults.invalid(
            f"{path}.rollingUpdate.maxUnavailable", rolling["maxUnavailable"], "must not be greater than 100%"
        )


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


def fixed(faults: Faults, new: Obj, old: Obj | None, *words: str) -> None:
    """Fields of spec that may not change."""
    for word in words if old is not None else ():
        assert old is not None
        immutable(faults, new["spec"].get(word), old["spec"].get(word), f"spec.{word}")


def not_offered(faults: Faults, spec: Obj, *words: str) -> None:
    """Fields of spec that Kubernetes has and this server has not."""
    for word in words:
        if word in spec:
            faults.forbidden(f"spec.{word}", _NOT_OFFERED)
