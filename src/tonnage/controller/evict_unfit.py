"""Pods whose inline volume does not fit where they were sent: evicted, so that what made them makes others elsewhere.

Kubernetes' scheduler does not look at room for inline volumes, and the kubelet of the chosen node tries for ever. The
node's agent says on the pod that the volume does not fit (an Event, names.UNFIT); this evicts the pod through the
eviction API. Only pods that have not started, that say so (or whose namespace does, label names.EVICT_UNFIT), and that
a controller will replace somewhere: neither a DaemonSet, whose pods come back to their node, nor a Node.

An agent's word is not trusted further than its node: the Event must be of the agent of the node where the pod is, which
the policy tonnage-agent holds it to, and all else is read live from the pod.

An owner loses its first pod at once, and each later one after a pause that doubles. The count is the Event on the owner
that tells of it, written before the pod is evicted: a new leader goes on with the same pace, and who cannot write it
evicts nothing. It starts anew when nothing happened for an hour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

from tonnage.aio.clock import Clock, RealClock, parse_rfc3339, rfc3339
from tonnage.api import names
from tonnage.api.core import Event
from tonnage.api.kinds import EVENTS, NAMESPACES, PODS
from tonnage.api.meta import OwnerReference
from tonnage.api.pods import Pod
from tonnage.errors import ApiAlreadyExists, ApiConflict, ApiNotFound
from tonnage.kube.client import Client, refer
from tonnage.kube.controller import Controller
from tonnage.kube.events import WARNING, EventRecorder
from tonnage.kube.informer import Informers

REASON = "PodsEvicted"
"""Of the Event on an owner."""
FIRST, LONGEST = 10.0, 1800.0
"""Seconds between the first two evictions of an owner's pods, and at most."""
FORGOTTEN = 3600.0
"""Seconds without any after which an owner begins anew."""
_BACK_HERE = ("DaemonSet", "Node")
_SELF = "tonnage-controller"


