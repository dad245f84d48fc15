"""Patch of a claim's selected-node, as the scheduler writes it."""

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
    """Write selected-node, node label and provisioner; return the claim.

    Raises: ApiConflict when the claim has changed since it was read, ApiNotFound when it is gone.
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
    """Return the claim's number of reschedules; 0 for an invalid one.

    Anybody may write that annotation.
    """
    return whole(names.annotation(claim.metadata.annotations, names.RESCHEDULES), digits=9) or 0


def pause(claim: PersistentVolumeClaim, first: float = 0.5, longest: float = 60.0) -> float:
    """Return seconds to wait before selecting a node again.

    None at first, then doubling with each reschedule.
    """
    count = withdrawals(claim)
    return min(longest, first * 2 ** min(count - 1, 20)) if count > 0 else 0.0


def is_sent(claim: PersistentVolumeClaim) -> bool:
    """Return whether the claim has a selected node."""
    return names.SELECTED_NODE in claim.metadata.annotations
