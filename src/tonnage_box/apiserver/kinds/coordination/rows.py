"""The row of coordination.k8s.io."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import row
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.coordination import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.coordination.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.coordination.validation")

ROWS: tuple[Resource, ...] = (row(kinds.LEASES, validation.lease, columns.LEASE),)
