"""Nominated nodes: resources reserved on a node for a pod. Sans-I/O.

While victims terminate, or until enough capacity is free. A nomination counts like a pod on the node, with capacity for
its claims. It does not count against the pod itself, nor against pods of higher priority while they are decided. It
ends when the pod has its node, when its cause is over, and after LONGEST seconds at most. Affinity and anti-affinity of
others to the pod count only when it is there. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tonnage.kubernetes.api.pods import Pod
from tonnage.scheduler.core.cycle import Cycle
from tonnage.scheduler.framework.plugin import Diagnosis, SchedulingDecision, Stop
from tonnage.scheduler.framework.pod_info import Ask, UsedVolume
from tonnage.scheduler.preemption.dry_run import own_claims
from tonnage.scheduler.preemption.victims import priority

GRACE, LONGEST = 30.0, 600.0
"""Seconds: until freed volumes are published; maximum of any nomination."""
_PREFIX = "held for "


@dataclass(frozen=True, slots=True)
class Going:
    """A victim that is terminating.

    claims: (key, uid), and volumes: names, that are deleted with it.
    """

    pod: str
    claims: tuple[tuple[str, str], ...] = ()
    volumes: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Nomination:
    """A pod and its node.

    until: end of the nomination, None while victims terminate.
    """

    ask: Ask
    node: str
    used: tuple[UsedVolume, ...]
    needs: tuple[tuple[str, int], ...]
    since: float
    going: tuple[Going, ...] = ()
    until: float | None = None

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.ask.pod.metadata.uid

    @property
    def priority(self) -> int:
        """The pod's priority."""
        return priority(self.ask.pod)


class Nominations:
    """All nominations, at most one for each pod. nominees: their uids, for the queue."""

    def __init__(self, cycle: Cycle, nominees: set[str]) -> None:
        self._cycle, self._cluster, self._nominees = cycle, cycle.cluster, nominees
        self._all: dict[str, Nomination] = {}

    def get(self, uid: str) -> Nomination | None:
        """Return the nomination of a pod, or None."""
        return self._all.get(uid)

    def __iter__(self) -> Iterator[Nomination]:
        return iter(list(self._all.values()))

    def hold(
        self, ask: Ask, node: str, now: float, *, victims: Iterable[Pod] = (), seconds: float | None = None
    ) -> Nomination:
        """Reserve resources for a pod until its victims are gone, or for seconds.

        It replaces an earlier nomination of the pod.
        """
        self._forget(ask.pod.metadata.uid)
        state = self._cycle.pre_filter(ask)
        used, needs = ((), ()) if isinstance(state, Stop) else (state.volumes.used, state.volumes.needs)
        going = tuple(self._going(pod) for pod in victims)
        until = None if seconds is None else now + min(seconds, LONGEST)
        found = Nomination(ask, node, used, needs, now, going, until)
        self._all[found.uid] = found
        self._nominees.add(found.uid)
        self._place(found)
        return found

    def _going(self, pod: Pod) -> Going:
        claims = list(own_claims(pod, self._cluster.objects))
        return Going(
            pod.metadata.uid,
            tuple((claim.key, claim.metadata.uid) for claim in claims),
            tuple(claim.spec.volume_name for claim in claims if claim.spec.volume_name),
        )

    def placed(self, uid: str, node: str) -> None:
        """Handle a pod that got a node, which counts it by now.

        Ignored without a nomination.
        """
        found = self._forget(uid)
        if found is not None and found.node != node:
            self._cluster.reservation_released()

    def drop(self, uid: str) -> None:
        """End a nomination: others may use the resources.

        Ignored without one.
        """
        found = self._forget(uid)
        if found is not None:
            self._cluster.reservation_released()

    def _forget(self, uid: str) -> Nomination | None:
        found = self._all.pop(uid, None)
        if found is not None:
            self._nominees.discard(uid)
            self._lift(found)
        return found

    # How a hold is counted

    def _place(self, one: Nomination) -> None:
        claims = [use.key for use in one.ask.claims]
        self._cluster.columns.place(_PREFIX + one.uid, one.node, one.ask.demand, one.used, claims)
        for number, (storage_class, size) in enumerate(one.needs):
            self._cluster.published.reserve(f"{_PREFIX}{one.uid} {number}", one.node, storage_class, size)

    def _lift(self, one: Nomination) -> None:
        self._cluster.columns.lift(_PREFIX + one.uid)
        for number in range(len(one.needs)):
            self._cluster.published.drop(f"{_PREFIX}{one.uid} {number}", tells=False)

    @contextmanager
    def lifted(self, ask: Ask) -> Iterator[bool]:
        """Remove the pod's nomination and those of lower priority, meanwhile.

        The caller must not await. Yields whether that changes anything.
        """
        mine, important = ask.pod.metadata.uid, priority(ask.pod)
        aside = [one for one in self._all.values() if one.uid == mine or one.priority < important]
        for one in aside:
            self._lift(one)
        try:
            yield bool(aside)
        finally:
            for one in aside:
                self._place(one)

    def decide(self, ask: Ask) -> SchedulingDecision | Diagnosis:
        """Run Cycle.decide() with the nominations that count against this pod.

        Raises: InvalidError.
        """
        with self.lifted(ask) as differs:
            return self._cycle.decide(ask, remembers=not differs)

    # When a hold ends

    def over(self, now: float) -> list[Nomination]:
        """Return nominations whose time is over. Idempotent."""
        for one in self._all.values():
            if one.until is None and not any(map(self._is_there, one.going)):
                one.until = min(now + GRACE, one.since + LONGEST)
        return [one for one in self._all.values() if self._end(one) <= now]

    def next_due(self) -> float | None:
        """Return when over() may change, as far as time decides."""
        return min(map(self._end, self._all.values()), default=None)

    def _end(self, one: Nomination) -> float:
        return one.since + LONGEST if one.until is None else one.until

    def _is_there(self, going: Going) -> bool:
        if going.pod in self._cluster.residents or any(map(self._cluster.objects.volumes.get, going.volumes)):
            return True
        claims = self._cluster.objects.claims
        return any((claim := claims.get(key)) is not None and claim.metadata.uid == uid for key, uid in going.claims)
