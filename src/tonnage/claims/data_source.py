"""Data source of a claim: found by live reads, and checked for this node; or left to an external populator.

Nothing is cached: sources change, and agents watch only their own node's claims. A claim on a node without its source
is rescheduled with the reason; external-provisioner does not check this. The controller or our scheduler then selects
the source's node.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tonnage.api import matching
from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, VOLUMES
from tonnage.api.origin import origin_of, reference
from tonnage.api.quantity import from_bytes
from tonnage.claims.bind import find
from tonnage.claims.node_scope import DriverInfo
from tonnage.csi.client.types import ContentSource
from tonnage.errors import InvalidError, PreconditionError
from tonnage.kube.client import Client, refer
from tonnage.kube.events import NORMAL, EventRecorder

POPULATED = "Assuming an external populator will provision the volume"


@dataclass(frozen=True)
class Away:
    """The data source is on another node.

    reason: a message for people.
    """

    reason: str


async def content_of(client: Client, claim: PersistentVolumeClaim, driver: DriverInfo) -> ContentSource | Away | None:
    """Return the content source, None for an empty volume. Idempotent.

    The data source is a claim: the plan of the request has checked that.

    Raises: Invalid for what can never succeed, Precondition while the source is not ready, ApiError, Unavailable.
    """
    ref = reference(claim)
    if ref is None:
        return None
    source = await find(client, CLAIMS, ref.name, claim.metadata.namespace)
    volume = await find(client, VOLUMES, source.spec.volume_name) if source and source.spec.volume_name else None
    if source is not None and volume is not None and not matching.is_claimed_by(volume, source):
        volume = None
    found = origin_of(claim, lambda key: source, lambda name: volume)
    if found is None or found.volume is None:
        raise PreconditionError(f"cannot clone: {found.missing if found else 'its source is not there'}")
    if not driver.reaches(found.volume):
        name = found.volume.metadata.name
        what = f"claim {claim.metadata.name} clones {found.text}"
        return Away(f"{what}, whose volume {name} is on another node")
    if fault := copy_fault(claim, found.volume, driver.name):
        raise InvalidError(fault)
    assert found.volume.spec.csi is not None
    return ContentSource(volume_id=found.volume.spec.csi.volume_handle)


def copy_fault(claim: PersistentVolumeClaim, volume: PersistentVolume, driver: str) -> str:
    """Return why the claim cannot clone the volume, or "".

    The checks are those of external-provisioner.

    Raises: Invalid for sizes that cannot be read.
    """
    name = volume.metadata.name
    if volume.spec.csi is None or volume.spec.csi.driver != driver:
        return f"the source volume {name} is not of driver {driver}"
    has, asked = matching.capacity(volume), matching.requested(claim)
    if asked < has:
        return f"requested size {from_bytes(asked)} is smaller than the source volume {name} ({from_bytes(has)})"
    mode = claim.spec.volume_mode or matching.FILESYSTEM
    if mode != (volume.spec.volume_mode or matching.FILESYSTEM):
        return f"requested volume mode {mode} differs from that of the source volume {name}"
    return ""


def leave_to_populator(events: EventRecorder, claim: PersistentVolumeClaim) -> None:
    """Emit once for a claim that an external populator provides its volume.

    The text is external-provisioner's.
    """
    key = hashlib.sha256(f"{claim.metadata.uid}\0{POPULATED}".encode()).hexdigest()[:16]
    events.record(refer(CLAIMS, claim), NORMAL, "Provisioning", POPULATED, once=key)
