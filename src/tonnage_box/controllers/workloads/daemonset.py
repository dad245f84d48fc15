"""DaemonSet controller: one pod on every matching node (pkg/controller/daemon).

Watched: DaemonSets, their pods, and nodes. A node that is added, deleted, or changes its labels or taints concerns all
DaemonSets; other changes of its status do not. The next step is computed as a plan without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage.base.aio.backoff import Backoff
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.decode import convert
from tonnage.kubernetes.api.kinds import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS
from tonnage.kubernetes.api.pods import Pod, PodSpec
from tonnage.kubernetes.api.workloads import ControllerRevision, DaemonSet, RollingUpdate
from tonnage.kubernetes.client.client import refer
from tonnage.kubernetes.client.controller import Reconciler
from tonnage.kubernetes.client.object_write import write_status
from tonnage.provisioning.claims.node_fit import NO_EXECUTE, NO_SCHEDULE, Suitability
from tonnage_box.controllers.podcontrol.context import ControllerContext, own_key
from tonnage_box.controllers.podcontrol.history import RevisionHistory, revision_of
from tonnage_box.controllers.podcontrol.pod_control import PodControl, in_dying_namespace
from tonnage_box.controllers.podcontrol.pod_status import is_available, is_ready, next_available
from tonnage_box.controllers.podcontrol.pod_template import owner_reference, pod_of, scaled
from tonnage_box.controllers.podcontrol.ref_manager import owner_keys

NAME = "daemonset"


ON_DELETE = "OnDelete"
_NETWORK = "node.kubernetes.io/network-unavailable"
_TOLERATED = (
    (names.NOT_READY_TAINT, NO_EXECUTE),
    (names.UNREACHABLE_TAINT, NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    (names.UNSCHEDULABLE_TAINT, NO_SCHEDULE),
)
"""What a daemon's pod bears in any case: it is part of the node."""


