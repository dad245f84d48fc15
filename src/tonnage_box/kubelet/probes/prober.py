"""Schedule of all probes of a node: one heap and one timer, so that an idle probe costs no task.

The results are those of Kubernetes' kubelet/prober; a probe that is due while 16 others are asked waits for its turn.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tonnage.base.aio.tasks import Background
from tonnage.base.errors import TonnageError
from tonnage_box.kubelet.containers.runtime import RunningContainer, Runtime
from tonnage_box.kubelet.probes.handler import check
from tonnage_box.kubelet.probes.probe_state import INITIAL, ProbeKind, ProbeResult, ProbeSpec, ProbeState

log = logging.getLogger(__name__)
_AT_ONCE = 16
_TRIES = 3

Tell = Callable[[str, str, str], None]


@dataclass
class ContainerProbes:
    """The probes of one start of a container.

    changed(kind): called when a result changes; emit(type, reason, message) emits an Event.
    """

    where: RunningContainer
    changed: Callable[[ProbeKind], None]
    emit: Tell
    since: float
    """When the container was started, by the loop's time."""
    states: dict[ProbeKind, ProbeState] = field(default_factory=dict)
    is_over: bool = False

    @property
    def started(self) -> bool:
        """Whether the startup probe, if there is one, has succeeded."""
        state = self.states.get(ProbeKind.STARTUP)
        return state is None or state.result is ProbeResult.SUCCESS

    @property
    def ready(self) -> bool:
        """Whether it has started, and its readiness probe, if there is one, says so."""
        state = self.states.get(ProbeKind.READINESS)
        return self.started and (state is None or state.result is ProbeResult.SUCCESS)

    def failed(self) -> ProbeSpec | None:
        """The probe for which the container must be restarted."""
        for kind in (ProbeKind.LIVENESS, ProbeKind.STARTUP):
            state = self.states.get(kind)
            if state is not None and state.result is ProbeResult.FAILURE:
                return state.spec
        return None


class Prober:
    """Probes the containers of one node until their processes end. close() stops all."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._heap: list[tuple[float, int, ContainerProbes, ProbeState]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.tasks = Background("probes")
        """Probes and hooks that are under way."""

    def add(
        self,
        where: RunningContainer,
        changed: Callable[[ProbeKind], None],
        emit: Tell,
        *,
        known: dict[ProbeKind, ProbeResult] | None = None,
    ) -> ContainerProbes:
        """Begin to probe a container.

        known: what an earlier kubelet had found out; its containers are probed at a random moment of their period.
        """
        now = asyncio.get_running_loop().time()
        probes = ContainerProbes(where, changed, emit, now)
        for spec in ProbeSpec.of(where.container):
            probes.states[spec.kind] = ProbeState(spec, (known or {}).get(spec.kind, INITIAL[spec.kind]))
        for state in probes.states.values():
            if probes.started or state.spec.kind is ProbeKind.STARTUP:
                wait = state.spec.delay if known is None else random.uniform(0, state.spec.period)
                self._push(now + wait, probes, state)
        return probes

    def _push(self, at: float, probes: ContainerProbes, state: ProbeState) -> None:
        if state.is_final:
            return
        heapq.heappush(self._heap, (at, next(self._numbers), probes, state))
        if self._heap[0][2] is probes:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._heap[0][0], self._due) if self._heap else None

    def _due(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            at, _, probes, state = heapq.heappop(self._heap)
            if not is_done(probes):
                self.tasks.start(self._probe(at, probes, state), "probe")
        self._arm()

    async def _probe(self, at: float, probes: ContainerProbes, state: ProbeState) -> None:
        answer = await self._ask(probes, state.spec)
        if is_done(probes):
            return
        if answer is not None and state.answer(answer):
            if state.spec.kind is ProbeKind.STARTUP and probes.started:
                self._begin(probes)
            probes.changed(state.spec.kind)
        now = asyncio.get_running_loop().time()
        self._push(max(at + state.spec.period, now), probes, state)

    def _begin(self, probes: ContainerProbes) -> None:
        """The container has started: now the other probes count."""
        now = asyncio.get_running_loop().time()
        for state in probes.states.values():
            if state.spec.kind is not ProbeKind.STARTUP:
                self._push(max(now, probes.since + state.spec.delay), probes, state)

    async def _ask(self, probes: ContainerProbes, spec: ProbeSpec) -> ProbeResult | None:
        """One answer, None for none. Events tell of failures."""
        word, failure = spec.kind.word, ""
        async with self._slots:
            for _ in range(_TRIES):
                try:
                    answer, text = await check(self._runtime, probes.where, spec)
                except TonnageError as error:
                    failure = str(error)
                    if is_done(probes):
                        return None
                else:
                    break
            else:
                probes.emit("Warning", "Unhealthy", f"{word} probe errored and resulted in failure state: {failure}")
                return None
        if is_done(probes):
            return None
        if answer is ProbeResult.FAILURE:
            probes.emit("Warning", "Unhealthy", f"{word} probe failed: {text}")
        elif text:
            probes.emit("Warning", "ProbeWarning", f"{word} probe warning: {text}")
        return answer

    async def close(self) -> None:
        """Stop all probes."""
        self._heap.clear()
        self._arm()
        await self.tasks.close()


def is_done(probes: ContainerProbes) -> bool:
    """Whether the container is not to be probed any more: it has ended, or is being stopped."""
    return probes.is_over or probes.where.process.ended is not None
