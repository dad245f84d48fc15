"""Rows of rbac.authorization.k8s.io."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.access import escalation
from tonnage_box.apiserver.kinds.rbac import defaults
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import row
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.rbac import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.rbac.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.rbac.validation")

ROWS: tuple[Resource, ...] = (
    row(kinds.ROLES, validation.role, columns.ROLE, admit=escalation.role),
    row(
        kinds.ROLE_BINDINGS,
        validation.role_binding,
        columns.BINDING,
        defaults.role_binding,
        admit=escalation.binding,
    ),
    row(kinds.CLUSTER_ROLES, validation.cluster_role, columns.CLUSTER_ROLE, admit=escalation.cluster_role),
    row(
        kinds.CLUSTER_ROLE_BINDINGS,
        validation.cluster_role_binding,
        columns.BINDING,
        defaults.role_binding,
        admit=escalation.cluster_binding,
    ),
)
