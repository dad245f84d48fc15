"""The row of node.k8s.io, which the box stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import stored
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.node import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.node.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.node.validation")

ROWS: tuple[Resource, ...] = (
    stored(
        kinds.RUNTIME_CLASSES,
        "all pods run in the same way; its overhead and its scheduling are the pods'",
        validation.runtime_class,
        columns.RUNTIME_CLASS,
    ),
)
