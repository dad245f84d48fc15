"""Events for claims that request expansion, which is not supported.

The API server accepts the request for a resizer. A claim requests expansion when it is bound and requests more than its
status.capacity. Watched: claims, and PVs for their driver. The controller and the box use it; `tonnage doctor` lists
the same claims.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS
from tonnage.api.matching import is_bound, requested
from tonnage.api.quantity import from_bytes, to_bytes
from tonnage.controller.config import LoopContext
from tonnage.errors import InvalidError
from tonnage.kube.client import refer
from tonnage.kube.controller import Reconciler, on_add
from tonnage.kube.indexes import claimed, claims, volumes

REASON = "ExpansionNotSupported"


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes that a claim has, and that it requests."""

    has: int
    asked: int

    @property
    def text(self) -> str:
        """Describe the request for people."""
        return f"not grown from {from_bytes(self.has)} to {from_bytes(self.asked)}: tonnage does not expand volumes yet"

    def todo(self, claim: PersistentVolumeClaim) -> str:
        """Return what the user can do."""
        larger = f"make a claim of {from_bytes(self.asked)} with dataSource PersistentVolumeClaim {claim.metadata.name}"
        return f"{larger}, which begins as a copy of it, and use that one in the pod"


def growth_of(claim: PersistentVolumeClaim) -> Growth | None:
    """Return the expansion that a claim requests, or None."""
    if not is_bound(claim) or claim.status.phase != "Bound" or claim.metadata.deleting:
        return None
    try:
        has, asked = to_bytes(claim.status.capacity["storage"]), requested(claim)
    except (KeyError, InvalidError):
        return None
    return Growth(has, asked) if asked > has else None


class ExpansionEvents(Reconciler[str]):
    """Emits one Event for each requested size."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("expansion_events")
        self._events, self._drivers = context.events, frozenset(context.config.drivers)
        # A bound claim may be known before its PV. Other changes of a PV do not matter.
        self._volumes = self.watch(volumes(context.informers), on_add(claimed))
        self._claims = self.watch(claims(context.informers), self._claim_changed)

    async def reconcile(self, key: str) -> None:
        """Emit it for one claim. Idempotent."""
        claim = self._claims.get(key)
        growth = growth_of(claim) if claim is not None else None
        volume = self._volumes.get(claim.spec.volume_name) if claim is not None else None
        if claim is None or growth is None or volume is None or volume.spec.csi is None:
            return
        if volume.spec.csi.driver in self._drivers:
            once = hashlib.sha256(f"{claim.metadata.uid}\0{REASON}\0{growth.asked}".encode()).hexdigest()[:16]
            text = f"claim {claim.key}: {growth.text}; {growth.todo(claim)}"
            self._events.warning(refer(CLAIMS, claim), REASON, text, once=once)

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        growth = growth_of(new) if new is not None else None
        if new is None or growth is None or (old is not None and growth_of(old) == growth):
            return ()
        return (new.key,)
