"""ReplicaSet controller: maintains a number of equal pods (pkg/controller/replicaset).

Watched: ReplicaSets, and pods: a change concerns the ReplicaSet that controls the pod, or those that match it. Plan
and status are computed first and then written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import ApiError, TonnageError
from tonnage.kubernetes.api.kinds import PODS, REPLICA_SETS
from tonnage.kubernetes.api.meta import condition, to_builtins
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import ReplicaSet, template_meta
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import write_status
from tonnage_box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage_box.controllers.podcontrol.expectations import Dependents, controller_of
from tonnage_box.controllers.podcontrol.pod_control import BURST, PodControl, in_dying_namespace
from tonnage_box.controllers.podcontrol.pod_status import (
    deletion_order,
    is_active,
    is_available,
    is_ready,
    next_available,
)
from tonnage_box.controllers.podcontrol.pod_template import owner_reference, pod_of
from tonnage_box.controllers.podcontrol.ref_manager import owner_keys
from tonnage_box.controllers.podcontrol.rejected import replacement_wait

NAME = "replicaset"


@dataclass(frozen=True)
class ReplicaSetPlan:
    """Number of pods to create, and pods to delete; one of the two is empty."""

    create: int = 0
    delete: Sequence[Pod] = ()


def plan(wanted: int, pods: Sequence[Pod], crowd: Counter[str] | None = None) -> ReplicaSetPlan:
    """From the pods that there are to the wanted number. crowd counts related pods by node (see deletion_order)."""
    active = [pod for pod in pods if is_active(pod)]
    missing = wanted - len(active)
    if missing >= 0:
        return ReplicaSetPlan(create=min(missing, BURST))
    return ReplicaSetPlan(delete=deletion_order(active, crowd)[: min(-missing, BURST)])


def status(replica_set: ReplicaSet, pods: Sequence[Pod], now: float, failure: TonnageError | None) -> dict[str, Any]:
    """The status to write."""
    active = [pod for pod in pods if is_active(pod)]
    labels = template_meta(replica_set.spec.template).labels.items()
    min_ready = replica_set.spec.min_ready_seconds
    return {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(labels <= pod.metadata.labels.items() for pod in active),
        "readyReplicas": sum(map(is_ready, active)),
        "availableReplicas": sum(is_available(pod, min_ready, now) for pod in active),
        "observedGeneration": replica_set.metadata.generation,
        "conditions": _conditions(replica_set, len(active), now, failure),
    }


def _conditions(replica_set: ReplicaSet, active: int, now: float, failure: TonnageError | None) -> list[dict[str, Any]]:
    others = [c for c in replica_set.status.conditions if c.type != "ReplicaFailure"]
    if failure is not None:
        if len(others) < len(replica_set.status.conditions):
            others = replica_set.status.conditions
        else:
            reason = "FailedCreate" if active < replica_set.spec.replicas else "FailedDelete"
            others.append(condition((), "ReplicaFailure", "True", reason, str(failure), now=rfc3339(now)))
    return [to_builtins(c) for c in others]


class ReplicaSetController(Reconciler[str]):
    """Maintains the number of pods of each ReplicaSet. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._clock = context.client, context.clock
        sets, pods = context.informers.of(REPLICA_SETS), context.informers.of(PODS)
        self._sets, self._family = sets.cache, Dependents(sets)
        self._control = PodControl(context, REPLICA_SETS)
        super().__init__(NAME, backoff=Backoff(initial=0.005, maximum=120.0))
        self.watch(context.informers.of(REPLICA_SETS), own_key)
        self.watch(pods, owner_keys(REPLICA_SETS, self._sets, lambda s: s.spec.selector))

    async def reconcile(self, key: str) -> float | None:
        """Create missing or delete surplus pods, then write the status. Idempotent. Raises: TonnageError."""
        replica_set = self._sets.get(key)
        if replica_set is None:
            return None
        pods = await self._control.claim(replica_set, replica_set.spec.selector)
        failure, wait = None, replacement_wait(pods, replica_set.spec.replicas, self._clock.time())
        if not replica_set.metadata.deleting:
            failure = await self._manage(replica_set, pods, may_create=not wait)
            pods = self._control.owned(replica_set.metadata.uid)
        wanted = status(replica_set, pods, self._clock.time(), failure)
        await write_status(self._client, REPLICA_SETS, replica_set, wanted)
        if failure is not None and not in_dying_namespace(failure):
            raise failure
        ready = next_available(filter(is_active, pods), replica_set.spec.min_ready_seconds, self._clock.time())
        return min((seconds for seconds in (wait or None, ready) if seconds is not None), default=None)

    async def _manage(self, replica_set: ReplicaSet, pods: Sequence[Pod], *, may_create: bool) -> TonnageError | None:
        active = [pod for pod in pods if is_active(pod)]
        crowd = self._crowd(replica_set) if len(active) > replica_set.spec.replicas else None
        todo = plan(replica_set.spec.replicas, pods, crowd)
        if todo.create and not may_create:
            return None
        if todo.create:
            owner = owner_reference(REPLICA_SETS, replica_set)
            prefix = f"{replica_set.metadata.name}-"
            bodies = [pod_of(replica_set.spec.template, owner, prefix=prefix) for _ in range(todo.create)]
            return await self._control.create_many(replica_set, bodies)
        try:
            await self._control.delete_many(replica_set, todo.delete)
        except ApiError as failure:
            return failure
        return None

    def _crowd(self, replica_set: ReplicaSet) -> Counter[str]:
        """Pods by node, of this ReplicaSet and of those with the same controller."""
        owner = controller_of(replica_set)
        family = [replica_set] if owner is None else self._family.owned(owner.uid)
        pods = (pod for member in family for pod in self._control.owned(member.metadata.uid) if is_active(pod))
        return Counter(pod.spec.node_name for pod in pods)
