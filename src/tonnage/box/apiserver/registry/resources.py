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
from tonnage.box.apiserver.printers import core as printers_core
from tonnage.box.apiserver.printers import workloads as printers_workloads
from tonnage.box.apiserver.printers.core import dig
from tonnage.box.apiserver.registry import defaults, strategy, workload_defaults
from tonnage.box.apiserver.registry import strategy as registry_strategy
from tonnage.box.apiserver.request import event_versions
from tonnage.box.apiserver.request.resource import Obj, Resource
from tonnage.box.apiserver.schema import decode
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

_STATUS = frozenset({"status"})
_SCALED = frozenset({"status", "scale"})
_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"


def _reader(**paths: tuple[str, ...]) -> tuple[Callable[[Obj], Mapping[str, str]], frozenset[str]]:
    """A Resource's fields and field_names from paths; the words' double underscores stand for dots."""
    named = {word.replace("__", "."): path for word, path in paths.items()}

    def read(obj: Obj) -> Mapping[str, str]:
        return {word: _text(dig(obj, *path)) for word, path in named.items()}

    return read, frozenset(named)


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


_NAMESPACE_FIELDS, _NAMESPACE_NAMES = _reader(status__phase=("status", "phase"))
_SECRET_FIELDS, _SECRET_NAMES = _reader(type=("type",))
_JOB_FIELDS, _JOB_NAMES = _reader(status__successful=("status", "succeeded"))
_REF = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _event_fields(obj: Obj) -> Mapping[str, str]:
    """Under the names of both versions: an Event is stored once and selected through either."""
    ref = obj.get("involvedObject") or {}
    found = {f"involvedObject.{word}": ref.get(word, "") for word in _REF}
    found |= {f"regarding.{word}": ref.get(word, "") for word in _REF}
    component = obj.get("reportingComponent", "")
    source = dig(obj, "source", "component") or component
    return found | {
        "reason": obj.get("reason", ""),
        "reportingComponent": component,
        "reportingController": component,
        "source": source,
        "type": obj.get("type", ""),
    }


def _new_event_fields(obj: Obj) -> Mapping[str, str]:
    """Of an Event in either shape."""
    return _event_fields(event_versions.inward(obj))


_EVENT_NAMES = frozenset(
    {f"involvedObject.{word}" for word in _REF} | {"reason", "reportingComponent", "source", "type"}
)
_NEW_EVENT_NAMES = frozenset({n.replace("involvedObject", "regarding") for n in _EVENT_NAMES} | {"reportingController"})


def schema_name(kind: Kind[Any]) -> str:
    """The kind's struct in the schemas."""
    return f"{kind.group.split('.')[0] or 'core'}.{kind.version}.{kind.kind}"


def _row(kind: Kind[Any], **hooks: Any) -> Resource:
    name = schema_name(kind)

    def unknown(obj: Obj) -> list[str]:
        return decode.normalise(name, obj)

    extra = {"schema_name": name} | hooks.pop("extra", {})
    return Resource(kind, unknown=unknown, extra=extra, **hooks)


def _review(group: str, kind: str) -> Resource:
    row = Kind(group, "v1", kind, kind.lower() + "s", PartialObject, namespaced=False)
    return _row(row, verbs=("create",), columns=table.DEFAULT)


