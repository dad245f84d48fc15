"""Disruption controller: how many pods each PodDisruptionBudget lets be evicted now (pkg/controller/disruption).

Watched: budgets, pods, and the workloads that define how many pods there should be. The status is authoritative: the
API server decrements it with each eviction and records the pod, until this controller sees the pod's deletion. A budget
whose number is unknown allows no eviction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import parse_rfc3339, rfc3339
from tonnage.base.errors import InvalidError, TonnageError
from tonnage.kubernetes.api.kinds import DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, REPLICA_SETS, STATEFUL_SETS, Kind
from tonnage.kubernetes.api.meta import KubeObject, OwnerReference, condition, to_builtins
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.policy import PodDisruptionBudget
from tonnage.kubernetes.api.selectors import from_label_selector
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import write_status
from tonnage_box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage_box.controllers.podcontrol.expectations import controller_of
from tonnage_box.controllers.podcontrol.pod_status import is_ready
from tonnage_box.controllers.podcontrol.pod_template import scaled

NAME = "disruption"
ALLOWED, SUFFICIENT, INSUFFICIENT, FAILED = "DisruptionAllowed", "SufficientPods", "InsufficientPods", "SyncFailed"
FORGOTTEN = 120.0
"""Seconds after which an evicted pod that does not go counts as there again."""
_SCALED: tuple[Kind[Any], ...] = (REPLICA_SETS, DEPLOYMENTS, STATEFUL_SETS)
Wanted = Callable[[Sequence[Pod]], int]
"""How many pods the owners of pods want together. Raises: InvalidError."""


@dataclass(frozen=True, slots=True)
class BudgetCount:
    """Counts of a budget. disrupted: pods that were evicted and not seen deleted, with the time."""

    expected: int
    desired: int
    healthy: int
    disrupted: dict[str, str]

    @property
    def allowed(self) -> int:
        """Number of pods that may still be evicted."""
        return max(0, self.healthy - self.desired) if self.expected else 0


def count(budget: PodDisruptionBudget, pods: Sequence[Pod], wanted: Wanted, now: float) -> BudgetCount:
    """Count a budget's pods. now: seconds since the epoch.

    Raises: InvalidError when the number of desired pods is unknown.
    """
    spec = budget.spec
    if spec.max_unavailable is not None:
        expected = wanted(pods)
        desired = max(0, expected - scaled(spec.max_unavailable, expected, up=True))
    elif isinstance(spec.min_available, str):
        expected = wanted(pods)
        desired = scaled(spec.min_available, expected, up=True)
    else:
        expected, desired = len(pods), spec.min_available or 0
    there = {pod.metadata.name: pod for pod in pods}
    disrupted = {
        name: since
        for name, since in budget.status.disrupted_pods.items()
        if (pod := there.get(name)) is not None and not pod.metadata.deleting and _since(since) + FORGOTTEN > now
    }
    healthy = sum(is_ready(p) and not p.metadata.deleting and p.metadata.name not in disrupted for p in pods)
    return BudgetCount(expected, desired, healthy, disrupted)


def _since(text: str) -> float:
    try:
        return parse_rfc3339(text)
    except (ValueError, TonnageError):
        return 0.0


def status(budget: PodDisruptionBudget, found: BudgetCount, now: float, failure: str = "") -> dict[str, Any]:
    """The status to write. failure: why counting failed, "" if it did not."""
    allowed, generation = 0 if failure else found.allowed, budget.metadata.generation
    reason = FAILED if failure else SUFFICIENT if allowed else INSUFFICIENT
    before = budget.status.conditions
    verdict = condition(before, ALLOWED, str(allowed > 0), reason, failure, now=rfc3339(now))
    return {
        "observedGeneration": generation,
        "disruptionsAllowed": allowed,
        "currentHealthy": found.healthy,
        "desiredHealthy": found.desired,
        "expectedPods": found.expected,
        "disruptedPods": found.disrupted,
        "conditions": [{"message": "", **to_builtins(verdict), "observedGeneration": generation}],
    }


class DisruptionController(Reconciler[str]):
    """Maintains the status of each budget. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._events, self._clock = context.client, context.events, context.clock
        budgets, pods = context.informers.of(DISRUPTION_BUDGETS), context.informers.of(PODS)
        self._budgets, self._pods = budgets.cache, pods.cache
        self._owners: dict[tuple[str, str], Cache[Any]] = {}
        super().__init__(NAME, backoff=Backoff(initial=0.005, maximum=120.0))
        self.watch(context.informers.of(DISRUPTION_BUDGETS), own_key)
        self.watch(pods, self._concerned)
        for kind in _SCALED:
            owners = context.informers.of(kind)
            self._owners[kind.api_version, kind.kind] = owners.cache
            self.watch(owners, self._in_namespace)

    def _concerned(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        """Budgets that a pod's change is about."""
        changed = [pod for pod in (old, new) if pod is not None]
        near = {pod.metadata.namespace for pod in changed}
        return [b.key for b in self._budgets if b.metadata.namespace in near and any(map(counted_by(b), changed))]

    def _in_namespace(self, old: KubeObject | None, new: KubeObject | None) -> Iterable[str]:
        """All budgets of its namespace: how many pods are wanted may have changed."""
        changed = new or old
        assert changed is not None
        namespace = changed.metadata.namespace
        return [b.key for b in self._budgets if b.metadata.namespace == namespace]

    async def reconcile(self, key: str) -> float | None:
        """Count, and write changes. Idempotent. Raises: TonnageError."""
        budget, now = self._budgets.get(key), self._clock.time()
        if budget is None or budget.metadata.deleting:
            return None
        counts = counted_by(budget)
        pods = [pod for pod in self._pods if counts(pod)]
        failure = ""
        try:
            found = count(budget, pods, self._wanted, now)
        except InvalidError as fault:
            failure, found = str(fault), BudgetCount(0, 0, 0, budget.status.disrupted_pods)
            message = f"Failed to calculate the number of expected pods: {fault}"
            self._events.warning(refer(DISRUPTION_BUDGETS, budget), "CalculateExpectedPodCountFailed", message)
        wanted = status(budget, found, now, failure)
        gone = dict.fromkeys(budget.status.disrupted_pods.keys() - found.disrupted.keys())
        wanted["disruptedPods"] = {**found.disrupted, **gone}
        await write_status(self._client, DISRUPTION_BUDGETS, budget, wanted)
        ends = [_since(since) + FORGOTTEN for since in found.disrupted.values()]
        return max(0.0, min(ends) - now) if ends else None

    def _wanted(self, pods: Sequence[Pod]) -> int:
        """Replicas of the pods' workloads. Pods without one do not count. Raises: InvalidError."""
        workloads = [workload for pod in pods if (workload := self._workload(pod)) is not None]
        return sum({one.metadata.uid: one.spec.replicas for one in workloads}.values())

    def _workload(self, pod: Pod) -> Any | None:
        """The Deployment, ReplicaSet or StatefulSet that controls a pod, None for a pod that nothing controls.

        A Deployment's ReplicaSet is the only owner that is looked through, as in Kubernetes: owners may form a cycle.
        Raises: InvalidError for an owner without a number of pods.
        """
        ref, namespace = controller_of(pod), pod.metadata.namespace
        if ref is None:
            return None
        owner = self._found(ref, namespace)
        if owner is None:
            raise InvalidError(f"found no scale of {ref.kind} {ref.name}, which controls {pod.metadata.name}")
        above = controller_of(owner) if ref.kind == REPLICA_SETS.kind else None
        deployment = self._found(above, namespace) if above is not None and above.kind == DEPLOYMENTS.kind else None
        return owner if deployment is None else deployment

    def _found(self, ref: OwnerReference, namespace: str) -> Any | None:
        """The workload that a reference names, None for any other kind or an object that is not there."""
        owners = self._owners.get((ref.api_version, ref.kind))
        found = owners.get(f"{namespace}/{ref.name}") if owners is not None else None
        return found if found is not None and found.metadata.uid == ref.uid else None


def counted_by(budget: PodDisruptionBudget) -> Callable[[Pod], bool]:
    """Tell of pods whether the budget counts them; its selector is compiled once, as it may be long.

    An empty selector counts all pods of its namespace, none counts nothing. Raises: InvalidError.
    """
    namespace = budget.metadata.namespace
    if budget.spec.selector is None:
        return lambda pod: False
    matches = from_label_selector(budget.spec.selector).matches
    return lambda pod: pod.metadata.namespace == namespace and matches(pod.metadata.labels)