def tolerations(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tolerations of a daemon's pods: the template's, and those of every daemon."""
    given = [dict(one) for one in spec.get("tolerations") or ()]
    network = ((_NETWORK, NO_SCHEDULE),) if spec.get("hostNetwork") else ()
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in (*_TOLERATED, *network)]
    return given + [one for one in added if one not in given]


def pod_spec_of(daemon: DaemonSet) -> PodSpec:
    """What the pods of a DaemonSet ask of a node."""
    spec = daemon.spec.template["spec"]
    return convert({**spec, "tolerations": tolerations(spec)}, PodSpec)


def node_of(pod: Pod) -> str:
    """The node that a daemon's pod is on or is meant for."""
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    if pod.spec.node_name or not affinity or affinity.required is None:
        return pod.spec.node_name
    fields = (field for term in affinity.required.node_selector_terms for field in term.match_fields)
    return next((f.values[0] for f in fields if f.key == "metadata.name" and len(f.values) == 1), "")


@dataclass(frozen=True)
class DaemonSetPlan:
    """create: nodes that get a pod. delete: pods to delete. failed: those of them that failed (with back-off)."""

    create: Sequence[str] = ()
    delete: Sequence[Pod] = ()
    failed: Sequence[Pod] = ()


@dataclass(frozen=True)
class _Place:
    """A node with its pods, the oldest first."""

    node: str
    wanted: bool
    stays: bool
    pods: Sequence[Pod]

    @property
    def alive(self) -> list[Pod]:
        """Pods that have not ended."""
        return [pod for pod in self.pods if not pod.terminated]


class DaemonNodeView:
    """A DaemonSet, its pods and the nodes at one moment. hashed: the revision that pods should have."""

    def __init__(self, daemon: DaemonSet, pods: Sequence[Pod], nodes: Iterable[Node], hashed: str, now: float) -> None:
        self._daemon, self._hashed, self._now = daemon, hashed, now
        by_node: dict[str, list[Pod]] = {}
        for pod in pods:
            by_node.setdefault(node_of(pod), []).append(pod)
        suits = Suitability(pod_spec_of(daemon))
        self._places = [
            _Place(node.metadata.name, *suits.of(node), by_node.pop(node.metadata.name, ()))
            for node in sorted(nodes, key=lambda n: n.metadata.name)
        ]
        self._lost = [pod for left in by_node.values() for pod in left]
        rolling = daemon.spec.update_strategy.rolling_update or RollingUpdate()
        self._rolls = daemon.spec.update_strategy.type != ON_DELETE
        wanted = sum(place.wanted for place in self._places)
        self._surge = scaled(rolling.max_surge, wanted, up=True) if self._rolls else 0
        self._unavailable = scaled(rolling.max_unavailable, wanted, up=True)

    def plan(self) -> DaemonSetPlan:
        """Next step: missing and surplus pods, then one step of an update."""
        create: list[str] = []
        delete = [pod for pod in self._lost if not pod.metadata.deleting]
        failed: list[Pod] = []
        for place in self._places:
            if not place.stays:
                delete += _staying(place.pods)
                continue
            failed += _staying([pod for pod in place.pods if pod.terminated])
            if place.wanted and not place.pods:
                create.append(place.node)
            delete += self._surplus(_staying(place.alive))
        if self._rolls:
            if self._surge:
                create += self._surging()
            else:
                delete += [pod for pod in self._replacing() if pod not in delete]
        return DaemonSetPlan(create, delete, failed)

    def _is_new(self, pod: Pod) -> bool:
        return revision_of(pod) == self._hashed

    def _is_well(self, pod: Pod) -> bool:
        ready = is_available(pod, self._daemon.spec.min_ready_seconds, self._now)
        return ready and not pod.metadata.deleting and not pod.terminated

    def _surplus(self, pods: Sequence[Pod]) -> list[Pod]:
        """Pods of a node beyond the one to retain: the oldest.

        While surging, an old pod stays until the new one is available.
        """
        if len(pods) < 2:
            return []
        news, olds = [p for p in pods if self._is_new(p)], [p for p in pods if not self._is_new(p)]
        if not self._surge or not news or not olds:
            return list(pods[1:])
        gone = news[1:] + olds[1:]
        return gone + olds[:1] if self._is_well(news[0]) or not self._is_well(olds[0]) else gone

    def _replacing(self) -> list[Pod]:
        """Old pods to delete so that new ones replace them."""
        budget = self._unavailable
        sick, well = list[Pod](), list[Pod]()
        for place in self._places:
            if not place.stays or not (place.wanted or place.pods):
                continue
            pods = _staying(place.alive)
            available = any(self._is_well(pod) for pod in pods)
            budget -= not available
            olds = [pod for pod in pods if not self._is_new(pod)]
            if olds and len(olds) == len(pods):
                (well if available else sick).append(olds[0])
        return sick + well[: max(0, budget)]

    def _surging(self) -> list[str]:
        """Nodes that may have a new pod in addition to their old one, within maxSurge.

        The replacement of an unavailable old pod is not limited.
        """
        budget, free, candidates = self._surge, [], []
        for place in self._places:
            olds = [pod for pod in _staying(place.alive) if not self._is_new(pod)]
            if not place.wanted or not olds:
                continue
            if any(map(self._is_new, place.alive)):
                budget -= 1
            elif any(self._is_well(pod) for pod in olds):
                candidates.append(place.node)
            else:
                free.append(place.node)
        return free + candidates[: max(0, budget)]

    def status(self, collisions: int | None) -> dict[str, Any]:
        """The status to write."""
        wanted = [place for place in self._places if place.wanted]
        available = sum(any(map(self._is_well, place.alive)) for place in wanted)
        return {
            "observedGeneration": self._daemon.metadata.generation,
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": sum(bool(place.pods) for place in wanted),
            "numberMisscheduled": sum(bool(place.pods) for place in self._places if not place.wanted),
            "numberReady": sum(any(map(is_ready, place.alive)) for place in wanted),
            "numberAvailable": available,
            "numberUnavailable": len(wanted) - available,
            "updatedNumberScheduled": sum(any(map(self._is_new, place.alive)) for place in wanted),
            "collisionCount": collisions,
        }


def _staying(pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if not pod.metadata.deleting]


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
        """Do the next step, then write the status. Idempotent. Raises: TonnageError."""
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

    def _view(self, daemon: DaemonSet, pods: Sequence[Pod], hashed: str) -> DaemonNodeView:
        return DaemonNodeView(daemon, pods, self._nodes, hashed, self._clock.time())

    async def _follow(self, daemon: DaemonSet, todo: DaemonSetPlan, hashed: str) -> tuple[float | None, Any]:
        """Write a plan; seconds until a failed pod's turn comes, and the failure to make a pod."""
        due, wait = self._replaceable(daemon, todo.failed)
        await self._control.delete_many(daemon, [*todo.delete, *due])
        failure = await self._control.create_many(daemon, [pod_body(daemon, node, hashed) for node in todo.create])
        return wait, failure

    def _replaceable(self, daemon: DaemonSet, failed: Sequence[Pod]) -> tuple[list[Pod], float | None]:
        """Failed pods that may be replaced now, each time later than the last; seconds until the next may."""
        now, due, waits = self._clock.time(), [], []
        for pod in failed:
            place = (daemon.metadata.uid, node_of(pod))
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
        running = {node_of(pod) for pod in pods if pod.status.phase == "Running"}
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
    spec["tolerations"] = tolerations(spec)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [term]}
    return body
