"""Claims that a volume populator fills, and the populator's own claim, `prime-UID of the first` (lib-volume-populator).

The populator makes its claim for the node that was selected for the first claim. Where that does not fit, both must
leave the node: no one selects another one for the populator's claim, and the first would wait here for ever.
"""

from __future__ import annotations

import logging
from typing import Any

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS
from tonnage.kubernetes.api.matching import class_name
from tonnage.kubernetes.api.origin import is_populated
from tonnage.kubernetes.client.client import refer
from tonnage.node.provisioner.context import NodeContext
from tonnage.provisioning.claims.bind import change, reschedules_of

log = logging.getLogger(__name__)
_PRIME = "prime-"
_SAME = ("access_modes", "resources", "volume_mode")
"""What the populator copies, besides the class: another claim of that name is none of it."""


def target_of(node: NodeContext, prime: PersistentVolumeClaim) -> PersistentVolumeClaim | None:
    """Return the claim that the populator fills by this one, None if it is no such claim or its target is not here."""
    name = prime.metadata.name
    if not name.startswith(_PRIME) or is_populated(prime):
        return None
    uid = name.removeprefix(_PRIME)
    found = next((claim for claim in node.claims if claim.metadata.uid == uid), None)
    if found is None or not _waits_here(node, found) or class_name(found) != class_name(prime):
        return None
    same = all(getattr(found.spec, field) == getattr(prime.spec, field) for field in _SAME)
    return found if same else None


async def take_back(node: NodeContext, prime: PersistentVolumeClaim, reason: str) -> None:
    """Reschedule the claim that is to be filled by one that leaves this node. Idempotent.

    Call it before the populator's own claim is rescheduled, so that a kill in between loses nothing.

    Raises: ApiError, UnavailableError.
    """
    target = target_of(node, prime)
    if target is None:
        return
    is_done = False

    def back(now: PersistentVolumeClaim) -> dict[str, Any] | None:
        nonlocal is_done
        is_done = _waits_here(node, now)
        if not is_done:
            return None
        notes = {names.SELECTED_NODE: None, names.RESCHEDULES: str(reschedules_of(now) + 1)}
        notes |= names.former(now.metadata.annotations, names.RESCHEDULES)
        return {"metadata": {"annotations": notes, "labels": {names.NODE_LABEL: None}}}

    try:
        await change(node.client, CLAIMS, target, back)
    except ApiNotFoundError:
        return
    if is_done:
        log.info("populated claim rescheduled claim=%s populator=%s", target.key, prime.key)
        node.events.warning(refer(CLAIMS, target), names.POPULATOR_RESCHEDULED, _text(node, target, prime, reason))


def _waits_here(node: NodeContext, claim: PersistentVolumeClaim) -> bool:
    waits = is_populated(claim) and not claim.spec.volume_name and not claim.metadata.deleting
    return waits and node.scope.has_claim(claim.metadata)


# Not the populator's claim as well: its next pod uses that, and a claim in deletion that is used never ends.
def _text(node: NodeContext, target: PersistentVolumeClaim, prime: PersistentVolumeClaim, reason: str) -> str:
    space, uid = prime.metadata.namespace, target.metadata.uid
    return (
        f"node {node.scope.node} cannot have the populator's claim {prime.key} ({reason[:300]}), so this claim gets"
        f" another node. The populator begins there once its pod is gone: kubectl -n {space} delete pod populate-{uid}"
    )
