"""Pods of volume populators that wait on a node which their claims have left (lib-volume-populator).

The populator's pod names its node itself. Where the populator's claim does not fit there, the agent takes the node from
both claims and emits an Event on the first one. The populator makes a pod for the next node only when this one is gone,
which this controller sees to: it evicts the pod through the eviction API.

It evicts only a pod that has not started, that no other object owns, that has the name and the claim which the library
gives them, and whose first claim has left the pod's node. All of that is read live. So a forged Event does nothing that
its author could not wait for, and the Event's own text is never used.
"""

from __future__ import annotations

from collections.abc import Iterable

from tonnage.base.errors import ApiConflictError, ApiNotFoundError
from tonnage.controller.config import LoopContext, is_unstarted
from tonnage.controller.evict_unfit import evict
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event, PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, EVENTS, PODS
from tonnage.kubernetes.api.origin import is_populated
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.provisioning.claims.bind import find

RETRY = 10.0
"""Seconds until a pod that has changed, or may not be evicted yet, is read again."""


class FreedPopulators(Reconciler[str]):
    """Evicts pods of populators that nothing but their removal can help. Keys are the agents' Events."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("freed_populators")
        self._client, self._events = context.client, context.events
        selector = f"reason={names.POPULATOR_RESCHEDULED}"
        self._event_cache = self.watch(context.informers.of(EVENTS, fields=selector), _keys)

    async def reconcile(self, key: str) -> float | None:
        """Evict the pod that fills the claim of an Event, or return seconds to wait. Idempotent."""
        event = self._event_cache.get(key)
        about = event.involved_object if event is not None else None
        claim = await find(self._client, CLAIMS, about.name, about.namespace) if about is not None else None
        if about is None or claim is None or claim.metadata.uid != about.uid or not _waits(claim):
            return None
        uid = claim.metadata.uid
        pods = (await self._client.list(PODS, fields=f"metadata.name=populate-{uid}")).items
        for pod in (pod for pod in pods if _is_stranded(pod, claim)):
            try:
                await evict(self._client, pod)
            except ApiNotFoundError:
                continue
            except ApiConflictError:
                return RETRY
            text = (
                f"evicted from node {pod.spec.node_name}, which claim {claim.key} has left: its populator makes another"
            )
            self._events.warning(refer(PODS, pod), "PopulatorFreed", text)
        return None


def _keys(old: Event | None, new: Event | None) -> Iterable[str]:
    """Handle the agents' Events, new ones and repeated ones."""
    return (new.key,) if new is not None else ()


def _waits(claim: PersistentVolumeClaim) -> bool:
    return is_populated(claim) and not claim.spec.volume_name and not claim.metadata.deleting


def _is_stranded(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    node = pod.spec.node_name
    has_left = bool(node) and claim.metadata.annotations.get(names.SELECTED_NODE) != node
    uses_prime = f"prime-{claim.metadata.uid}" in pod.claim_names()
    return has_left and uses_prime and is_unstarted(pod) and not pod.metadata.owner_references
