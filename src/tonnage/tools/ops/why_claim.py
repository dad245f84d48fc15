"""`tonnage why pvc/NAME`: reads a claim, its pods and its Events, and explains what it waits for. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tonnage.base.errors import ApiError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.matching import is_bound
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.provisioning.claims.growth import growth_of, problem_of
from tonnage.tools.ops import claim_errors
from tonnage.tools.ops.claim_errors import Said

MOST_EVENTS = 8
"""Maximum number of Events that are shown: the last ones."""


class ClaimAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What a claim waits for. node: where its volume is, or is to be made; "" for none. pods: that use it."""

    claim: str
    phase: str
    volume: str
    node: str
    pods: list[str]
    message: str
    todo: str
    said: list[Said] = []


async def why_claim(client: Client, name: str, namespace: str) -> ClaimAnswer:
    """Explain a claim.

    Raises: ApiNotFoundError without such a claim; ApiError for pods that may not be read; UnavailableError.
    """
    claim = await client.get(kinds.CLAIMS, name, namespace)
    users = [pod for pod in (await client.list(kinds.PODS, namespace)).items if name in pod.claim_names()]
    message, todo = _explained(claim, users)
    notes = claim.metadata.annotations
    return ClaimAnswer(
        claim.key,
        claim.status.phase or "Pending",
        claim.spec.volume_name,
        notes.get(names.SELECTED_NODE, ""),
        [pod.metadata.name for pod in users],
        message,
        todo,
        await _said(client, claim),
    )


def _explained(claim: PersistentVolumeClaim, users: Sequence[Pod]) -> tuple[str, str]:
    """Return what the claim waits for, and what to do."""
    running = [pod.metadata.name for pod in users if not pod.terminated]
    if claim.metadata.deleting:
        waits = f"pods {', '.join(running)}" if running else f"finalizers {', '.join(claim.metadata.finalizers)}"
        return f"it is being deleted, and waits for {waits}", "delete the pods" if running else "wait for their owners"
    if claim.status.phase == "Lost":
        volume = claim.spec.volume_name
        return f"its PersistentVolume {volume} does not exist", "on its node: tonnage volumes orphans, then adopt"
    if is_bound(claim):
        return _bound(claim)
    if not users:
        return "it has no volume: no pod uses it", "make a pod that uses it, unless its class binds Immediate"
    if claim.metadata.annotations.get(names.SELECTED_NODE):
        return "its node is to make its volume: see its Events", f"tonnage why {users[0].metadata.name}"
    return "no node is selected for it yet", f"tonnage why {users[0].metadata.name}"


def _bound(claim: PersistentVolumeClaim) -> tuple[str, str]:
    if (growth := growth_of(claim)) is not None:
        problem = problem_of(claim)
        if problem:
            return f"it waits to grow {growth.text}: {problem}", "the message says what to do; a request may be lowered"
        return f"it is to grow {growth.text}", "see its Events; the agent of its node may be away (tonnage doctor)"
    status = claim.status
    if status.modify_volume_status is not None:
        target = status.modify_volume_status.target_volume_attributes_class_name
        why = {one.get("type"): str(one.get("message", "")) for one in status.conditions}.get("ModifyVolumeError", "")
        text = f"its change to VolumeAttributesClass {target} is {status.modify_volume_status.status}"
        return f"{text}: {why}" if why else text, "name a class that its driver can apply, or wait"
    return "it waits for nothing: it has its volume and its size", "nothing"


async def _said(client: Client, claim: PersistentVolumeClaim) -> list[Said]:
    """Return the last Events of the claim, the oldest first; none where they may not be read."""
    fields = f"involvedObject.uid={claim.metadata.uid}"
    try:
        events = (await client.list(kinds.EVENTS, claim.metadata.namespace, fields=fields)).items
    except ApiError:
        return []
    about = f"claim {claim.metadata.name}"
    return sorted((claim_errors.said(about, event) for event in events), key=lambda one: one.at)[-MOST_EVENTS:]
