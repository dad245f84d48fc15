"""Owner check of the claim of a generic ephemeral volume."""

from __future__ import annotations

from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.pods import Pod
from tonnage.errors import Precondition


def check_owner(claim: PersistentVolumeClaim, pod: Pod) -> None:
    """Raise Precondition unless the pod is the claim's controller owner, by uid."""
    same_namespace = claim.metadata.namespace == pod.metadata.namespace
    if not same_namespace or claim.metadata.controller_uid() != pod.metadata.uid:
        raise Precondition(f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)")
