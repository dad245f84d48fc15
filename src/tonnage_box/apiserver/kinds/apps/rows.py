"""Rows of apps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.apps import defaults
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import OWN_STATUS, row
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.apps import columns, validation, warnings
    from tonnage_box.apiserver.kinds.core import warnings as pod_warnings
else:
    columns = LateModule("tonnage_box.apiserver.kinds.apps.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.apps.validation")
    warnings = LateModule("tonnage_box.apiserver.kinds.apps.warnings")
    pod_warnings = LateModule("tonnage_box.apiserver.kinds.core.warnings")

_WORKLOAD: dict[str, Any] = OWN_STATUS | {"categories": ("all",), "generation": 1, "warn": pod_warnings.template}
_SCALED: dict[str, Any] = _WORKLOAD | {"subresources": frozenset({"status", "scale"})}
_DEPLOYMENT: dict[str, Any] = _SCALED | {"counted_metadata": "annotations"}
_STATEFUL: dict[str, Any] = _SCALED | {"warn": warnings.stateful_set}
ROWS: tuple[Resource, ...] = (
    row(kinds.DEPLOYMENTS, validation.deployment, columns.DEPLOYMENT, defaults.deployment, **_DEPLOYMENT),
    row(kinds.REPLICA_SETS, validation.replica_set, columns.REPLICA_SET, defaults.replica_set, **_SCALED),
    row(kinds.STATEFUL_SETS, validation.stateful_set, columns.STATEFUL_SET, defaults.stateful_set, **_STATEFUL),
    row(kinds.DAEMON_SETS, validation.daemon_set, columns.DAEMON_SET, defaults.daemon_set, **_WORKLOAD),
    row(kinds.CONTROLLER_REVISIONS, validation.controller_revision, columns.CONTROLLER_REVISION),
)
