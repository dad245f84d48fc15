"""The table of the groups of kinds, and the rows of all of them. A new group needs a row here.

Its folder has the rest: CONTRIBUTING.md has the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from tonnage_box.apiserver.kinds.apiextensions import rows as apiextensions
from tonnage_box.apiserver.kinds.apps import rows as apps
from tonnage_box.apiserver.kinds.autoscaling import rows as autoscaling
from tonnage_box.apiserver.kinds.batch import rows as batch
from tonnage_box.apiserver.kinds.certificates import rows as certificates
from tonnage_box.apiserver.kinds.content import rows as content
from tonnage_box.apiserver.kinds.coordination import rows as coordination
from tonnage_box.apiserver.kinds.core import rows as core
from tonnage_box.apiserver.kinds.events import rows as events
from tonnage_box.apiserver.kinds.network import rows as network
from tonnage_box.apiserver.kinds.node import rows as node
from tonnage_box.apiserver.kinds.policy import rows as policy
from tonnage_box.apiserver.kinds.rbac import rows as rbac
from tonnage_box.apiserver.kinds.reviews import rows as reviews
from tonnage_box.apiserver.kinds.snapshot import rows as snapshot
from tonnage_box.apiserver.kinds.storage import rows as storage
from tonnage_box.apiserver.request.resource import Resource

GROUPS: Mapping[str, Sequence[Resource]] = {
    "core": core.ROWS,
    "events": events.ROWS,
    "rbac": rbac.ROWS,
    "storage": storage.ROWS,
    "apps": apps.ROWS,
    "batch": batch.ROWS,
    "policy": policy.ROWS,
    "snapshot": snapshot.ROWS,
    "apiextensions": apiextensions.ROWS,
    "content": content.ROWS,
    "network": network.ROWS,
    "autoscaling": autoscaling.ROWS,
    "node": node.ROWS,
    "certificates": certificates.ROWS,
    "coordination": coordination.ROWS,
    "reviews": reviews.ROWS,
}
"""Folder -> its rows; /apis lists the groups in this order."""
_AFTER: Mapping[str, str] = {
    "configmaps": "events",
    "resourcequotas": "rbac",
    "services": "content",
    "replicationcontrollers": "autoscaling",
    "podtemplates": "node",
    "storage.k8s.io/volumeattributesclasses": "node",
}
"""Row -> the group after which it and what follows it in its own group stand. /openapi/v2 lists paths in this order."""


def _ordered() -> Iterator[Resource]:
    places = {folder: float(place) for place, folder in enumerate(GROUPS)}
    placed: list[tuple[float, Resource]] = []
    for folder, rows in GROUPS.items():
        place = places[folder]
        for row in rows:
            place = places[_AFTER[row.key]] + 0.5 if row.key in _AFTER else place
            placed.append((place, row))
    yield from (row for _, row in sorted(placed, key=lambda one: one[0]))


RESOURCES: Mapping[str, Resource] = MappingProxyType({row.key: row for row in _ordered()})
"""Every row by its key."""
