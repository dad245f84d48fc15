"""Lookup of a pod's claims and PVs, by live reads, with Kubernetes' messages.

Described in docs/reference/kubernetes/ephemeral-volumes.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.api.core import PersistentVolume, PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS, VOLUMES
from tonnage.api.pods import Pod, Volume, claim_name
from tonnage.errors import ApiError, PreconditionError, TonnageError
from tonnage.kube.client import Client

BLOCK = "Block"


@dataclass(frozen=True)
class Bound:
    """The PV that a volume of a pod is bound to."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume
    read_only: bool

    @property
    def block(self) -> bool:
        """Whether it is raw block."""
        return self.volume.spec.volume_mode == BLOCK


class ClaimError(PreconditionError):
    """A claim that the pod cannot use. waiting: others may change that soon."""

    def __init__(self, message: str, *, waiting: bool) -> None:
        super().__init__(message)
        self.waiting = waiting


async def find_bound(client: Client, pod: Pod, volume: Volume, *, known: bool) -> Bound:
    """The claim and PV of a volume. known: the pod ran here before, so that its claim may be going.

    Raises ClaimError with `error processing PVC <ns>/<name>: ...`.
    """
    name, namespace = claim_name(pod.metadata.name, volume), pod.metadata.namespace
    try:
        claim = await _claim(client, pod, volume, name, known=known)
        pv = await _volume(client, claim)
    except ClaimError as failure:
        text = f"error processing PVC {namespace}/{name}: {failure}"
        raise ClaimError(text, waiting=failure.waiting) from failure
    source = volume.persistent_volume_claim
    return Bound(claim, pv, source is not None and source.read_only)


async def _claim(client: Client, pod: Pod, volume: Volume, name: str, *, known: bool) -> PersistentVolumeClaim:
    try:
        claim = await client.get(CLAIMS, name, pod.metadata.namespace)
    except TonnageError as failure:
        waiting = not isinstance(failure, ApiError) or failure.code == 404 or failure.code >= 500
        raise ClaimError(f"failed to fetch PVC from API server: {failure}", waiting=waiting) from failure
    if volume.ephemeral is not None and claim.metadata.controller_uid() != pod.metadata.uid:
        raise ClaimError(
            f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)",
            waiting=False,
        )
    if claim.metadata.deleting and not known:
        raise ClaimError("PVC is being deleted", waiting=False)
    if not claim.spec.volume_name:
        raise ClaimError("PVC has empty pvc.Spec.VolumeName", waiting=True)
    if claim.status.phase != "Bound":
        raise ClaimError("PVC is not bound", waiting=True)
    return claim


async def _volume(client: Client, claim: PersistentVolumeClaim) -> PersistentVolume:
    name = claim.spec.volume_name
    try:
        pv = await client.get(VOLUMES, name)
    except TonnageError as failure:
        raise ClaimError(f"failed to fetch PV {name} from API server: {failure}", waiting=True) from failure
    if pv.spec.claim_ref is None:
        raise ClaimError(
            f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
            waiting=True,
        )
    if pv.spec.claim_ref.uid != claim.metadata.uid:
        raise ClaimError(
            f"found PV object {name} but its pv.Spec.ClaimRef.UID {pv.spec.claim_ref.uid} "
            f"does not point to claim.UID {claim.metadata.uid}",
            waiting=False,
        )
    return pv


def check_mode(pod: Pod, volume: Volume, *, block: bool) -> None:
    """A Block volume must be used as a device, another one as a mount. Raises ClaimError."""
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        if block and any(m.name == volume.name for m in container.volume_mounts):
            raise ClaimError(
                f"volume {volume.name} has volumeMode Block, but is specified in volumeMounts", waiting=False
            )
        if not block and any(d.name == volume.name for d in container.volume_devices):
            raise ClaimError(
                f"volume {volume.name} has volumeMode Filesystem, but is specified in volumeDevices", waiting=False
            )
