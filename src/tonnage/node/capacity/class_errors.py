"""Errors of StorageClasses that this node cannot serve.

Each is published as the reason in a capacity object of capacity 0, and emitted once as an Event on the class. Otherwise
a pod would only report that there is not enough storage. The error belongs to the node, not to the class: nodes may
have different pools.
"""

from __future__ import annotations

import hashlib

from tonnage.aio.clock import Clock
from tonnage.api.kinds import STORAGE_CLASSES
from tonnage.api.storage import StorageClass
from tonnage.claims.create_request import fstype_of, parameters_of
from tonnage.claims.node_scope import CapacitySource, NodeScope
from tonnage.errors import InvalidError
from tonnage.kube.client import refer
from tonnage.kube.events import EventRecorder

LONGEST = 240
"""Maximum length of a reason: a pod's condition holds it together with others."""
KEPT = 60.0
"""Seconds until the driver is asked again about a class that it rejected.

Capacity changes often; an error of a class seldom does."""


def fault_of(storage_class: StorageClass) -> str:
    """Return an error of the class that does not depend on the driver, or ""."""
    try:
        parameters_of(storage_class)
        fstype_of(storage_class)
    except InvalidError as reason:
        return str(reason)
    return ""


class ClassErrorEvents:
    """Class errors by source, valid while the class object is the same."""

    def __init__(self, events: EventRecorder, scope: NodeScope, clock: Clock) -> None:
        self._events, self._scope, self._clock = events, scope, clock
        self._faults: dict[CapacitySource, tuple[str, str, float]] = {}  # uid of the class, reason, when

    def get(self, source: CapacitySource) -> str:
        """Return why the source cannot have volumes, or ""."""
        return self._faults.get(source, ("", "", 0.0))[1]

    def fresh(self, source: CapacitySource, storage_class: StorageClass) -> str:
        """Return the class's error if it was found recently for this class object."""
        uid, reason, at = self._faults.get(source, ("", "", 0.0))
        same = uid == storage_class.metadata.uid and self._clock.monotonic() < at + KEPT
        return reason if same else ""

    def doubt(self) -> None:
        """Forget when errors were found, so that the driver is asked again."""
        self._faults = {source: (uid, reason, float("-inf")) for source, (uid, reason, _) in self._faults.items()}

    def found(self, source: CapacitySource, storage_class: StorageClass, reason: str) -> None:
        """Record an error of the class on this node. Idempotent."""
        reason = shorten(reason)
        uid = storage_class.metadata.uid
        if self._faults.get(source, ("", ""))[:2] != (uid, reason):
            digest = hashlib.sha256(f"{uid}\0{reason}".encode()).hexdigest()[:16]
            text = f"driver {source.driver} on node {self._scope.node} can make no volumes of this class: {reason}"
            self._events.warning(refer(STORAGE_CLASSES, storage_class), "InvalidParameters", text, once=digest)
        self._faults[source] = (uid, reason, self._clock.monotonic())

    def clear(self, source: CapacitySource) -> None:
        """Remove the error: the class is valid here, or gone."""
        self._faults.pop(source, None)


def shorten(reason: str) -> str:
    """Shorten a reason to one line of at most LONGEST characters."""
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3].rstrip()}..."
