"""Events for invalid StorageClasses, on claims and on waiting pods.

kube-scheduler reports only insufficient storage for a class of capacity 0. Nodes publish the error of a class with its
capacity; it is the class's error if every node publishes one. The immediate controller handles claims with immediate
binding. Watched: capacity objects, classes, claims, and pods (for lookups; their changes are ignored).
"""

from __future__ import annotations

from collections.abc import Iterable

from tonnage.controller.config import LoopContext, LoopKey
from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, PODS, STORAGE_CLASSES
from tonnage.kubernetes.api.matching import class_name, is_delayed
from tonnage.kubernetes.api.storage import CSIStorageCapacity
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler, on_difference
from tonnage.kubernetes.client.indexes import CLAIMS_UNBOUND, PODS_BY_CLAIM, claims, pods_by_claim
from tonnage.provisioning.capacity.node_template import published_faults
from tonnage.provisioning.capacity.object import reason
from tonnage.provisioning.claims.timers import Waits

CLAIM, CLASS = "claim", "class"
REASON = "ProvisioningFailed"
_BY_CLASS = "class events: capacity by class"
_MOST_FAULTS = 3


class ClassEvents(Reconciler[LoopKey]):
    """Emits class errors."""

    def __init__(self, context: LoopContext) -> None:
        super().__init__("class_events")
        self._events, self._waits, informers = context.events, Waits(context.clock), context.informers
        self._handles, self._seeing = context.handles, frozenset(context.seeing)
        self._classes = self.watch(informers.of(STORAGE_CLASSES))  # nothing is published for an unknown class
        self._pods = self.watch(pods_by_claim(informers, fields=context.pod_fields))
        self._capacities = informers.of(CAPACITIES).cache
        self._capacities.add_index(_BY_CLASS, lambda capacity: (capacity.storage_class_name,))
        self._claims = self.watch(claims(informers), self._claim_changed)
        self.watch(informers.of(CAPACITIES), on_difference(reason, self._capacity_changed))

    async def reconcile(self, key: LoopKey) -> None:
        """Emit once what is wrong with a claim's class. Idempotent."""
        if key.what == CLASS:
            for waiting in self._claims.by(CLAIMS_UNBOUND, key.key):
                self.enqueue(LoopKey(CLAIM, waiting.key))
            return
        claim = self._claims.get(key.key)
        if claim is None or claim.metadata.deleting or not self._is_ours(claim):
            return
        if not (fault := self._fault(class_name(claim))):
            return
        message = f"no node can make a volume of class {class_name(claim)}: {fault}"
        if not self._waits.news(claim.metadata.uid, message):
            return
        self._events.warning(refer(CLAIMS, claim), REASON, message)
        for pod in self._pods.by(PODS_BY_CLAIM, claim.key):
            if not pod.spec.node_name and not pod.terminated and pod.spec.scheduler_name not in self._seeing:
                self._events.warning(refer(PODS, pod), REASON, f"claim {claim.metadata.name}: {message}")

    def _is_ours(self, claim: PersistentVolumeClaim) -> bool:
        storage_class = self._classes.get(class_name(claim))
        if storage_class is None or not is_delayed(claim, storage_class):
            return False
        return self._handles(storage_class.provisioner)

    def _fault(self, storage_class: str) -> str:
        """Return the error that every node publishes for the class, "" if one can serve it."""
        return "; ".join(published_faults(self._capacities.by(_BY_CLASS, storage_class))[:_MOST_FAULTS])

    def _capacity_changed(self, changed: CSIStorageCapacity) -> Iterable[LoopKey]:
        """Handle capacity objects: the last node without an error may be gone, too.

        One key for all claims of the class: a list may bring an object of each node, and many claims may wait.
        """
        name = changed.storage_class_name
        return (LoopKey(CLASS, name),) if self._fault(name) else ()

    def _claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterable[LoopKey]:
        """Handle new claims; later changes come from capacity objects."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._waits.over(old.metadata.uid)
        if new is None or new.spec.volume_name or (old is not None and old.metadata.uid == new.metadata.uid):
            return ()
        return (LoopKey(CLAIM, new.key),) if self._fault(class_name(new)) else ()
