"""Resource table: one row for each served kind. A new kind needs a row here and its fields in the schema text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tonnage.api import kinds
from tonnage.api.kinds import Kind
from tonnage.api.meta import PartialObject
from tonnage.box.apiserver.admission import plugins, priority
from tonnage.box.apiserver.printers import core, table
from tonnage.box.apiserver.printers import workloads as printers
from tonnage.box.apiserver.printers.table import dig
from tonnage.box.apiserver.registry import defaults, strategy
from tonnage.box.apiserver.request import event_versions
from tonnage.box.apiserver.request.resource import Resource
from tonnage.box.apiserver.storage.store import Obj
from tonnage.box.apiserver.validation import (
    claim,
    cluster,
    config,
    job,
    persistent_volume,
    pod,
    policy,
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


def _row(kind: Kind[Any], **hooks: Any) -> Resource:
    """A row; admission of a namespaced kind checks its namespace and quota, unless hooks says otherwise."""
    if kind.namespaced:
        hooks.setdefault("admit", plugins.plain(kind))
    return Resource(kind, **hooks)


def _review(group: str, kind: str) -> Resource:
    row = Kind(group, kind, kind.lower() + "s", PartialObject, namespaced=False)
    return _row(row, verbs=("create",), columns=table.DEFAULT)


EVENTS_NEW = Kind("events.k8s.io", "Event", "events", PartialObject, short=("ev",))
_STATUS: dict[str, Any] = {"subresources": frozenset({"status"})}
_OWN_STATUS: dict[str, Any] = _STATUS | {"prepare": strategy.without_status}
"""Kinds whose status is written by its owner, later."""
_WORKLOAD: dict[str, Any] = _OWN_STATUS | {"categories": ("all",)}
_SCALED: dict[str, Any] = _WORKLOAD | {"subresources": frozenset({"status", "scale"})}
_ROWS: tuple[Resource, ...] = (
    _row(
        kinds.NAMESPACES,
        subresources=frozenset({"status", "finalize"}),
        verbs=_NO_COLLECTION,
        default=defaults.namespace,
        validate=cluster.namespace,
        admit=plugins.cluster_scoped,
        prepare=strategy.namespace,
        fields=_paths(status__phase=("status", "phase")),
        columns=core.NAMESPACE,
    ),
    _row(
        kinds.NODES,
        **_STATUS,
        default=defaults.node,
        validate=cluster.node,
        fields=_node_fields,
        columns=core.NODE,
    ),
    _row(
        kinds.PODS,
        subresources=frozenset({"status", "binding", "eviction", "log"}),
        categories=("all",),
        default=defaults.pod,
        validate=pod.validate,
        admit=plugins.pod,
        prepare=strategy.pod,
        fields=_pod_fields,
        columns=core.POD,
        graceful=True,
    ),
    _row(
        kinds.CLAIMS,
        **_STATUS,
        default=defaults.claim,
        validate=claim.validate,
        admit=plugins.claim,
        prepare=strategy.claim,
        columns=core.CLAIM,
    ),
    _row(
        kinds.VOLUMES,
        **_STATUS,
        default=defaults.volume,
        validate=persistent_volume.validate,
        admit=plugins.volume,
        prepare=strategy.volume,
        columns=core.VOLUME,
    ),
    _row(kinds.EVENTS, validate=cluster.event, fields=_event_fields, columns=core.EVENT),
    _row(
        EVENTS_NEW,
        validate=cluster.new_event,
        admit=plugins.plain(kinds.EVENTS),
        fields=_new_event_fields,
        columns=core.EVENT_NEW,
        stored_as=kinds.EVENTS.key,
        inward=event_versions.inward,
        outward=event_versions.outward,
    ),
    _row(kinds.CONFIG_MAPS, validate=config.config_map, columns=core.CONFIG_MAP),
    _row(
        kinds.SECRETS,
        default=defaults.secret,
        validate=config.secret,
        prepare=strategy.secret,
        fields=_paths(type=("type",)),
        columns=core.SECRET,
    ),
    _row(kinds.SERVICE_ACCOUNTS, validate=config.service_account, columns=core.SERVICE_ACCOUNT),
    _row(kinds.RESOURCE_QUOTAS, **_OWN_STATUS, validate=cluster.resource_quota, columns=core.RESOURCE_QUOTA),
    _row(kinds.LIMIT_RANGES, default=defaults.limit_range, validate=cluster.limit_range, columns=table.DEFAULT),
    _row(
        kinds.STORAGE_CLASSES,
        default=defaults.storage_class,
        validate=storage.storage_class,
        columns=core.STORAGE_CLASS,
    ),
    _row(kinds.CSI_DRIVERS, default=defaults.csi_driver, validate=storage.csi_driver, columns=core.CSI_DRIVER),
    _row(kinds.CSI_NODES, validate=storage.csi_node, columns=core.CSI_NODE),
    _row(kinds.CAPACITIES, validate=storage.capacity, columns=core.CAPACITY),
    _row(
        kinds.ATTACHMENTS,
        **_OWN_STATUS,
        default=defaults.attachment,
        validate=storage.attachment,
        columns=core.ATTACHMENT,
    ),
    _row(
        kinds.DEPLOYMENTS,
        **_SCALED,
        default=defaults.deployment,
        validate=workloads.deployment,
        columns=printers.DEPLOYMENT,
    ),
    _row(
        kinds.REPLICA_SETS,
        **_SCALED,
        default=defaults.replica_set,
        validate=workloads.replica_set,
        columns=printers.REPLICA_SET,
    ),
    _row(
        kinds.STATEFUL_SETS,
        **_SCALED,
        default=defaults.stateful_set,
        validate=workloads.stateful_set,
        columns=printers.STATEFUL_SET,
    ),
    _row(
        kinds.DAEMON_SETS,
        **_WORKLOAD,
        default=defaults.daemon_set,
        validate=workloads.daemon_set,
        columns=printers.DAEMON_SET,
    ),
    _row(kinds.CONTROLLER_REVISIONS, validate=workloads.controller_revision, columns=printers.CONTROLLER_REVISION),
    _row(
        kinds.JOBS,
        **_WORKLOAD | {"prepare": strategy.job},
        default=defaults.job,
        validate=job.validate,
        fields=_paths(status__successful=("status", "succeeded")),
        columns=printers.JOB,
    ),
    _row(kinds.CRON_JOBS, **_WORKLOAD, default=defaults.cron_job, validate=job.cron, columns=printers.CRON_JOB),
    _row(
        kinds.PRIORITY_CLASSES,
        default=defaults.priority_class,
        validate=policy.priority_class,
        admit=priority.of_class,
        columns=core.PRIORITY_CLASS,
    ),
    _row(kinds.DISRUPTION_BUDGETS, **_OWN_STATUS, validate=policy.budget, columns=core.DISRUPTION_BUDGET),
    _row(kinds.LEASES, validate=cluster.lease, columns=core.LEASE),
    _review(_AUTHENTICATION, "TokenReview"),
    _review(_AUTHENTICATION, "SelfSubjectReview"),
    _review(_AUTHORIZATION, "SelfSubjectAccessReview"),
    _review(_AUTHORIZATION, "SelfSubjectRulesReview"),
)

RESOURCES: Mapping[str, Resource] = MappingProxyType({row.key: row for row in _ROWS})
