"""The table of the groups of kinds, and the rows of all of them. A new group needs a row here.

Its folder has the rest: CONTRIBUTING.md has the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
RESOURCES: Mapping[str, Resource] = MappingProxyType({row.key: row for rows in GROUPS.values() for row in rows})
"""Every row by its key."""
