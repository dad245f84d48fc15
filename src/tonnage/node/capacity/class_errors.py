"""Classes that this node can never serve, and why: published with their capacity of 0, told once on the class.

Without it a pod would only say that there is not enough storage. Nodes may differ in their pools, so a class that one
node cannot serve may be right for another: the fault is a node's, and its capacity object carries it.
"""

from __future__ import annotations

import hashlib

from tonnage.aio.clock import Clock
from tonnage.api.kinds import STORAGE_CLASSES
from tonnage.api.storage import StorageClass
from tonnage.claims.create_request import fstype_of, parameters_of
from tonnage.claims.node_scope import NodeScope, Source
from tonnage.errors import Invalid
from tonnage.kube.client import refer
from tonnage.kube.events import EventRecorder

LONGEST = 240
"""Characters of a reason: it goes into a pod's condition, together with others."""
KEPT = 60.0
"""Seconds for which the driver is not asked about a class again that it refused: room changes all the time."""


def fault_of(storage_class: StorageClass) -> str:
    """What is wrong with the class whatever the driver says, "" when nothing is."""
    try:
        parameters_of(storage_class)
        fstype_of(storage_class)
    except Invalid as reason:
        return str(reason)
    return ""


class ClassFaults:
    """Faults by source, for as long as the class object is the same."""

    def __init__(self, events: EventRecorder, scope: NodeScope, clock: Clock) -> None:
        self._events, self._scope, self._clock = events, scope, clock
        self._faults: dict[Source, tuple[str, str, float]] = {}  # uid of the class, reason, when

    def get(self, source: Source) -> str:
        """Why the source can have no volumes, "" when it can."""
        return self._faults.get(source, ("", "", 0.0))[1]

    def fresh(self, source: Source, storage_class: StorageClass) -> str:
        """The same, if it was found out about this very class a short while ago."""
        uid, reason, at = self._faults.get(source, ("", "", 0.0))
        same = uid == storage_class.metadata.uid and self._clock.monotonic() < at + KEPT
        return reason if same else ""

    def doubt(self) -> None:
        """Ask the driver about all of them again: it is not what it was."""
        self._faults = {source: (uid, reason, float("-inf")) for source, (uid, reason, _) in self._faults.items()}

    def found(self, source: Source, storage_class: StorageClass, reason: str) -> None:
        """The class has that fault here. May be repeated."""
        reason = shorten(reason)
        uid = storage_class.metadata.uid
        if self._faults.get(source, ("", ""))[:2] != (uid, reason):
            digest = hashlib.sha256(f"{uid}\0{reason}".encode()).hexdigest()[:16]
            text = f"driver {source.driver} on node {self._scope.node} can make no volumes of this class: {reason}"
            self._events.warning(refer(STORAGE_CLASSES, storage_class), "InvalidParameters", text, once=digest)
        self._faults[source] = (uid, reason, self._clock.monotonic())

    def clear(self, source: Source) -> None:
        """The class has no fault here, or is gone."""
        self._faults.pop(source, None)


def shorten(reason: str) -> str:
    """One line of at most LONGEST characters."""
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3].rstrip()}..."
