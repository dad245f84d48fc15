"""Rows of autoscaling, which the box stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import PartialObject
from tonnage_box.apiserver.admission import plugins
from tonnage_box.apiserver.kinds.autoscaling import defaults, versions
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import OWN_STATUS, stored
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.autoscaling import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.autoscaling.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.autoscaling.validation")

AUTOSCALERS_V1 = Kind(
    "autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", PartialObject, short=("hpa",)
)
_WHY = "the box measures no load, so the number of pods stays"
_HOOKS: dict[str, Any] = OWN_STATUS | {"categories": ("all",)}
ROWS: tuple[Resource, ...] = (
    stored(kinds.AUTOSCALERS, _WHY, validation.autoscaler, columns.AUTOSCALER, defaults.autoscaler, **_HOOKS),
    stored(
        AUTOSCALERS_V1,
        _WHY,
        validation.autoscaler,
        columns.AUTOSCALER_V1,
        defaults.autoscaler_v1,
        stored_as=kinds.AUTOSCALERS.key,
        inward=versions.inward,
        outward=versions.outward,
        admit=plugins.plain(kinds.AUTOSCALERS),
        **_HOOKS,
    ),
)
