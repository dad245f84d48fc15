"""Eviction manager: enforces emptyDir.sizeLimit and limits.ephemeral-storage on running pods.

Only pods with such a limit are measured, each by a task of its own. A volume in memory needs no measuring: its file
system has the limit. Pods without a limit are measured only under disk pressure, when the pod that uses most is
evicted. Without pods nothing runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from tonnage.base.aio.clock import Clock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import TonnageError
from tonnage.kubernetes.api.pods import Container, Pod
from tonnage.kubernetes.api.quantity import Quantity, from_bytes
from tonnage_box.kubelet.containers.paths import CONFIG_MAP, DOWNWARD, EMPTY_DIR, Paths, component
from tonnage_box.kubelet.pods.usage import disk_usage

log = logging.getLogger(__name__)
EPHEMERAL = "ephemeral-storage"
_SHARE = 9  # so a pod with millions of files takes a tenth of a core at most
_THREADS = 2  # of their own: slow trees must not keep mounts waiting
_GIVEN = 256 << 10  # bytes: what the kubelet itself puts into a container's root and folder
_PRESSURE_PART, _PRESSURE_MOST = 10, 1 << 30
"""There is disk pressure when less than a tenth of the disk is available, and less than 1Gi."""
WORTH = 64 << 20
"""Bytes: evicting a pod that uses less does not help."""
_ALL = 1 << 62

T = TypeVar("T")
Measure = Callable[[str, int], int]
"""Bytes below a folder; it may stop above the second argument."""


def limit(container: Container) -> Quantity | None:
    """A container's limit of ephemeral storage. Raises: InvalidError."""
    text = container.resources.limits.get(EPHEMERAL)
    return None if text is None else Quantity.parse(text)


def is_limited(pod: Pod) -> bool:
    """Whether there is anything to measure. Raises: InvalidError."""
    return bool(_limited_volumes(pod)) or any(limit(container) is not None for container in pod.all_containers)


def _limited_volumes(pod: Pod) -> list[tuple[str, Quantity]]:
    found = []
    for volume in pod.spec.volumes:
        source = volume.empty_dir
        if source is not None and source.medium == "" and source.size_limit:
            most = Quantity.parse(source.size_limit)
            if most.nanos > 0:  # 0 means no limit
                found.append((volume.name, most))
    return found


def _pod_limit(pod: Pod) -> Quantity | None:
    """The sum over containers, or what one init container has more (component-helpers, PodLimits)."""
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    inits = [c for c in pod.spec.init_containers if c.restart_policy != "Always"]
    together = [found for c in (*pod.spec.containers, *sidecars) if (found := limit(c)) is not None]
    single = [found for c in inits if (found := limit(c)) is not None]
    if not together and not single:
        return None
    total = Quantity(sum(q.nanos for q in together), together[0].form if together else single[0].form)
    return max([total, *single], key=lambda q: q.nanos)


def excess(pod: Pod, paths: Paths, measure: Measure) -> str:
    """The exceeded limit of a pod, in the kubelet's words; "" for none. Blocking. Raises: OSError."""
    uid = pod.metadata.uid
    for name, size in _limited_volumes(pod):
        if measure(paths.volume(uid, EMPTY_DIR, name), size.value) > size.value:
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{size}". '
    total = _pod_limit(pod)
    if total is None:
        return ""
    used, volumes = usage(pod, paths, measure, total.value)
    if sum(used.values()) + volumes > total.value:
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
    for container in pod.spec.containers:
        own = limit(container)
        if own is not None and used[container.name] > own.value:
            return f'Container {container.name} exceeded its local ephemeral storage limit "{own}". '
    return ""


def usage(pod: Pod, paths: Paths, measure: Measure, most: int) -> tuple[dict[str, int], int]:
    """Bytes of each container's root and logs, and of all volumes on disk; counting may stop above most each time."""
    uid = pod.metadata.uid
    used = {c.name: _container(pod, c, paths, measure, most) for c in pod.all_containers}
    volumes = [paths.volume(uid, EMPTY_DIR, v.name) for v in pod.spec.volumes if v.empty_dir and not v.empty_dir.medium]
    volumes += [paths.volume(uid, CONFIG_MAP, v.name) for v in pod.spec.volumes if v.config_map]
    volumes += [paths.volume(uid, DOWNWARD, v.name) for v in pod.spec.volumes if v.downward_api]
    return used, sum(measure(path, most) for path in volumes)


@dataclass(frozen=True)
class DiskSpace:
    """Available bytes and total bytes of a disk, and the threshold of disk pressure."""

    available: int
    total: int
    threshold: int


