"""Rows of storage.k8s.io."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.admission import plugins
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import OWN_STATUS, row
from tonnage_box.apiserver.kinds.storage import defaults
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.storage import columns, validation, warnings
else:
    columns = LateModule("tonnage_box.apiserver.kinds.storage.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.storage.validation")
    warnings = LateModule("tonnage_box.apiserver.kinds.storage.warnings")

ROWS: tuple[Resource, ...] = (
    row(
        kinds.STORAGE_CLASSES,
        validation.storage_class,
        columns.STORAGE_CLASS,
        defaults.storage_class,
        warn=warnings.storage_class,
        shows_deleted=True,
    ),
    row(
        kinds.CSI_DRIVERS,
        validation.csi_driver,
        columns.CSI_DRIVER,
        defaults.csi_driver,
        generation=0,
        shows_deleted=True,
    ),
    row(kinds.CSI_NODES, validation.csi_node, columns.CSI_NODE, shows_deleted=True),
    row(kinds.CAPACITIES, validation.capacity, columns.CAPACITY),
    row(
        kinds.ATTACHMENTS,
        validation.attachment,
        columns.ATTACHMENT,
        defaults.attachment,
        **OWN_STATUS,
        shows_deleted=True,
    ),
    row(
        kinds.ATTRIBUTES_CLASSES,
        validation.attributes_class,
        columns.ATTRIBUTES_CLASS,
        admit=plugins.attributes_class,
        shows_deleted=True,
    ),
)
