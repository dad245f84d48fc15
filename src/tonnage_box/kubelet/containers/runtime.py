"""Container runtime: the interface, and the runtime that runs no processes.

The other implementation uses bubblewrap. A runtime knows single containers; their order, restarts and statuses are
decided by the pod's Containers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tonnage.base.aio.clock import Clock, parse_rfc3339
from tonnage.kubernetes.api.pods import Container, Pod
from tonnage_box.kubelet.images.node_images import NO_IMAGES, NodeImages

OnExit = Callable[[], None]


@dataclass(frozen=True)
class Ended:
    """How a container ended. code: as a shell reports it (128 + signal); at: seconds since the epoch."""

    code: int
    at: float
    reason: str = ""
    message: str = ""

    @property
    def why(self) -> str:
        """The reason of the terminated state."""
        return self.reason or ("Completed" if self.code == 0 else "Error")


@dataclass(frozen=True)
class Mounted:
    """A mounted volume of a pod. path: a folder of this machine, or a device when block.

    has_statfs: the numbers of its file system are those of the volume. is_written_here: the kubelet writes its files.
    """

    path: str
    block: bool = False
    read_only: bool = False
    claim: str = ""
    driver: str = ""
    has_statfs: bool = False
    is_written_here: bool = False


@dataclass(frozen=True)
class ContainerSpec:
    """A container to start. attempt: counts its starts from 0; environment: complete and expanded."""

    pod: Pod
    container: Container
    attempt: int = 0
    volumes: Mapping[str, Mounted] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class Process(Protocol):
    """A container that was started."""

    @property
    def id(self) -> str:
        """Unique for ever; part of the containerID."""

    @property
    def image_id(self) -> str:
        """The image that it runs from, by its digest; "" for none."""

    @property
    def started(self) -> float:
        """Seconds since the epoch."""

    @property
    def ended(self) -> Ended | None:
        """None while it runs. on_exit is called after this has changed."""

    def stop(self, grace: float) -> None:
        """Ask it to end, and end it after grace seconds. Returns at once; a repetition may only shorten the wait."""


@dataclass
class LostProcess:
    """A process that only the pod's status knows: it ended while no kubelet ran, and left nothing."""

    id: str
    ended: Ended
    started: float = 0.0
    image_id: str = ""

    def stop(self, grace: float) -> None:
        """Nothing runs."""


@dataclass(frozen=True)
class FoundProcess:
    """A container that an earlier kubelet started: still running, or ended."""

    name: str
    attempt: int
    process: Process


@dataclass(frozen=True)
class RunningContainer:
    """A container that runs, to run a command in."""

    pod: Pod
    container: Container
    process: Process


class Runtime(Protocol):
    """Runs containers."""

    @property
    def name(self) -> str:
        """none, bwrap."""

    @property
    def note(self) -> str:
        """What a user should know of images under this runtime; "" for nothing. Emitted once a pod, as an Event."""

    @property
    def images(self) -> NodeImages:
        """Images of containers and of image volumes."""

    async def prepare(self, uid: str) -> None:
        """Make what a pod's volumes may need before its containers: its cgroup, which limits their IO. Idempotent.

        clean() undoes it. A machine that has no such thing is no failure: a volume that needs it says so.
        """

    async def start(self, spec: ContainerSpec, on_exit: OnExit) -> Process:
        """Start a container. Raises: UnsupportedError, InvalidError (what it asks for), HostError."""

    async def run(
        self, where: RunningContainer, argv: Sequence[str], *, timeout: float | None, limit: int
    ) -> tuple[int, bytes]:
        """Run a command in a running container: its exit code and the first `limit` bytes that it prints.

        timeout: seconds after which it is killed. Raises: TimeoutError, HostError (not running), InvalidError.
        """

    async def adopt(self, uid: str, pod: Pod | None, on_exit: OnExit) -> list[FoundProcess]:
        """Find the containers of a pod after a start of the kubelet; the last attempt of each comes last."""

    async def release(self, uid: str) -> None:
        """Take down what keeps the volumes of a pod busy after its containers have ended. Idempotent."""

    async def clean(self, uid: str) -> None:
        """Remove what the containers of a pod left behind, after release(); nothing waits for it. Idempotent."""

    async def forget(self, uid: str) -> None:
        """Remove all files of a pod, logs too. Idempotent."""

    async def close(self) -> None:
        """Stop watching; containers run on."""


@dataclass
class Pretended:
    """A container without a process."""

    id: str
    started: float
    _on_exit: OnExit
    _clock: Clock
    ended: Ended | None = None
    image_id: str = ""

    def stop(self, grace: float) -> None:
        """Ends at once, well."""
        if self.ended is None:
            self.ended = Ended(0, self._clock.time())
            self._on_exit()


class NoneRuntime:
    """Reports containers as running without starting processes. Init containers end at once."""

    name = "none"
    note = ""

    def __init__(self, clock: Clock, images: NodeImages = NO_IMAGES) -> None:
        self._clock = clock
        self.images = images

    async def prepare(self, uid: str) -> None:
        """Nothing will run."""

    async def start(self, spec: ContainerSpec, on_exit: OnExit) -> Pretended:
        """See Runtime."""
        now = self._clock.time()
        name = f"{spec.pod.metadata.uid}-{spec.container.name}-{spec.attempt}"
        process = Pretended(name, now, on_exit, self._clock)
        init = spec.container in spec.pod.spec.init_containers
        if init and spec.container.restart_policy != "Always":
            process.ended = Ended(0, now)
        return process

    async def run(
        self, where: RunningContainer, argv: Sequence[str], *, timeout: float | None, limit: int
    ) -> tuple[int, bytes]:
        """Nothing runs, and nothing fails."""
        return 0, b""

    async def adopt(self, uid: str, pod: Pod | None, on_exit: OnExit) -> list[FoundProcess]:
        """Trust the API server's status."""
        if pod is None:
            return []
        found = []
        for status in pod.all_container_statuses:
            state = status.state.running or status.state.terminated
            if state is None:
                continue
            name = f"{uid}-{status.name}-{status.restart_count}"
            process = Pretended(name, _seconds(state.get("startedAt"), self._clock), on_exit, self._clock)
            if status.state.terminated is not None:
                at = _seconds(state.get("finishedAt"), self._clock)
                process.ended = Ended(int(state.get("exitCode", 0)), at, str(state.get("reason", "")))
            found.append(FoundProcess(status.name, status.restart_count, process))
        return found

    async def release(self, uid: str) -> None:
        """Nothing was made."""

    async def clean(self, uid: str) -> None:
        """Nothing was made."""

    async def forget(self, uid: str) -> None:
        """Nothing was made."""

    async def close(self) -> None:
        """Nothing is watched."""


def _seconds(text: object, clock: Clock) -> float:
    try:
        return parse_rfc3339(str(text))
    except ValueError:
        return clock.time()
