"""Whether a claim belongs to the pod whose generic ephemeral volume has its name."""

from __future__ import annotations

from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.pods import Pod
from tonnage.errors import Precondition


def check_owner(claim: PersistentVolumeClaim, pod: Pod) -> None:
    """Raise Precondition unless the claim was made for the pod (controller owner with the pod's uid)."""
    same_namespace = claim.metadata.namespace == pod.metadata.namespace
    if not same_namespace or claim.metadata.controller_uid() != pod.metadata.uid:
        raise Precondition(f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)")
