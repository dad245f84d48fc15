"""Containers of one pod: start order, restarts and back-off (Kubernetes' kuberuntime).

Init containers run one after the other; those with restartPolicy Always (sidecars) stay. The first restart is at once,
then after 10 s, 20 s ... 5 min; 10 minutes without a crash reset the back-off. Level-based: sync() compares what runs
with what should run and does the missing steps.

A container with a postStart hook counts as running when the hook has ended; one whose liveness or startup probe has
failed is stopped, and so restarted as its pod wants.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import HostError, TonnageError
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.api.pods import Container, ContainerStatus, Pod
from tonnage_box.api import pod_fields
from tonnage_box.kubelet.containers.runtime import (
    ContainerSpec,
    Ended,
    FoundProcess,
    LostProcess,
    Mounted,
    Process,
    RunningContainer,
    Runtime,
)
from tonnage_box.kubelet.images.node_images import ImageMissingError
from tonnage_box.kubelet.probes import handler as handlers
from tonnage_box.kubelet.probes.probe_state import ProbeKind, ProbeResult, ProbeSpec
from tonnage_box.kubelet.probes.prober import ContainerProbes, Prober

log = logging.getLogger(__name__)
CRASH_LOOP = "CrashLoopBackOff"
CREATE_ERROR = "CreateContainerError"
CONFIG_ERROR = "CreateContainerConfigError"
PULL_ERROR = "ErrImagePull"
PULL_BACK_OFF = "ImagePullBackOff"
PULL_NEVER = "ErrImageNeverPull"
INITIALIZING = "PodInitializing"
CREATING = "ContainerCreating"
UNKNOWN = "ContainerStatusUnknown"
DEFAULT_GRACE = 30
_RETRIED = (CRASH_LOOP, CREATE_ERROR, CONFIG_ERROR, PULL_ERROR, PULL_BACK_OFF, PULL_NEVER)
_FIRST, _MOST, _FORGET = 10.0, 300.0, 600.0
_LEAST_GRACE = 2.0
"""Seconds that a container gets after its preStop hook, however long that took."""

Environment = Callable[[Pod, Container], Awaitable[dict[str, str]]]
Emit = Callable[[str, str, str], None]


@dataclass
class Run:
    """One container and its starts. waiting: reason and message while it should run and does not."""

    container: Container
    init: bool = False
    ephemeral: bool = False
    attempt: int = 0
    process: Process | None = None
    previous: Process | None = None
    waiting: tuple[str, str] = (CREATING, "")
    backoff: float = 0.0
    not_before: float = 0.0
    probes: ContainerProbes | None = None
    starting: bool = False
    """Its postStart hook is under way."""
    stopping: asyncio.Task[None] | None = None
    """Its preStop hook."""
    stop_at: float = 0.0
    """When its grace ends, by the loop's time, from the first order to stop on."""

    @property
    def sidecar(self) -> bool:
        """An init container that stays."""
        return self.init and self.container.restart_policy == "Always"

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.ended is None

    @property
    def up(self) -> bool:
        """Whether it runs, and its postStart hook has ended."""
        return self.running and not self.starting

    @property
    def started(self) -> bool:
        """Whether it is up, and its startup probe has succeeded."""
        return self.up and (self.probes is None or self.probes.started)

    @property
    def ready(self) -> bool:
        """Whether it does its work: it is up and its readiness probe succeeds, or it is an init container that did."""
        if self.init and not self.sidecar and self.succeeded:
            return True
        return self.up and (self.probes is None or self.probes.ready)

    @property
    def began(self) -> bool:
        """Whether it ever was up."""
        return self.process is not None and (not self.starting or self.previous is not None)

    @property
    def ended(self) -> Ended | None:
        """How its last process ended, None while it runs or before it was started."""
        return self.process.ended if self.process is not None else None

    @property
    def succeeded(self) -> bool:
        """Whether its last process ended well."""
        return self.ended is not None and self.ended.code == 0

    @property
    def started_once(self) -> bool:
        """Whether it was ever started."""
        return self.process is not None

    def fail(self, now: float) -> float:
        """Count a crash or a failed start; seconds to wait from now."""
        if self.not_before and now - self.not_before > _FORGET:
            self.backoff = 0.0
        wait = self.backoff
        self.backoff = min(max(self.backoff * 2, _FIRST), _MOST)
        self.not_before = now + wait
        return wait


