"""Eviction of pods whose inline volume does not fit their node.

kube-scheduler ignores the capacity for inline volumes, and the kubelet of the chosen node retries forever. The node's
agent emits an Event on the pod (names.UNFIT); this controller evicts the pod through the eviction API. It evicts only
pods that have not started, that opt in by the label names.EVICT_UNFIT or whose namespace does, and whose owner creates
another pod that may run elsewhere. That excludes a DaemonSet, whose pods return to their node, and a Node.

An agent is trusted for its own node only: the Event must come from the agent of the pod's node, which the policy
tonnage-agent enforces. All else is read live from the pod.

An owner's first pod is evicted at once, each later one after a back-off that doubles. The count is in the Event on the
owner, which is written before the eviction: a new leader continues with the same back-off, and without that write no
pod is evicted. After an hour without an eviction the count restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tonnage.base.aio.clock import rfc3339, time_of
from tonnage.base.errors import ApiAlreadyExistsError, ApiConflictError, ApiNotFoundError
from tonnage.controller.config import LoopContext, is_unstarted
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Event
from tonnage.kubernetes.api.kinds import EVENTS, NAMESPACES, PODS
from tonnage.kubernetes.api.meta import ObjectReference, OwnerReference
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.events import WARNING
from tonnage.kubernetes.client.object_write import patch_object
from tonnage.provisioning.claims.bind import find

REASON = "PodsEvicted"
"""Reason of the Event on an owner."""
FIRST, LONGEST = 10.0, 1800.0
"""Seconds between the first two evictions of an owner's pods, and maximum."""
FORGOTTEN = 3600.0
"""Seconds without an eviction after which an owner's count restarts."""
_BACK_HERE = ("DaemonSet", "Node")


class UnfitPods(Reconciler[str]):
    """Evicts pods whose inline volume does not fit.

    Keys are the agents' Events.
    """

    def __init__(self, context: LoopContext) -> None:
        super().__init__("unfit_pods")
        self._client, self._events = context.client, context.events
        self._handles, self._clock = context.handles, context.clock
        self._event_cache = self.watch(context.informers.of(EVENTS, fields=f"reason={names.UNFIT}"), _pods_of)

    async def reconcile(self, key: str) -> float | None:
        """Evict the pod of an Event, or return seconds to wait. Idempotent."""
        event = self._event_cache.get(key)
        pod = await self._pod(event) if event is not None else None
        owner = _owner(pod) if pod is not None else None
        if pod is None or owner is None or not await self._is_wanted(pod):
            return None
        last, wait = await self._last(pod, owner)
        if wait > 0:
            return wait
        try:
            await self._count(pod, owner, last)
        except (ApiConflictError, ApiAlreadyExistsError):
            return 0.0  # another pod of the owner was first: check again
        try:
            await evict(self._client, pod)
        except (ApiConflictError, ApiNotFoundError):
            return pause(1)  # changed since it was read: check again after the back-off
        text = f"evicted from node {pod.spec.node_name}, where its inline volume does not fit: "
        self._events.warning(refer(PODS, pod), "UnfitPodEvicted", f"{text}{owner.kind} {owner.name} makes another")
        return None

    async def _pod(self, event: Event) -> Pod | None:
        """Return the pod of an Event by a live read, if it still matches."""
        about = event.involved_object
        pod = await find(self._client, PODS, about.name, about.namespace)
        if pod is None:
            return None
        same = pod.metadata.uid == about.uid and bool(pod.spec.node_name) and pod.spec.node_name == event.source.host
        return pod if same and is_unstarted(pod) and self._has_inline(pod) else None

    def _has_inline(self, pod: Pod) -> bool:
        drivers = (names.pool_driver(volume.csi.driver) for volume in pod.spec.volumes if volume.csi is not None)
        return any(map(self._handles, drivers))

    async def _is_wanted(self, pod: Pod) -> bool:
        """Return whether the pod, or else its namespace, opts in."""
        own = pod.metadata.labels.get(names.EVICT_UNFIT)
        if own is not None:
            return own == "true"
        namespace = await self._client.get(NAMESPACES, pod.metadata.namespace)
        return namespace.metadata.labels.get(names.EVICT_UNFIT) == "true"

    # Back-off

    async def _last(self, pod: Pod, owner: OwnerReference) -> tuple[Event | None, float]:
        """Return the owner's Event, and seconds until its next eviction."""
        found = await find(self._client, EVENTS, _event_name(owner), pod.metadata.namespace)
        if found is None:
            return None, 0.0
        since = self._since(found)
        return found, max(0.0, pause(found.count) - since) if since < FORGOTTEN else 0.0

    def _since(self, found: Event) -> float:
        """Return seconds since the owner's last eviction.

        An Event without a time is not ours and does not count.
        """
        last = time_of(found.last_timestamp)
        return self._clock.time() - last if last is not None else FORGOTTEN

    async def _count(self, pod: Pod, owner: OwnerReference, found: Event | None) -> None:
        """Increment the owner's count.

        Raises: ApiConflictError, ApiAlreadyExistsError if another replica was first.
        """
        now = self._clock.time()
        stale = found is None or self._since(found) >= FORGOTTEN
        count = 1 if found is None or stale else found.count + 1
        text = (
            f"pod {pod.metadata.name} is evicted from node {pod.spec.node_name}, where its inline volume does not fit"
            f" ({_ordinal(count)}); another one for the same reason in {pause(count):.0f} s at the earliest"
        )
        namespace = pod.metadata.namespace
        if found is not None:
            change = {"count": count, "lastTimestamp": rfc3339(now), "message": text}
            await patch_object(self._client, EVENTS, found, change)
            return
        about = ObjectReference(owner.api_version, owner.kind, namespace, owner.name, owner.uid)
        body = self._events.body(about, WARNING, REASON, text, name=_event_name(owner), at=now)
        await self._client.create(EVENTS, body, namespace)


async def evict(client: Client, pod: Pod) -> None:
    """Evict the pod that was read.

    One that has changed meanwhile, as by its start, is not evicted. Raises: ApiConflictError, ApiNotFoundError,
    ApiError.
    """
    meta = pod.metadata
    preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta.name, "namespace": meta.namespace},
        "deleteOptions": {"preconditions": preconditions},
    }
    await client.post(PODS.path(meta.namespace, meta.name, "eviction"), body)


def pause(count: int) -> float:
    """Return seconds between eviction number `count` and the next."""
    return min(LONGEST, FIRST * 2.0 ** min(max(0, count - 1), 20))


def _pods_of(old: Event | None, new: Event | None) -> Iterable[str]:
    """Handle the agent's Events.

    The kubelet retries, and the agent repeats its Event each time, so no other trigger is needed.
    """
    return (new.key,) if new is not None else ()


def _owner(pod: Pod) -> OwnerReference | None:
    """Return the owner that creates another pod elsewhere, or None."""
    owner = next((o for o in pod.metadata.owner_references if o.controller), None)
    return owner if owner is not None and owner.kind not in _BACK_HERE else None


def _ordinal(count: int) -> str:
    return "the first one" if count == 1 else f"number {count}"


def _event_name(owner: OwnerReference) -> str:
    """Return the Event's name: always the same for an owner, for every leader."""
    return f"{owner.name[:200].rstrip('.-')}.{hashlib.sha256(owner.uid.encode()).hexdigest()[:16]}"