def disk_space(root: str | os.PathLike[str]) -> DiskSpace:
    """The space on the disk of a folder. Raises: OSError."""
    found = os.statvfs(root)
    total = found.f_blocks * found.f_frsize
    return DiskSpace(found.f_bavail * found.f_frsize, total, min(total // _PRESSURE_PART, _PRESSURE_MOST))


def pressure(root: str) -> tuple[int, int] | None:
    """Bytes that should be available on the disk of a folder, and that are; None when enough are. Raises: OSError."""
    space = disk_space(root)
    return (space.threshold, space.available) if space.available < space.threshold else None


def worst(used: Mapping[str, tuple[dict[str, int], int]], worth: int = WORTH) -> str:
    """The uid of the pod whose eviction frees most; "" when none is worth it. used: as usage() says, by uid."""
    totals = {uid: sum(containers.values()) + volumes for uid, (containers, volumes) in used.items()}
    uid = max(totals, key=totals.__getitem__, default="")
    return uid if uid and totals[uid] >= worth else ""


def low(threshold: int, available: int, containers: Mapping[str, int]) -> str:
    """Why a pod is evicted under disk pressure, in the kubelet's words."""
    amounts = f"Threshold quantity: {from_bytes(threshold)}, available: {available >> 10}Ki. "
    each = "".join(
        f"Container {name} was using {size >> 10}Ki, request is 0, has larger consumption of {EPHEMERAL}. "
        for name, size in containers.items()
        if size >> 10
    )
    return f"The node was low on resource: {EPHEMERAL}. {amounts}{each}"


def _container(pod: Pod, container: Container, paths: Paths, measure: Measure, most: int) -> int:
    """Bytes of a container's writable root and logs."""
    meta, name = pod.metadata, component(container.name)
    root = measure(f"{paths.containers(meta.uid)}/{name}", most + _GIVEN)
    logs = measure(f"{paths.pod_logs(meta.namespace, meta.name, meta.uid)}/{name}", most)
    return max(root - _GIVEN, 0) + logs


@dataclass
class EvictionManager:
    """Measures pods while they run. evict(uid, message) is called for each pod to evict."""

    paths: Paths
    clock: Clock
    evict: Callable[[str, str], None]
    period: float = 10.0
    """Seconds between two measurements of a pod, the kubelet's own; more where measuring takes long."""
    worth: int = WORTH
    _pods: dict[str, Pod] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _guard: asyncio.Task[None] | None = None
    _threads: ThreadPoolExecutor | None = None
    _closing: threading.Event = field(default_factory=threading.Event)
    _background: Background = field(default_factory=lambda: Background("evictions"))

    def hold(self, pod: Pod) -> None:
        """Begin to measure a pod if it has a limit, and to watch the disk. Idempotent."""
        uid = pod.metadata.uid
        if uid in self._pods or self._closing.is_set():
            return
        self._pods[uid] = pod
        if self._guard is None or self._guard.done():
            self._guard = self._background.start(self._relieve(), "guard the disk")
        try:
            if not is_limited(pod):
                return
        except TonnageError as failure:
            log.warning("a limit of a pod cannot be read pod=%s error=%s", pod.key, failure)
            return
        self._tasks[uid] = self._background.start(self._watch(pod), f"measure {pod.key}")

    def release(self, uid: str) -> None:
        """End measuring a pod. Idempotent."""
        self._pods.pop(uid, None)
        if (task := self._tasks.pop(uid, None)) is not None:
            task.cancel()
        if not self._pods and self._guard is not None:
            self._guard.cancel()
            self._guard = None

    async def close(self) -> None:
        """End all. Idempotent."""
        self._closing.set()
        self._tasks.clear()
        self._pods.clear()
        await self._background.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _watch(self, pod: Pod) -> None:
        wait = self.period
        while True:
            await self.clock.sleep(wait)
            began = self.clock.monotonic()
            try:
                message = await self._measure(excess, pod, self.paths)
            except (OSError, TonnageError) as failure:
                log.warning("storage of a pod not measured pod=%s error=%s", pod.key, failure)
                message = ""
            if message:
                self.evict(pod.metadata.uid, message)
                return
            wait = max(self.period, _SHARE * (self.clock.monotonic() - began))

    async def _relieve(self) -> None:
        """Under disk pressure evict the pod that uses most, one at a time."""
        while True:
            await self.clock.sleep(self.period)
            try:
                if (found := pressure(self.paths.root)) is None:
                    continue
                used = {}
                for uid, pod in list(self._pods.items()):
                    used[uid] = await self._measure(usage, pod, self.paths, _ALL)
            except (OSError, TonnageError) as failure:
                log.warning("disk pressure not relieved error=%s", failure)
                continue
            if uid := worst({uid: one for uid, one in used.items() if uid in self._pods}, self.worth):
                self.evict(uid, low(*found, used[uid][0]))

    async def _measure(self, work: Callable[..., T], pod: Pod, paths: Paths, *more: int) -> T:
        """Do work in a thread; its measuring of folders ends when the caller is cancelled."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "measure")
        ended = threading.Event()

        def measure(path: str, most: int) -> int:
            return disk_usage(path, limit=most, cancelled=lambda: ended.is_set() or self._closing.is_set())

        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work, pod, paths, measure, *more)
        finally:
            ended.set()