class UnfitPods:
    """Evicts them. Keys are the agents' Events. drivers: whose inline volumes count (none: of all)."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        *,
        drivers: Collection[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._client, self._events = client, events
        self._drivers, self._clock = frozenset(drivers), clock or RealClock()
        told = informers.of(EVENTS, fields=f"reason={names.UNFIT}")
        self._told = told.cache
        self._controller = Controller("unfit_pods", self.reconcile)
        self._controller.watch(told, _told)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    async def reconcile(self, key: str) -> float | None:
        """Evict the pod that an Event tells of, or say when it may be. May be repeated."""
        event = self._told.get(key)
        pod = await self._pod(event) if event is not None else None
        owner = _owner(pod) if pod is not None else None
        if pod is None or owner is None or not await self._is_wanted(pod):
            return None
        last, wait = await self._last(pod, owner)
        if wait > 0:
            return wait
        try:
            await self._count(pod, owner, last)
        except (ApiConflict, ApiAlreadyExists):
            return 0.0  # another pod of the owner was faster: look again
        try:
            await self._evict(pod)
        except (ApiConflict, ApiNotFound):
            return pause(1)  # it has changed since: if it still does not fit, it has its turn
        text = f"evicted from node {pod.spec.node_name}, where its inline volume does not fit: "
        self._events.warning(refer(PODS, pod), "UnfitPodEvicted", f"{text}{owner.kind} {owner.name} makes another")
        return None

    async def _pod(self, event: Event) -> Pod | None:
        """The pod, live, if it still is as the event tells."""
        about = event.involved_object
        try:
            pod = await self._client.get(PODS, about.name, about.namespace)
        except ApiNotFound:
            return None
        same = pod.metadata.uid == about.uid and bool(pod.spec.node_name) and pod.spec.node_name == event.source.host
        waits = pod.status.phase in ("", "Pending") and not pod.metadata.deleting
        return pod if same and waits and self._has_inline(pod) else None

    def _has_inline(self, pod: Pod) -> bool:
        drivers = {volume.csi.driver for volume in pod.spec.volumes if volume.csi is not None}
        return bool(drivers & self._drivers if self._drivers else drivers)

    async def _is_wanted(self, pod: Pod) -> bool:
        """Whether pod or namespace say so; the pod's word counts first."""
        own = pod.metadata.labels.get(names.EVICT_UNFIT)
        if own is not None:
            return own == "true"
        namespace = await self._client.get(NAMESPACES, pod.metadata.namespace)
        return namespace.metadata.labels.get(names.EVICT_UNFIT) == "true"

    # The pace

    async def _last(self, pod: Pod, owner: OwnerReference) -> tuple[Event | None, float]:
        """The owner's Event, and the seconds until it may lose another pod."""
        try:
            found = await self._client.get(EVENTS, _event_name(owner), pod.metadata.namespace)
        except ApiNotFound:
            return None, 0.0
        since = self._since(found)
        return found, max(0.0, pause(found.count) - since) if since < FORGOTTEN else 0.0

    def _since(self, found: Event) -> float:
        """Seconds since the owner lost a pod. Without a time it is somebody else's Event, and says nothing."""
        try:
            return self._clock.time() - parse_rfc3339(found.last_timestamp or "")
        except ValueError:
            return FORGOTTEN

    async def _count(self, pod: Pod, owner: OwnerReference, found: Event | None) -> None:
        """Count one more. Raises ApiConflict, ApiAlreadyExists when another was faster."""
        now = self._clock.time()
        stale = found is None or self._since(found) >= FORGOTTEN
        count = 1 if found is None or stale else found.count + 1
        text = (
            f"pod {pod.metadata.name} is evicted from node {pod.spec.node_name}, where its inline volume does not fit"
            f" ({_ordinal(count)}); another one for the same reason in {pause(count):.0f} s at the earliest"
        )
        told = {"count": count, "lastTimestamp": rfc3339(now), "message": text}
        if found is not None:
            version = found.metadata.resource_version
            await self._client.patch(
                EVENTS, found.metadata.name, told, pod.metadata.namespace, resource_version=version
            )
            return
        namespace = pod.metadata.namespace
        about = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        body = {
            "metadata": {"name": _event_name(owner), "namespace": namespace},
            "involvedObject": {**about, "namespace": namespace},
            "type": WARNING,
            "reason": REASON,
            "source": {"component": _SELF},
            "reportingComponent": _SELF,
            "firstTimestamp": rfc3339(now),
            **told,
        }
        await self._client.create(EVENTS, body, namespace)

    async def _evict(self, pod: Pod) -> None:
        """As long as it is the pod that was looked at: one that starts meanwhile has its volume."""
        meta = pod.metadata
        preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": {"preconditions": preconditions},
        }
        await self._client.post(PODS.path(meta.namespace, meta.name, "eviction"), body)


def pause(count: int) -> float:
    """Seconds from so many evictions of an owner's pods to the next one."""
    return min(LONGEST, FIRST * 2.0 ** min(max(0, count - 1), 20))


def _told(old: Event | None, new: Event | None) -> Iterable[str]:
    """The kubelet tries again and again, and the agent tells it each time: nothing else need wake us."""
    return (new.key,) if new is not None else ()


def _owner(pod: Pod) -> OwnerReference | None:
    """Who will make another pod that may go elsewhere, or None."""
    owner = next((o for o in pod.metadata.owner_references if o.controller), None)
    return owner if owner is not None and owner.kind not in _BACK_HERE else None


def _ordinal(count: int) -> str:
    return "the first one" if count == 1 else f"number {count}"


def _event_name(owner: OwnerReference) -> str:
    """Always the same for an owner, so that whoever leads finds it."""
    return f"{owner.name[:200].rstrip('.-')}.{hashlib.sha256(owner.uid.encode()).hexdigest()[:16]}"
