"""Pods whose node was set by hand: nobody schedules them, so nobody sends their claims to that node. This does.

(kubernetes-behaviour.md 9.6 names the gap; admission-policies.md 5 tells why not the agent may fill it.) A scheduler
gives a pod its node only after its claims are bound, so a pod with a node and an unbound claim was placed by hand.
Watched: pods (those that appear or get a node), claims that are there or become free later, and nodes that appear.
A claim that the node sent back for want of room goes there again after a pause, and the pod is told: no other node is
chosen for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tonnage.aio.clock import Clock, RealClock
from tonnage.api.core import Node, PersistentVolumeClaim
from tonnage.api.kinds import NODES, PODS, STORAGE_CLASSES
from tonnage.api.matching import class_name, is_delayed, is_provisionable
from tonnage.api.pods import Pod
from tonnage.api.storage import StorageClass
from tonnage.controllers.ephemeral import check_owner
from tonnage.controllers.indexes import CLAIMS_UNBOUND, PODS_BY_CLAIM, VOLUMES_BY_CLAIM, claims, pods_by_claim, volumes
from tonnage.controllers.sending import is_sent, pause, send, withdrawals
from tonnage.controllers.waits import Waits
from tonnage.errors import Precondition
from tonnage.kube.client import Client, refer
from tonnage.kube.controller import Controller
from tonnage.kube.events import EventRecorder
from tonnage.kube.informer import Informers

_PODS_BY_NODE = "hand placed: pods by node"


class HandPlaced:
    """Sends late-binding claims to the node of the pod that uses them. Keys are pods.

    provisioners: only claims of these (none: of all). pod_fields narrows the watch of pods on large clusters
    (`status.phase=Pending`).
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        events: EventRecorder,
        *,
        provisioners: Collection[str] = (),
        pod_fields: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._client, self._events = client, events
        self._provisioners = frozenset(provisioners)
        self._waits = Waits(clock or RealClock())
        pods, claim_informer = pods_by_claim(informers, fields=pod_fields), claims(informers)
        volume_informer = volumes(informers)
        classes, nodes = informers.of(STORAGE_CLASSES), informers.of(NODES)
        self._pods, self._claims, self._volumes = pods.cache, claim_informer.cache, volume_informer.cache
        self._classes, self._nodes = classes.cache, nodes.cache
        self._pods.add_index(_PODS_BY_NODE, _unstarted_by_node)
        self._controller = Controller("hand_placed", self.reconcile)
        self._controller.watch(classes, self._class_added)
        self._controller.watch(volume_informer, lambda old, new: ())
        self._controller.watch(nodes, self._node_added)
        self._controller.watch(claim_informer, self._claim_changed)
        self._controller.watch(pods, self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    async def reconcile(self, key: str) -> float | None:
        """Send the pod's claims to its node, those that were sent back after a pause. May be repeated."""
        pod = self._pods.get(key)
        if pod is None or not _waits_on_node(pod) or self._nodes.get(pod.spec.node_name) is None:
            return None
        later: list[float] = []
        for name in pod.claim_names():
            claim = self._claims.get(f"{pod.metadata.namespace}/{name}")
            storage_class = self._classes.get(class_name(claim)) if claim is not None else None
            if claim is None or storage_class is None or not self._to_be_sent(claim, storage_class, pod):
                continue
            if wait := self._waits.left(_turn(claim), pause(claim)):
                later.append(wait)
                self._tell(pod, claim)
            else:
                await send(self._client, claim, pod.spec.node_name, storage_class)
                self._waits.over(_turn(claim))
        return min(later, default=None)

    def _tell(self, pod: Pod, claim: PersistentVolumeClaim) -> None:
        """Once for each time that the claim came back: how much is lacking, the claim's own events say."""
        text = (
            f"node {pod.spec.node_name} has no room for claim {claim.metadata.name} (the claim's events say more)."
            " This pod was put there by hand, so no other node is chosen: it is tried there again and again"
        )
        if self._waits.news(_turn(claim), text):
            self._events.warning(refer(PODS, pod), "NoRoom", text)

    def _to_be_sent(self, claim: PersistentVolumeClaim, storage_class: StorageClass, pod: Pod) -> bool:
        if claim.metadata.deleting or is_sent(claim) or not is_delayed(claim, storage_class):
            return False
        if not is_provisionable(storage_class) or self._volumes.by(VOLUMES_BY_CLAIM, claim.key):
            return False
        if self._provisioners and storage_class.provisioner not in self._provisioners:
            return False
        return _may_use(pod, claim)

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[str]:
        if new is None:
            if old is not None:
                self._waits.over(_turn(old))
            return ()
        if is_sent(new) or new.spec.volume_name:
            return ()
        return [pod.key for pod in self._pods.by(PODS_BY_CLAIM, new.key) if _waits_on_node(pod)]

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        """Only the pod's coming to its node matters, and only while a claim of it is neither bound nor sent."""
        if new is None or not _waits_on_node(new) or (old is not None and old.spec.node_name):
            return ()
        found = (self._claims.get(f"{new.metadata.namespace}/{name}") for name in new.claim_names())
        return (new.key,) if any(c is not None and not c.spec.volume_name and not is_sent(c) for c in found) else ()

    def _class_added(self, old: StorageClass | None, new: StorageClass | None) -> Iterable[str]:
        if new is None or old is not None:
            return ()
        waiting = self._claims.by(CLAIMS_UNBOUND, new.metadata.name)
        return [pod.key for c in waiting for pod in self._pods.by(PODS_BY_CLAIM, c.key) if _waits_on_node(pod)]

    def _node_added(self, old: Node | None, new: Node | None) -> Iterable[str]:
        if new is None or old is not None:
            return ()
        return [pod.key for pod in self._pods.by(_PODS_BY_NODE, new.metadata.name)]


def _waits_on_node(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.status.phase in ("", "Pending") and not pod.metadata.deleting


def _unstarted_by_node(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if _waits_on_node(pod) and pod.claim_names() else ()


def _may_use(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """An ephemeral claim must be the pod's own."""
    for volume in pod.spec.volumes:
        if volume.ephemeral is not None and f"{pod.metadata.name}-{volume.name}" == claim.metadata.name:
            try:
                check_owner(claim, pod)
            except Precondition:
                return False
    return True


def _turn(claim: PersistentVolumeClaim) -> tuple[str, int]:
    """A wait belongs to one withdrawal: the next one begins anew."""
    return claim.metadata.uid, withdrawals(claim)
