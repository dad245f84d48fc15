"""DaemonSet controller: one pod on every matching node (pkg/controller/daemon).

Watched: DaemonSets, their pods, and nodes. A node that is added, deleted, or changes its labels or taints concerns all
DaemonSets; other changes of its status do not. The next step is computed as a plan without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tonnage.aio.backoff import Backoff
from tonnage.api import names
from tonnage.api.core import Node
from tonnage.api.kinds import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS
from tonnage.api.pods import Pod
from tonnage.api.workloads import ControllerRevision, DaemonSet
from tonnage.box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage.box.controllers.podcontrol.history import RevisionHistory, revision_of
from tonnage.box.controllers.podcontrol.pod_control import PodControl, in_dying_namespace
from tonnage.box.controllers.podcontrol.pod_status import next_available
from tonnage.box.controllers.podcontrol.pod_template import owner_reference, pod_of
from tonnage.box.controllers.podcontrol.ref_manager import owner_keys
from tonnage.box.controllers.workloads import daemonset_plan as plans
from tonnage.kube.client import refer
from tonnage.kube.controller import Reconciler
from tonnage.kube.object_write import write_status

NAME = "daemonset"


class DaemonSetController(Reconciler[str]):
    """Maintains a pod on each matching node. Keys are `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._client, self._events, self._clock = context.client, context.events, context.clock
        informers = context.informers
        sets, nodes = informers.of(DAEMON_SETS), informers.of(NODES)
        self._sets, self._nodes = sets.cache, nodes.cache
        self._control = PodControl(context, DAEMON_SETS)
        self._revisions = RevisionHistory(context, DAEMON_SETS)
        self._failures = Backoff(initial=1.0, maximum=900.0)
        self._due: dict[tuple[str, str], float] = {}
        """When a failed pod of a DaemonSet's (uid) on a node may be replaced."""
        super().__init__(NAME, backoff=Backoff(initial=0.005, maximum=120.0))
        self.watch(context.informers.of(DAEMON_SETS), own_key)
        self.watch(informers.of(CONTROLLER_REVISIONS), lambda old, new: ())
        concerned = owner_keys(DAEMON_SETS, self._sets, lambda s: s.spec.selector)
        self.watch(informers.of(PODS), concerned)
        self.watch(nodes, self._node_changed)

    async def reconcile(self, key: str) -> float | None:
        """Do the next step, then write the status. Idempotent. Raises TonnageError."""
        daemon = self._sets.get(key)
        if daemon is None:
            return None
        pods = await self._control.claim(daemon, daemon.spec.selector)
        if daemon.metadata.deleting:
            return None
        revision, collisions = await self._revisions.ensure(daemon)
        hashed = revision.metadata.labels[names.REVISION_HASH]
        wait, failure = await self._follow(daemon, self._view(daemon, pods, hashed).plan(), hashed)
        pods = self._control.owned(daemon.metadata.uid)
        wanted = self._view(daemon, pods, hashed).status(collisions)
        await write_status(self._client, DAEMON_SETS, daemon, wanted)
        if failure is not None and not in_dying_namespace(failure):
            raise failure
        await self._forget(daemon, pods, revision)
        ready = next_available(pods, daemon.spec.min_ready_seconds, self._clock.time())
        return min((seconds for seconds in (wait, ready) if seconds is not None), default=None)

    def _view(self, daemon: DaemonSet, pods: Sequence[Pod], hashed: str) -> plans.DaemonNodeView:
        return plans.DaemonNodeView(daemon, pods, self._nodes, hashed, self._clock.time())

    async def _follow(self, daemon: DaemonSet, todo: plans.DaemonSetPlan, hashed: str) -> tuple[float | None, Any]:
        """Write a plan; seconds until a failed pod's turn comes, and the failure to make a pod."""
        due, wait = self._replaceable(daemon, todo.failed)
        await self._control.delete_many(daemon, [*todo.delete, *due])
        failure = await self._control.create_many(daemon, [pod_body(daemon, node, hashed) for node in todo.create])
        return wait, failure

    def _replaceable(self, daemon: DaemonSet, failed: Sequence[Pod]) -> tuple[list[Pod], float | None]:
        """Failed pods that may be replaced now, each time later than the last; seconds until the next may."""
        now, due, waits = self._clock.time(), [], []
        for pod in failed:
            place = (daemon.metadata.uid, plans.node_of(pod))
            left = self._due.get(place, 0.0) - now
            if left > 0:
                waits.append(left)
                continue
            self._due[place] = now + self._failures.next(place)
            due.append(pod)
            words = f"Found failed daemon pod {pod.key} on node {place[1]}, will try to kill it"
            self._events.warning(refer(DAEMON_SETS, daemon), "FailedDaemonPod", words)
        return due, min(waits, default=None)

    async def _forget(self, daemon: DaemonSet, pods: Sequence[Pod], newest: ControllerRevision) -> None:
        hashes = {newest.metadata.labels[names.REVISION_HASH], *map(revision_of, pods)}
        known = self._revisions.of(daemon)
        used = [r.metadata.name for r in known if r.metadata.labels.get(names.REVISION_HASH) in hashes]
        await self._revisions.trim(daemon, used)
        running = {plans.node_of(pod) for pod in pods if pod.status.phase == "Running"}
        for place in [p for p in self._due if p[0] == daemon.metadata.uid and p[1] in running]:
            del self._due[place]
            self._failures.forget(place)

    def _node_changed(self, old: Node | None, new: Node | None) -> Iterable[str]:
        if old is not None and new is not None and _concerns(old) == _concerns(new):
            return ()
        return self._sets.keys()


def _concerns(node: Node) -> tuple[Any, ...]:
    return node.metadata.uid, node.metadata.labels, node.spec.taints, node.spec.unschedulable


def pod_body(daemon: DaemonSet, node: str, hashed: str) -> dict[str, Any]:
    """The pod for a node, to be created: bound to it by affinity, so that the scheduler still checks volumes."""
    body = pod_of(daemon.spec.template, owner_reference(DAEMON_SETS, daemon), prefix=f"{daemon.metadata.name}-")
    body["metadata"].setdefault("labels", {})[names.CONTROLLER_REVISION_HASH] = hashed
    spec = body["spec"]
    spec["tolerations"] = plans.tolerations(spec)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [term]}
    return body
