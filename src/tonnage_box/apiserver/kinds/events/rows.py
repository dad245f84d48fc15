"""The row of events.k8s.io: core's Events in their newer form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.api.kinds import Kind
from tonnage.kubernetes.api.meta import PartialObject
from tonnage_box.apiserver.admission import plugins
from tonnage_box.apiserver.kinds.core.rows import event_fields
from tonnage_box.apiserver.kinds.events import versions
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import row
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.storage.store import Obj

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.events import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.events.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.events.validation")


def _fields(obj: Obj) -> Mapping[str, str]:
    found = event_fields(versions.inward(obj))
    shown = {word.replace("involvedObject", "regarding"): value for word, value in found.items()}
    return shown | {"reportingController": found["reportingComponent"]}


EVENTS_NEW = Kind("events.k8s.io", "Event", "events", PartialObject, short=("ev",))
ROWS: tuple[Resource, ...] = (
    row(
        EVENTS_NEW,
        validation.new_event,
        columns.EVENT_NEW,
        admit=plugins.plain(kinds.EVENTS),
        fields=_fields,
        stored_as=kinds.EVENTS.key,
        inward=versions.inward,
        outward=versions.outward,
    ),
)
