"""Rows of snapshot.storage.k8s.io and groupsnapshot.storage.k8s.io."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import STATUS, row
from tonnage_box.apiserver.kinds.snapshot import strategy
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.snapshot import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.snapshot.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.snapshot.validation")

_STATUS: dict[str, Any] = STATUS | {"generation": 1}
ROWS: tuple[Resource, ...] = (
    row(kinds.SNAPSHOTS, validation.snapshot, columns.SNAPSHOT, **_STATUS, prepare=strategy.snapshot),
    row(kinds.SNAPSHOT_CONTENTS, validation.content, columns.CONTENT, **_STATUS, prepare=strategy.no_status),
    row(kinds.SNAPSHOT_CLASSES, validation.snapshot_class, columns.CLASS, generation=1),
    row(kinds.GROUP_SNAPSHOTS, validation.group, columns.GROUP, **_STATUS, prepare=strategy.group_snapshot),
    row(kinds.GROUP_CONTENTS, validation.group_content, columns.GROUP_CONTENT, **_STATUS, prepare=strategy.no_status),
    row(kinds.GROUP_CLASSES, validation.group_class, columns.CLASS, generation=1),
)
