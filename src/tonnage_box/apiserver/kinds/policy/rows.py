"""Rows of scheduling.k8s.io and policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.admission import priority
from tonnage_box.apiserver.kinds.policy import defaults
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import OWN_STATUS, row
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.policy import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.policy.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.policy.validation")

ROWS: tuple[Resource, ...] = (
    row(
        kinds.PRIORITY_CLASSES,
        validation.priority_class,
        columns.PRIORITY_CLASS,
        defaults.priority_class,
        admit=priority.of_class,
        generation=1,
    ),
    row(
        kinds.DISRUPTION_BUDGETS,
        validation.budget,
        columns.DISRUPTION_BUDGET,
        defaults.budget,
        **OWN_STATUS,
        generation=1,
    ),
)
