"""Rows of core/v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.admission import plugins
from tonnage_box.apiserver.kinds.core import defaults, pod_defaults, service, strategy
from tonnage_box.apiserver.kinds.core.validation import (
    claim,
    cluster,
    config,
    event,
    persistent_volume,
    pod,
    quota,
    templates,
)
from tonnage_box.apiserver.kinds.core.validation import service as service_rules
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import ONE_NETWORK, OWN_STATUS, STATUS, in_spec, paths, row, stored, text
from tonnage_box.apiserver.printers.table import dig
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.storage.store import Obj

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.core import columns, service_columns, warnings
else:
    columns = LateModule("tonnage_box.apiserver.kinds.core.columns")
    service_columns = LateModule("tonnage_box.apiserver.kinds.core.service_columns")
    warnings = LateModule("tonnage_box.apiserver.kinds.core.warnings")

_NO_COLLECTION = ("create", "delete", "get", "list", "patch", "update", "watch")
_REF = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _pod_fields(obj: Obj) -> Mapping[str, str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return {
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.restartPolicy": spec.get("restartPolicy", ""),
        "spec.schedulerName": spec.get("schedulerName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "spec.hostNetwork": text(bool(spec.get("hostNetwork"))),
        "status.phase": status.get("phase", ""),
        "status.podIP": status.get("podIP", ""),
        "status.nominatedNodeName": status.get("nominatedNodeName", ""),
    }


def _node_fields(obj: Obj) -> Mapping[str, str]:
    return {"spec.unschedulable": text(bool(dig(obj, "spec", "unschedulable")))}


def event_fields(obj: Obj) -> Mapping[str, str]:
    """Fields of an Event in its core form."""
    ref, component = obj.get("involvedObject") or {}, obj.get("reportingComponent", "")
    return {f"involvedObject.{word}": ref.get(word, "") for word in _REF} | {
        "reason": obj.get("reason", ""),
        "reportingComponent": component,
        "source": dig(obj, "source", "component") or component,
        "type": obj.get("type", ""),
    }


_SHOWN: dict[str, Any] = STATUS | {"shows_deleted": True}
_CLAIM: dict[str, Any] = _SHOWN | {"admit": plugins.claim, "prepare": strategy.claim, "warn": warnings.claim}
_VOLUME: dict[str, Any] = _SHOWN | {"admit": plugins.volume, "prepare": strategy.volume, "warn": warnings.volume}
ROWS: tuple[Resource, ...] = (
    row(
        kinds.NAMESPACES,
        cluster.namespace,
        columns.NAMESPACE,
        defaults.namespace,
        subresources=frozenset({"status", "finalize"}),
        verbs=_NO_COLLECTION,
        admit=plugins.cluster_scoped,
        prepare=strategy.namespace,
        shows_deleted=True,
        fields=paths(status__phase=("status", "phase")),
    ),
    row(kinds.NODES, cluster.node, columns.NODE, defaults.node, **STATUS, fields=_node_fields),
    row(
        kinds.PODS,
        pod.validate,
        columns.POD,
        pod_defaults.pod,
        subresources=frozenset({"status", "binding", "eviction", "log", "exec", "attach", "ephemeralcontainers"}),
        categories=("all",),
        admit=plugins.pod,
        prepare=strategy.pod,
        warn=warnings.pod,
        fields=_pod_fields,
        generation=1,
        shows_deleted=True,
        graceful=True,
    ),
    row(kinds.CLAIMS, claim.validate, columns.CLAIM, defaults.claim, **_CLAIM),
    row(kinds.VOLUMES, persistent_volume.validate, columns.VOLUME, defaults.volume, **_VOLUME),
    row(kinds.EVENTS, event.event, columns.EVENT, fields=event_fields),
    row(kinds.CONFIG_MAPS, config.config_map, columns.CONFIG_MAP),
    row(
        kinds.SECRETS,
        config.secret,
        columns.SECRET,
        defaults.secret,
        prepare=strategy.secret,
        fields=paths(type=("type",)),
    ),
    row(
        kinds.SERVICE_ACCOUNTS,
        config.service_account,
        columns.SERVICE_ACCOUNT,
        subresources=frozenset({"token"}),
        shows_deleted=True,
    ),
    row(kinds.RESOURCE_QUOTAS, quota.resource_quota, columns.RESOURCE_QUOTA, **OWN_STATUS, shows_deleted=True),
    row(kinds.LIMIT_RANGES, quota.limit_range, default=defaults.limit_range),
    stored(
        kinds.SERVICES,
        ONE_NETWORK,
        service_rules.service,
        service_columns.SERVICE,
        defaults.service,
        admit=service.admit,
        subresources=frozenset({"status"}),
        prepare=service.prepare,
        shows_deleted=True,
        categories=("all",),
        fields=in_spec("clusterIP", "type"),
    ),
    stored(kinds.ENDPOINTS, ONE_NETWORK, service_rules.endpoints, service_columns.ENDPOINTS, defaults.endpoints),
    stored(
        kinds.REPLICATION_CONTROLLERS,
        "use a Deployment or a ReplicaSet",
        templates.replication_controller,
        columns.REPLICATION_CONTROLLER,
        defaults.replication_controller,
        generation=1,
        categories=("all",),
        **OWN_STATUS,
    ),
    row(
        kinds.POD_TEMPLATES,
        templates.pod_template,
        columns.POD_TEMPLATE,
        defaults.pod_template,
        generation=1,
        shows_deleted=True,
    ),
)
