"""The row of tonnage.dev."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import row
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.content import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.content.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.content.validation")

ROWS: tuple[Resource, ...] = (row(kinds.CONTENTS, validation.content, columns.CONTENT, generation=1),)
