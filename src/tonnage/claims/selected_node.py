"""Sending a claim to a node: the patch that the scheduler too would write, in one request."""

from __future__ import annotations

from tonnage.api import names
from tonnage.api.core import PersistentVolumeClaim
from tonnage.api.kinds import CLAIMS
from tonnage.api.number import whole
from tonnage.api.storage import StorageClass
from tonnage.kube.client import Client


async def send(
    client: Client, claim: PersistentVolumeClaim, node: str, storage_class: StorageClass
) -> PersistentVolumeClaim:
    """Write selected-node, the node's label and the provisioner on the claim; returns it as it then is.

    Raises ApiConflict when the claim has changed since it was read, ApiNotFound when it is gone.
    """
    provisioner = storage_class.provisioner
    body = {
        "metadata": {
            "annotations": {
                names.SELECTED_NODE: node,
                names.STORAGE_PROVISIONER: provisioner,
                names.BETA_STORAGE_PROVISIONER: provisioner,
            },
            "labels": {names.NODE_LABEL: names.label_value(node)},
        }
    }
    meta = claim.metadata
    return await client.patch(CLAIMS, meta.name, body, meta.namespace, resource_version=meta.resource_version)


def withdrawals(claim: PersistentVolumeClaim) -> int:
    """How often nodes have sent the claim back; 0 for what is no such count, since anybody may write there."""
    return whole(names.annotation(claim.metadata.annotations, names.RESCHEDULES), digits=9) or 0


def pause(claim: PersistentVolumeClaim, first: float = 0.5, longest: float = 60.0) -> float:
    """Seconds to wait before the claim is sent again: none at first, then doubling with each withdrawal."""
    count = withdrawals(claim)
    return min(longest, first * 2 ** min(count - 1, 20)) if count > 0 else 0.0


def is_sent(claim: PersistentVolumeClaim) -> bool:
    """Whether some node has the claim."""
    return names.SELECTED_NODE in claim.metadata.annotations
