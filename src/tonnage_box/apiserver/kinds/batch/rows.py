"""Rows of batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.batch import defaults, strategy
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import OWN_STATUS, paths, row
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.batch import columns, validation, warnings
    from tonnage_box.apiserver.kinds.core import warnings as pod_warnings
else:
    columns = LateModule("tonnage_box.apiserver.kinds.batch.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.batch.validation")
    warnings = LateModule("tonnage_box.apiserver.kinds.batch.warnings")
    pod_warnings = LateModule("tonnage_box.apiserver.kinds.core.warnings")

_JOB: dict[str, Any] = OWN_STATUS | {
    "categories": ("all",),
    "generation": 1,
    "prepare": strategy.job,
    "warn": pod_warnings.template,
}
_CRON_JOB: dict[str, Any] = OWN_STATUS | {"categories": ("all",), "generation": 1, "warn": warnings.cron_job}
ROWS: tuple[Resource, ...] = (
    row(
        kinds.JOBS,
        validation.validate,
        columns.JOB,
        defaults.job,
        **_JOB,
        fields=paths(status__successful=("status", "succeeded")),
    ),
    row(kinds.CRON_JOBS, validation.cron, columns.CRON_JOB, defaults.cron_job, **_CRON_JOB),
)
