"""Event on a claim whose data source belongs to an external populator."""

from __future__ import annotations

import hashlib

from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS
from tonnage.kube.client import refer
from tonnage.kube.events import NORMAL, EventRecorder

POPULATED = "Assuming an external populator will provision the volume"


def leave_to_populator(events: EventRecorder, claim: PersistentVolumeClaim) -> None:
    """Emit once for a claim that an external populator provides its volume.

    The text is external-provisioner's.
    """
    key = hashlib.sha256(f"{claim.metadata.uid}\0{POPULATED}".encode()).hexdigest()[:16]
    events.record(refer(CLAIMS, claim), NORMAL, "Provisioning", POPULATED, once=key)