EVENTS_NEW = Kind("events.k8s.io", "v1", "Event", "events", PartialObject, short=("ev",))
_ROWS: tuple[Resource, ...] = (
    _row(
        kinds.NAMESPACES,
        subresources=frozenset({"status", "finalize"}),
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        default=defaults.namespace,
        validate=cluster.namespace,
        admit=plugins.cluster_scoped,
        prepare_create=strategy.namespace,
        prepare_update=strategy.namespace,
        fields=_NAMESPACE_FIELDS,
        field_names=_NAMESPACE_NAMES,
        columns=core.NAMESPACE,
    ),
    _row(
        kinds.NODES,
        subresources=_STATUS,
        default=defaults.node,
        validate=cluster.node,
        fields=_node_fields,
        field_names=frozenset({"spec.unschedulable"}),
        columns=core.NODE,
    ),
    _row(
        kinds.PODS,
        subresources=frozenset({"status", "binding", "eviction", "log"}),
        categories=("all",),
        default=defaults.pod,
        validate=pod.validate,
        admit=plugins.pod,
        prepare_create=strategy.pod,
        fields=_pod_fields,
        field_names=frozenset(_pod_fields({})),
        columns=core.POD,
        graceful=True,
    ),
    _row(
        kinds.CLAIMS,
        subresources=_STATUS,
        default=defaults.claim,
        validate=claim.validate,
        admit=plugins.claim,
        prepare_create=strategy.claim,
        prepare_update=strategy.claim,
        columns=core.CLAIM,
    ),
    _row(
        kinds.VOLUMES,
        subresources=_STATUS,
        default=defaults.volume,
        validate=persistent_volume.validate,
        admit=plugins.volume,
        prepare_create=strategy.volume,
        columns=core.VOLUME,
    ),
    _row(
        kinds.EVENTS,
        validate=cluster.event,
        admit=plugins.plain(kinds.EVENTS),
        fields=_event_fields,
        field_names=_EVENT_NAMES,
        columns=core.EVENT,
    ),
    _row(
        EVENTS_NEW,
        validate=cluster.new_event,
        admit=plugins.plain(kinds.EVENTS),
        fields=_new_event_fields,
        field_names=_NEW_EVENT_NAMES,
        columns=core.EVENT_NEW,
        stored_as="events",
        inward=event_versions.inward,
        outward=event_versions.outward,
    ),
    _row(
        kinds.CONFIG_MAPS,
        validate=config.config_map,
        admit=plugins.plain(kinds.CONFIG_MAPS),
        columns=core.CONFIG_MAP,
    ),
    _row(
        kinds.SECRETS,
        default=defaults.secret,
        validate=config.secret,
        admit=plugins.plain(kinds.SECRETS),
        prepare_create=strategy.secret,
        prepare_update=strategy.secret,
        fields=_SECRET_FIELDS,
        field_names=_SECRET_NAMES,
        columns=core.SECRET,
    ),
    _row(
        kinds.SERVICE_ACCOUNTS,
        validate=config.service_account,
        admit=plugins.plain(kinds.SERVICE_ACCOUNTS),
        columns=core.SERVICE_ACCOUNT,
    ),
    _row(
        kinds.RESOURCE_QUOTAS,
        subresources=_STATUS,
        validate=cluster.resource_quota,
        admit=plugins.resource_quota,
        prepare_create=strategy.without_status,
        columns=core.RESOURCE_QUOTA,
    ),
    _row(
        kinds.LIMIT_RANGES,
        default=defaults.limit_range,
        validate=cluster.limit_range,
        admit=plugins.plain(kinds.LIMIT_RANGES),
        columns=table.DEFAULT,
    ),
    _row(
        kinds.STORAGE_CLASSES,
        default=defaults.storage_class,
        validate=storage.storage_class,
        columns=core.STORAGE_CLASS,
    ),
    _row(kinds.CSI_DRIVERS, default=defaults.csi_driver, validate=storage.csi_driver, columns=core.CSI_DRIVER),
    _row(kinds.CSI_NODES, validate=storage.csi_node, columns=core.CSI_NODE),
    _row(
        kinds.CAPACITIES,
        validate=storage.capacity,
        admit=plugins.plain(kinds.CAPACITIES),
        columns=core.CAPACITY,
    ),
    _row(
        kinds.ATTACHMENTS,
        subresources=_STATUS,
        default=defaults.attachment,
        validate=storage.attachment,
        prepare_create=strategy.without_status,
        columns=core.ATTACHMENT,
    ),
    _row(
        kinds.DEPLOYMENTS,
        subresources=_SCALED,
        categories=("all",),
        default=workload_defaults.deployment,
        validate=workloads.deployment,
        admit=plugins.plain(kinds.DEPLOYMENTS),
        prepare_create=strategy.without_status,
        columns=printers_workloads.DEPLOYMENT,
    ),
    _row(
        kinds.REPLICA_SETS,
        subresources=_SCALED,
        categories=("all",),
        default=workload_defaults.replica_set,
        validate=workloads.replica_set,
        admit=plugins.plain(kinds.REPLICA_SETS),
        prepare_create=strategy.without_status,
        columns=printers_workloads.REPLICA_SET,
    ),
    _row(
        kinds.STATEFUL_SETS,
        subresources=_SCALED,
        categories=("all",),
        default=workload_defaults.stateful_set,
        validate=workloads.stateful_set,
        admit=plugins.plain(kinds.STATEFUL_SETS),
        prepare_create=strategy.without_status,
        columns=printers_workloads.STATEFUL_SET,
    ),
    _row(
        kinds.DAEMON_SETS,
        subresources=_STATUS,
        categories=("all",),
        default=workload_defaults.daemon_set,
        validate=workloads.daemon_set,
        admit=plugins.plain(kinds.DAEMON_SETS),
        prepare_create=strategy.without_status,
        columns=printers_workloads.DAEMON_SET,
    ),
    _row(
        kinds.CONTROLLER_REVISIONS,
        validate=workloads.controller_revision,
        admit=plugins.plain(kinds.CONTROLLER_REVISIONS),
        columns=printers_workloads.CONTROLLER_REVISION,
    ),
    _row(
        kinds.JOBS,
        subresources=_STATUS,
        categories=("all",),
        default=workload_defaults.job,
        validate=job.validate,
        admit=plugins.plain(kinds.JOBS),
        prepare_create=registry_strategy.job,
        fields=_JOB_FIELDS,
        field_names=_JOB_NAMES,
        columns=printers_workloads.JOB,
    ),
    _row(
        kinds.CRON_JOBS,
        subresources=_STATUS,
        categories=("all",),
        default=workload_defaults.cron_job,
        validate=job.cron,
        admit=plugins.plain(kinds.CRON_JOBS),
        prepare_create=strategy.without_status,
        columns=printers_workloads.CRON_JOB,
    ),
    _row(
        kinds.PRIORITY_CLASSES,
        default=defaults.priority_class,
        validate=policy.priority_class,
        admit=priority.of_class,
        columns=printers_core.PRIORITY_CLASS,
    ),
    _row(
        kinds.DISRUPTION_BUDGETS,
        subresources=_STATUS,
        validate=policy.budget,
        admit=plugins.plain(kinds.DISRUPTION_BUDGETS),
        prepare_create=strategy.without_status,
        columns=printers_core.DISRUPTION_BUDGET,
    ),
    _row(kinds.LEASES, validate=cluster.lease, admit=plugins.plain(kinds.LEASES), columns=core.LEASE),
    _review(_AUTHENTICATION, "TokenReview"),
    _review(_AUTHENTICATION, "SelfSubjectReview"),
    _review(_AUTHORIZATION, "SelfSubjectAccessReview"),
    _review(_AUTHORIZATION, "SelfSubjectRulesReview"),
)

RESOURCES: Mapping[str, Resource] = MappingProxyType({row.key: row for row in _ROWS})
