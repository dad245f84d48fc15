"""Resource table: one row for each served kind. A new kind needs a row here and its fields in the schema text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import PartialObject
from tonnage_box.apiserver.access import escalation
from tonnage_box.apiserver.admission import plugins, priority
from tonnage_box.apiserver.printers import content as printers_content
from tonnage_box.apiserver.printers import core
from tonnage_box.apiserver.printers import rbac as printers_rbac
from tonnage_box.apiserver.printers import snapshot as printers_snapshot
from tonnage_box.apiserver.printers import workloads as printers
from tonnage_box.apiserver.printers.table import Column, dig
from tonnage_box.apiserver.registry import defaults, definitions, stored_kinds, strategy, warnings
from tonnage_box.apiserver.request import event_versions
from tonnage_box.apiserver.request.resource import Default, Resource, Validate, nothing
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation import (
    claim,
    cluster,
    config,
    content,
    job,
    persistent_volume,
    pod,
    rbac,
    snapshot,
    storage,
    workloads,
)

_NO_COLLECTION = ("create", "delete", "get", "list", "patch", "update", "watch")
_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"


def _paths(**paths: tuple[str, ...]) -> Callable[[Obj], Mapping[str, str]]:
    """A Resource's fields from paths; the words' double underscores stand for dots."""
    named = {word.replace("__", "."): path for word, path in paths.items()}
    return lambda obj: {word: _text(dig(obj, *path)) for word, path in named.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _pod_fields(obj: Obj) -> Mapping[str, str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return {
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.restartPolicy": spec.get("restartPolicy", ""),
        "spec.schedulerName": spec.get("schedulerName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "spec.hostNetwork": _text(bool(spec.get("hostNetwork"))),
        "status.phase": status.get("phase", ""),
        "status.podIP": status.get("podIP", ""),
        "status.nominatedNodeName": status.get("nominatedNodeName", ""),
    }


def _node_fields(obj: Obj) -> Mapping[str, str]:
    return {"spec.unschedulable": _text(bool(dig(obj, "spec", "unschedulable")))}


_REF = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _event_fields(obj: Obj) -> Mapping[str, str]:
    ref, component = obj.get("involvedObject") or {}, obj.get("reportingComponent", "")
    return {f"involvedObject.{word}": ref.get(word, "") for word in _REF} | {
        "reason": obj.get("reason", ""),
        "reportingComponent": component,
        "source": dig(obj, "source", "component") or component,
        "type": obj.get("type", ""),
    }


def _new_event_fields(obj: Obj) -> Mapping[str, str]:
    found = _event_fields(event_versions.inward(obj))
    shown = {word.replace("involvedObject", "regarding"): value for word, value in found.items()}
    return shown | {"reportingController": found["reportingComponent"]}


def _row(
    kind: Kind[Any], validate: Validate, columns: Sequence[Column] = (), default: Default = nothing, **hooks: Any
) -> Resource:
    """A row; admission of a namespaced kind checks its namespace and quota, unless hooks says otherwise."""
    if kind.namespaced:
        hooks.setdefault("admit", plugins.plain(kind))
    return Resource(kind, validate=validate, columns=columns, default=default, **hooks)


def _review(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    row = Kind(group, kind, kind.lower() + "s", PartialObject, namespaced=namespaced)
    return Resource(row, verbs=("create",))


EVENTS_NEW = Kind("events.k8s.io", "Event", "events", PartialObject, short=("ev",))
_STATUS: dict[str, Any] = {"subresources": frozenset({"status"})}
_OWN_STATUS: dict[str, Any] = _STATUS | {"prepare": strategy.without_status}
"""Kinds whose status is written by its owner, later."""
_WORKLOAD: dict[str, Any] = _OWN_STATUS | {"categories": ("all",), "warn": warnings.template}
_SCALED: dict[str, Any] = _WORKLOAD | {"subresources": frozenset({"status", "scale"})}
_STATEFUL: dict[str, Any] = _SCALED | {"warn": warnings.stateful_set}
_CLAIM: dict[str, Any] = _STATUS | {"admit": plugins.claim, "prepare": strategy.claim, "warn": warnings.claim}
_VOLUME: dict[str, Any] = _STATUS | {"admit": plugins.volume, "prepare": strategy.volume, "warn": warnings.volume}
_JOB: dict[str, Any] = _WORKLOAD | {"prepare": strategy.job}
_CRON_JOB: dict[str, Any] = _WORKLOAD | {"warn": warnings.cron_job}
_ROWS: tuple[Resource, ...] = (
    _row(
        kinds.NAMESPACES,
        cluster.namespace,
        core.NAMESPACE,
        defaults.namespace,
        subresources=frozenset({"status", "finalize"}),
        verbs=_NO_COLLECTION,
        admit=plugins.cluster_scoped,
        prepare=strategy.namespace,
        fields=_paths(status__phase=("status", "phase")),
    ),
    _row(kinds.NODES, cluster.node, core.NODE, defaults.node, **_STATUS, fields=_node_fields),
    _row(
        kinds.PODS,
        pod.validate,
        core.POD,
        defaults.pod,
        subresources=frozenset({"status", "binding", "eviction", "log", "exec", "attach", "ephemeralcontainers"}),
        categories=("all",),
        admit=plugins.pod,
        prepare=strategy.pod,
        warn=warnings.pod,
        fields=_pod_fields,
        graceful=True,
    ),
    _row(kinds.CLAIMS, claim.validate, core.CLAIM, defaults.claim, **_CLAIM),
    _row(kinds.VOLUMES, persistent_volume.validate, core.VOLUME, defaults.volume, **_VOLUME),
    _row(kinds.EVENTS, cluster.event, core.EVENT, fields=_event_fields),
    _row(
        EVENTS_NEW,
        cluster.new_event,
        core.EVENT_NEW,
        admit=plugins.plain(kinds.EVENTS),
        fields=_new_event_fields,
        stored_as=kinds.EVENTS.key,
        inward=event_versions.inward,
        outward=event_versions.outward,
    ),
    _row(kinds.CONFIG_MAPS, config.config_map, core.CONFIG_MAP),
    _row(
        kinds.SECRETS,
        config.secret,
        core.SECRET,
        defaults.secret,
        prepare=strategy.secret,
        fields=_paths(type=("type",)),
    ),
    _row(
        kinds.SERVICE_ACCOUNTS,
        config.service_account,
        core.SERVICE_ACCOUNT,
        subresources=frozenset({"token"}),
    ),
    _row(kinds.ROLES, rbac.role, printers_rbac.ROLE, admit=escalation.role),
    _row(
        kinds.ROLE_BINDINGS, rbac.role_binding, printers_rbac.BINDING, defaults.role_binding, admit=escalation.binding
    ),
    _row(kinds.CLUSTER_ROLES, rbac.cluster_role, printers_rbac.CLUSTER_ROLE, admit=escalation.cluster_role),
    _row(
        kinds.CLUSTER_ROLE_BINDINGS,
        rbac.cluster_role_binding,
        printers_rbac.BINDING,
        defaults.role_binding,
        admit=escalation.cluster_binding,
    ),
    _row(kinds.RESOURCE_QUOTAS, cluster.resource_quota, core.RESOURCE_QUOTA, **_OWN_STATUS),
    _row(kinds.LIMIT_RANGES, cluster.limit_range, default=defaults.limit_range),
    _row(
        kinds.STORAGE_CLASSES,
        storage.storage_class,
        core.STORAGE_CLASS,
        defaults.storage_class,
        warn=warnings.storage_class,
    ),
    _row(kinds.CSI_DRIVERS, storage.csi_driver, core.CSI_DRIVER, defaults.csi_driver),
    _row(kinds.CSI_NODES, storage.csi_node, core.CSI_NODE),
    _row(kinds.CAPACITIES, storage.capacity, core.CAPACITY),
    _row(kinds.ATTACHMENTS, storage.attachment, core.ATTACHMENT, defaults.attachment, **_OWN_STATUS),
    _row(kinds.DEPLOYMENTS, workloads.deployment, printers.DEPLOYMENT, defaults.deployment, **_SCALED),
    _row(kinds.REPLICA_SETS, workloads.replica_set, printers.REPLICA_SET, defaults.replica_set, **_SCALED),
    _row(kinds.STATEFUL_SETS, workloads.stateful_set, printers.STATEFUL_SET, defaults.stateful_set, **_STATEFUL),
    _row(kinds.DAEMON_SETS, workloads.daemon_set, printers.DAEMON_SET, defaults.daemon_set, **_WORKLOAD),
    _row(kinds.CONTROLLER_REVISIONS, workloads.controller_revision, printers.CONTROLLER_REVISION),
    _row(
        kinds.JOBS,
        job.validate,
        printers.JOB,
        defaults.job,
        **_JOB,
        fields=_paths(status__successful=("status", "succeeded")),
    ),
    _row(kinds.CRON_JOBS, job.cron, printers.CRON_JOB, defaults.cron_job, **_CRON_JOB),
    _row(
        kinds.PRIORITY_CLASSES,
        cluster.priority_class,
        core.PRIORITY_CLASS,
        defaults.priority_class,
        admit=priority.of_class,
    ),
    _row(kinds.DISRUPTION_BUDGETS, workloads.budget, core.DISRUPTION_BUDGET, defaults.budget, **_OWN_STATUS),
    _row(kinds.SNAPSHOTS, snapshot.snapshot, printers_snapshot.SNAPSHOT, **_STATUS, prepare=strategy.snapshot),
    _row(kinds.SNAPSHOT_CONTENTS, snapshot.content, printers_snapshot.CONTENT, **_STATUS, prepare=strategy.no_status),
    _row(kinds.SNAPSHOT_CLASSES, snapshot.snapshot_class, printers_snapshot.CLASS),
    _row(kinds.GROUP_SNAPSHOTS, snapshot.group, printers_snapshot.GROUP, **_STATUS, prepare=strategy.group_snapshot),
    _row(
        kinds.GROUP_CONTENTS,
        snapshot.group_content,
        printers_snapshot.GROUP_CONTENT,
        **_STATUS,
        prepare=strategy.no_status,
    ),
    _row(kinds.GROUP_CLASSES, snapshot.group_class, printers_snapshot.CLASS),
    definitions.ROW,
    _row(kinds.CONTENTS, content.content, printers_content.CONTENT),
    *stored_kinds.ROWS,
    _row(kinds.LEASES, cluster.lease, core.LEASE),
    _review(_AUTHENTICATION, "TokenReview"),
    _review(_AUTHENTICATION, "SelfSubjectReview"),
    _review(_AUTHORIZATION, "SubjectAccessReview"),
    _review(_AUTHORIZATION, "LocalSubjectAccessReview", namespaced=True),
    _review(_AUTHORIZATION, "SelfSubjectAccessReview"),
    _review(_AUTHORIZATION, "SelfSubjectRulesReview"),
)

RESOURCES: Mapping[str, Resource] = MappingProxyType({row.key: row for row in _ROWS})