@dataclass
class Containers:
    """All containers of one pod. emit(type, reason, message) emits an Event; woken is called when a container ends."""

    pod: Pod
    runtime: Runtime
    clock: Clock
    environment: Environment
    emit: Emit
    woken: Callable[[], None]
    prober: Prober | None = None
    inits: list[Run] = field(default_factory=list)
    mains: list[Run] = field(default_factory=list)
    ephemerals: list[Run] = field(default_factory=list)
    failed: Run | None = None
    """The init container that ended the pod."""
    finishing: bool = False
    """Nothing is started any more."""

    def __post_init__(self) -> None:
        self.inits = [Run(c, init=True, waiting=(INITIALIZING, "")) for c in self.pod.spec.init_containers]
        first = (INITIALIZING, "") if self.inits else (CREATING, "")
        self.mains = [Run(c, waiting=first) for c in self.pod.spec.containers]
        self.add_ephemeral(self.pod)
        self._counted: set[str] = set()
        self._exited = asyncio.Event()
        self._noted = self.pod.status.phase == "Running"

    def add_ephemeral(self, pod: Pod) -> None:
        """Take up the ephemeral containers that the pod has now. Idempotent."""
        known = {run.container.name for run in self.ephemerals}
        self.ephemerals += [
            Run(container, ephemeral=True) for container in pod.spec.ephemeral_containers if container.name not in known
        ]

    @property
    def all(self) -> list[Run]:
        """Init containers, the others, ephemeral ones."""
        return self.inits + self.mains + self.ephemerals

    @property
    def initialized(self) -> bool:
        """Whether all init containers are done (sidecars: started)."""
        return all(run.started if run.sidecar else run.succeeded for run in self.inits)

    @property
    def over(self) -> bool:
        """Whether the pod's work is done, well or not."""
        if self.failed is not None:
            return True
        return bool(self.mains) and all(run.ended is not None and not self.restarts(run) for run in self.mains)

    @property
    def alive(self) -> bool:
        """Whether any process runs."""
        return any(run.running for run in self.all)

    def adopt(self, found: list[FoundProcess]) -> None:
        """Take over what an earlier kubelet started, and what the status says of what is no longer to be found."""
        runs = {run.container.name: run for run in self.all}
        for one in found:
            if (run := runs.get(one.name)) is not None:
                run.previous, run.process, run.attempt = run.process, one.process, one.attempt
        statuses = {status.name: status for status in self.pod.all_container_statuses}
        for run in self.all:
            status = statuses.get(run.container.name)
            if run.process is None and status is not None:
                self._remember(run, status)
            elif run.process is not None and run.running:
                is_same = status is not None and status.container_id == f"tonnage://{run.process.id}"
                self._probe(run, known=_known(status if is_same else None))

    def orphans(self, found: list[FoundProcess]) -> None:
        """Take over containers of a pod whose object is deleted, to watch their end."""
        self.inits, self.ephemerals = [], []
        self.mains = [Run(Container(name=one.name), process=one.process) for one in found]

    def exited(self) -> None:
        """A process ended."""
        self._exited.set()
        self.woken()

    async def wait(self) -> None:
        """Wait until no process runs."""
        while self.alive:
            self._exited.clear()
            await self._exited.wait()

    def _remember(self, run: Run, status: ContainerStatus) -> None:
        """A container that the status knows and the machine does not."""
        if (terminated := status.state.terminated) is not None:
            ended = Ended(int(terminated.get("exitCode", 0)), self.clock.time(), str(terminated.get("reason", "")))
        elif status.state.running is not None:
            text = "The container could not be located when the kubelet started again"
            ended = Ended(137, self.clock.time(), UNKNOWN, text)
        else:
            return
        mark = f"{run.container.name}/{status.restart_count}"
        run.process = LostProcess(mark, ended, image_id=status.image_id)
        run.attempt = status.restart_count

    async def sync(self, volumes: Mapping[str, Mounted]) -> float | None:
        """Start what should run; returns the seconds until the next sync, None to wait for a container's end."""
        self._stop_failed()
        for run in self.ephemerals:  # first: a person looks into a pod whose init containers fail
            if run.ended is None:
                await self._ensure(run, volumes)
        for run in self.inits:
            if not await self._sync_init(run, volumes):
                return None if self.failed is not None else self._next()
        for run in self.mains:
            if run.ended is None or self.restarts(run):
                await self._ensure(run, volumes)
                if run.starting:
                    break  # those after it wait for its hook
        return self._next()

    async def _sync_init(self, run: Run, volumes: Mapping[str, Mounted]) -> bool:
        """Start an init container if it should run; whether those after it may start."""
        if run.sidecar:
            await self._ensure(run, volumes)
            return run.started
        if run.running or run.succeeded:
            return run.succeeded
        if run.ended is not None and self._policy(run) == "Never":
            self.failed = run
            return False
        await self._ensure(run, volumes)
        return run.succeeded

    def restarts(self, run: Run) -> bool:
        """Whether an ended container is started again."""
        if self.finishing or run.ephemeral:
            return False
        policy = self._policy(run)
        if run.init and not run.sidecar:
            return policy != "Never" and run.ended is not None and run.ended.code != 0
        return policy == "Always" or (policy == "OnFailure" and run.ended is not None and run.ended.code != 0)

    def _policy(self, run: Run) -> str:
        """When it is started again: as it says itself, else as its pod does."""
        return run.container.restart_policy or self.pod.spec.restart_policy

    def _next(self) -> float | None:
        """When the first waiting container is due."""
        waits = [w for run in self.all if (w := self._wait(run)) is not None]
        return min(waits, default=None)

    def _wait(self, run: Run) -> float | None:
        if run.running or run.not_before <= 0 or (run.ended is not None and not self.restarts(run)):
            return None
        left = run.not_before - self.clock.monotonic()
        return max(left, 0.01) if run.waiting[0] in _RETRIED else None

    async def _ensure(self, run: Run, volumes: Mapping[str, Mounted]) -> None:
        """Start a container that does not run, when its time has come."""
        if run.running:
            return
        now = self.clock.monotonic()
        if (ended := run.ended) is not None and self._is_new_end(run):
            wait = run.fail(now)
            if wait > 0:
                self._crash_loop(run, wait, ended)
        if now < run.not_before:
            return
        await self._start(run, volumes)

    def _is_new_end(self, run: Run) -> bool:
        """Whether this end has not been counted yet."""
        assert run.process is not None
        mark = run.process.id
        if mark in self._counted:
            return False
        self._counted.add(mark)
        return True

    def _crash_loop(self, run: Run, wait: float, ended: Ended) -> None:
        name = run.container.name
        what = f"restarting failed container={name} pod={self.pod.metadata.name}"
        run.waiting = CRASH_LOOP, f"back-off {_duration(wait)} {what} (exit code {ended.code})"
        self.emit("Warning", "BackOff", f"Back-off {what}")

    async def _start(self, run: Run, volumes: Mapping[str, Mounted]) -> None:
        name = run.container.name
        attempt = run.attempt + 1 if run.started_once else run.attempt
        try:
            environment = await self.environment(self.pod, run.container)
        except TonnageError as failure:
            self._reject(run, CONFIG_ERROR, failure)
            return
        spec = ContainerSpec(self.pod, run.container, attempt, volumes, environment)
        try:
            process = await self.runtime.start(spec, self.exited)
        except ImageMissingError as failure:
            self._reject_image(run, failure)
            return
        except TonnageError as failure:
            self._reject(run, CREATE_ERROR if isinstance(failure, HostError) else CONFIG_ERROR, failure)
            return
        if not isinstance(run.process, LostProcess):
            run.previous = run.process or run.previous
        run.process, run.attempt = process, attempt
        if process.image_id:
            text = f'Container image "{run.container.image}" already present on machine and can be accessed by the pod'
            self.emit("Normal", "Pulled", text)
        elif self.runtime.note and not self._noted:
            self.emit("Normal", "ImageNotPulled", self.runtime.note)
            self._noted = True
        if self.runtime.name != "none":
            self.emit("Normal", "Started", f"Started container {name}")
        if run.ephemeral:  # what the others ask for in vain is reported when the pod starts
            self._report_ephemeral(run.container)
        self._begin(run)

    def _report_ephemeral(self, container: Container) -> None:
        """Tell what has no effect of a container that was added to the running pod."""
        name = container.name
        if target := container.target_container_name:
            text = f"container {name} does not see the processes of container {target}: not done by this kubelet"
            self.emit("Warning", "NotSupported", text)
        for text in pod_fields.ephemeral_warnings(to_builtins(container)):
            self.emit("Warning", "NotSupported", f"container {name}: {text}")

    def _begin(self, run: Run) -> None:
        """After the start of a process: its hook, then its probes."""
        run.probes, run.stopping, run.stop_at = None, None, 0.0
        hook = (run.container.lifecycle or {}).get("postStart")
        if hook and self.prober is not None and run.running:
            run.starting = True
            self.prober.tasks.start(self._post_start(run, hook), "postStart")
        else:
            self._probe(run)

    async def _post_start(self, run: Run, hook: Mapping[str, Any]) -> None:
        where = self._where(run)
        try:
            await handlers.hook(self.runtime, where, hook)
        except TonnageError as failure:
            log.info("hook failed pod=%s hook=postStart error=%s", self.pod.key, failure)
            self.emit("Warning", "FailedPostStartHook", "PostStartHook failed")
            if run.running:
                self._stop(run, self._grace, "FailedPostStartHook")
        finally:
            run.starting = False
        self._probe(run)
        self.woken()

    def _probe(self, run: Run, *, known: dict[ProbeKind, ProbeResult] | None = None) -> None:
        """Begin to probe a container. known: what an earlier kubelet knew of it."""
        if self.prober is not None and run.running and ProbeSpec.of(run.container):
            run.probes = self.prober.add(self._where(run), lambda _: self.woken(), self.emit, known=known)

    def _where(self, run: Run) -> RunningContainer:
        assert run.process is not None
        return RunningContainer(self.pod, run.container, run.process)

    @property
    def _grace(self) -> float:
        grace = self.pod.spec.termination_grace_period_seconds
        return float(DEFAULT_GRACE if grace is None else grace)

    def _stop_failed(self) -> None:
        """Stop containers whose probes say that they must be restarted."""
        for run in self.all:
            spec = run.probes.failed() if run.probes is not None and run.running else None
            if spec is not None:
                text = f"Container {run.container.name} failed {spec.kind.word.lower()} probe"
                if self._policy(run) != "Never":
                    text += ", will be restarted"
                self._stop(run, self._grace if spec.grace is None else spec.grace, text)

    def _reject(self, run: Run, reason: str, failure: TonnageError) -> None:
        run.waiting = reason, str(failure)
        self._count(run)
        self.emit("Warning", "Failed", f"Error: {failure}")

    def _reject_image(self, run: Run, failure: ImageMissingError) -> None:
        """An image that must be there is not (pkg/kubelet/images/image_manager.go)."""
        reason, text = failure.reason, str(failure)
        if reason == PULL_ERROR and run.waiting[0] in (PULL_ERROR, PULL_BACK_OFF):
            reason, back_off = PULL_BACK_OFF, f'Back-off pulling image "{run.container.image}"'
            run.waiting = reason, f"{back_off}: {PULL_ERROR}: {text}"
            self.emit("Normal", "BackOff", back_off)
        else:
            run.waiting = reason, text
            self.emit("Warning", PULL_NEVER if reason == PULL_NEVER else "Failed", text[0].upper() + text[1:])
        self._count(run)
        self.emit("Warning", "Failed", f"Error: {reason}")

    def _count(self, run: Run) -> None:
        now = self.clock.monotonic()
        if run.fail(now) == 0:
            run.fail(now)  # what cannot be started is not tried again at once

    def stop(self, grace: float) -> bool:
        """Stop all, sidecars last; returns at once whether all have ended. Idempotent."""
        self.finishing = True
        for run in self.all:
            if run.probes is not None:
                run.probes.is_over = True
        for group in ([run for run in self.all if not run.sidecar], self.inits):
            running = [run for run in group if run.running]
            for run in running:
                self._stop(run, grace)
            if any(run.running for run in running):
                break
        return not self.alive

    def _stop(self, run: Run, grace: float, message: str = "") -> None:
        """Stop one container, with its preStop hook within the grace (seconds). A repetition may only shorten that."""
        assert run.process is not None
        mark, deadline = f"stop {run.process.id}", asyncio.get_running_loop().time() + grace
        is_first = mark not in self._counted
        if is_first:
            self._counted.add(mark)
            if self.runtime.name != "none":
                self.emit("Normal", "Killing", message or f"Stopping container {run.container.name}")
            hook = (run.container.lifecycle or {}).get("preStop")
            if hook and grace > 0 and self.prober is not None:
                run.stop_at = deadline
                run.stopping = self.prober.tasks.start(self._pre_stop(run, hook, grace), "preStop")
        if run.stopping is not None and not run.stopping.done():
            if deadline >= run.stop_at:
                return
            run.stopping.cancel()
        run.process.stop(grace)

    async def _pre_stop(self, run: Run, hook: Mapping[str, Any], grace: float) -> None:
        """Run the hook for at most grace seconds, then stop the process in what is left of them."""
        where = self._where(run)
        try:
            async with asyncio.timeout(grace):
                await handlers.hook(self.runtime, where, hook)
        except TimeoutError:
            log.info("hook not done within the grace pod=%s hook=preStop", self.pod.key)
        except TonnageError as failure:
            log.info("hook failed pod=%s hook=preStop error=%s", self.pod.key, failure)
            self.emit("Warning", "FailedPreStopHook", "PreStopHook failed")
        where.process.stop(max(run.stop_at - asyncio.get_running_loop().time(), _LEAST_GRACE))


def _known(status: ContainerStatus | None) -> dict[ProbeKind, ProbeResult]:
    """What the status says of a container's probes: a restart of the kubelet does not make it unready."""
    known = {}
    if status is not None and status.started:
        known[ProbeKind.STARTUP] = ProbeResult.SUCCESS
    if status is not None and status.ready:
        known[ProbeKind.READINESS] = ProbeResult.SUCCESS
    return known


def _duration(seconds: float) -> str:
    """As Go prints it: 10s, 1m20s, 5m0s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
