"""Pod workers: volumes, containers and status of pods, and their tear-down (docs/reference/kubernetes/kubelet.md).

Level-based: a pod's key is its uid; reconcile(uid) compares the API object with what runs here, and does the next step.
A pod's object is deleted only after its containers have ended and its volumes are unmounted. A pod whose object is gone
(forced deletion, or while this kubelet was down) is torn down all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from tonnage.base.aio.backoff import Backoff
from tonnage.base.aio.clock import Clock, rfc3339, time_of
from tonnage.base.errors import ApiConflictError, ApiNotFoundError, NotFoundError, TonnageError
from tonnage.kubernetes.api.core import Node
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.meta import to_builtins
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client, refer
from tonnage.kubernetes.client.controller import Controller
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informer
from tonnage.provisioning.claims.node_fit import Suitability
from tonnage_box.api import pod_fields
from tonnage_box.kubelet.containers.containers import DEFAULT_GRACE, Containers
from tonnage_box.kubelet.containers.env import Environment
from tonnage_box.kubelet.containers.paths import Paths
from tonnage_box.kubelet.containers.runtime import Mounted, Runtime
from tonnage_box.kubelet.folder import names
from tonnage_box.kubelet.pods import status as statuses
from tonnage_box.kubelet.pods.eviction import EvictionManager
from tonnage_box.kubelet.probes.prober import Prober
from tonnage_box.kubelet.volumes.sources import ObjectSources
from tonnage_box.kubelet.volumes.volumes import VolumeManager, VolumesError

log = logging.getLogger(__name__)
SLOW = 1.0
"""Seconds of mounting after which the pod is shown as ContainerCreating."""
QUIET = 1.0
"""Seconds between looks meanwhile; usually a wake comes earlier."""
ANY_DRIVER = "driver"
_WORKERS = 1024
_AT_ONCE = 16
_STOP_TRIES, _STOP_PAUSE = 5, 0.2
_TOO_LONG = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
_WRONG_NODE = pod_fields.PodRejection(
    "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
)
_EVICTION_GRACE = 1.0  # seconds: what the kubelet gives a pod that is above a limit


@dataclass(frozen=True)
class KubeletParts:
    """Parts of one kubelet that its pods share."""

    client: Client
    events: EventRecorder
    clock: Clock
    paths: Paths
    runtime: Runtime
    volumes: VolumeManager
    sources: ObjectSources
    own_node: Callable[[], Node | None]
    """The Node as it was last seen, None before the first time."""


@dataclass
class PodRecord:
    """State of one pod. pod None: its object is deleted."""

    uid: str
    pod: Pod | None
    since: float
    containers: Containers | None = None
    volumes: dict[str, Mounted] | None = None
    published: float = 0.0
    """When its volumes were published, by the monotonic clock."""
    written: statuses.Status = field(default_factory=dict)
    started: str = ""
    failure: statuses.PodFailure | None = None
    """Set once."""


class PodWorkers:
    """Works on all pods of one node."""

    patience: float = 10.0
    """Seconds for which a volume that waits for somebody else is not reported."""
    republish_every: float = 60.0
    """Seconds between two publishes of a volume whose driver has requiresRepublish."""

    def __init__(self, parts: KubeletParts, pods: Informer[Pod]) -> None:
        self._client, self._events, self._clock = parts.client, parts.events, parts.clock
        self._paths, self._runtime, self._volumes = parts.paths, parts.runtime, parts.volumes
        self._own_node = parts.own_node
        self._address = parts.sources.node.address
        self._environment = Environment(parts.sources)
        self._records: dict[str, PodRecord] = {}
        self._waiting: dict[str, set[str]] = {}
        """uids of pods by what they wait for: `claim <ns>/<name>`, `driver <name>`."""
        # Wakes during mounts: topic -> number, so that none is lost between check and wait.
        self._heard: dict[str, int] = {}
        self._wakes = 0
        self._mounts = 0
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._stopping = False
        self.prober = Prober(parts.runtime)
        self.evictions = EvictionManager(parts.paths, parts.clock, self._above_limit)
        self.controller: Controller[str] = Controller(
            "pods", self.reconcile, workers=_WORKERS, backoff=Backoff(initial=0.5, maximum=122.0)
        )
        self.controller.watch(pods, self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        """Which pods a change is about: the same name may come again as another pod."""
        replaced = old is not None and (new is None or new.metadata.uid != old.metadata.uid)
        if replaced and old is not None and (gone := self._records.get(old.metadata.uid)) is not None:
            gone.pod = None
            yield gone.uid
        if new is not None:
            uid = new.metadata.uid
            record = self._records.get(uid)
            if record is None:
                self._records[uid] = PodRecord(uid, new, self._clock.monotonic())
                yield uid
                return
            before, record.pod = record.pod, new
            # The pod's spec does not change but for these, and its status is our own writing.
            if before is None or _concerns(before, new, record):
                yield uid

    def recover(self) -> None:
        """Learn of pods from disk, also of deleted ones. Call it before run(), with the informer synced or not."""
        found = names(self._paths.pods)
        self._volumes.csi.recover(found)
        for uid in found:
            if uid not in self._records:
                self._records[uid] = PodRecord(uid, None, self._clock.monotonic())
            self.controller.enqueue(uid)

    async def reconcile(self, uid: str) -> float | None:
        """Do the next step for one pod."""
        record = self._records.get(uid)
        if record is None:
            return None
        containers = record.containers or await self._begin(record)
        pod = record.pod
        if pod is None:
            await self._vanish(record, containers)
        elif pod.metadata.deleting:
            await self._end(record, pod, containers)
        elif pod.terminated:
            await self._rest(record, pod, containers)
        elif not self._stopping:
            return await self._go(record, pod, containers)
        return None

    async def _begin(self, record: PodRecord) -> Containers:
        """Find what an earlier kubelet started for the pod."""
        pod = record.pod or Pod()
        uid = record.uid
        containers = Containers(
            pod,
            self._runtime,
            self._clock,
            self._environment.of,
            lambda kind, reason, message: self._emit(record, kind, reason, message),
            lambda: self.controller.enqueue(uid),
            self.prober,
        )
        found = await self._runtime.adopt(uid, record.pod, containers.exited)
        if record.pod is not None:
            containers.adopt(found)
        else:
            containers.orphans(found)
        record.containers = containers
        return containers

    async def _go(self, record: PodRecord, pod: Pod, containers: Containers) -> float | None:
        """Towards Running: volumes, then containers, then one status."""
        self._judge(record, pod, containers)
        if record.failure is not None:
            await self._fail(record, pod, containers)
            return None
        if containers.finishing:  # over, but the watch has not shown our own status yet
            await self._write(record)
            await self._rest(record, pod, containers)
            return None
        if not record.started and (left_out := not_done(pod)):
            self._emit(record, "Warning", "NotSupported", f"not done by this kubelet: {'; '.join(left_out)}")
        record.started = record.started or pod.status.start_time or rfc3339(self._clock.time())
        if record.volumes is None:
            if not await self._bring(record, pod):
                return QUIET
        elif self._volumes.is_republished(pod):
            await self._republish(record, pod)
        assert record.volumes is not None
        containers.add_ephemeral(pod)
        after = await containers.sync(record.volumes)
        if self._runtime.name != "none":
            self.evictions.hold(pod)
        over = containers.over  # an end during the write causes another reconcile and another status
        await self._write(record)
        if over:
            await self._rest(record, pod, containers)
        elif self._volumes.is_republished(pod):
            again = record.published + self.republish_every - self._clock.monotonic()
            after = max(again if after is None else min(after, again), 0.01)
        return after

    async def _bring(self, record: PodRecord, pod: Pod) -> bool:
        """Mount all volumes; False while they wait for others, which is not yet reported. Raises: VolumesError."""
        before = self._wakes
        try:
            record.volumes = await self._mount(record, pod)
        except VolumesError as failure:
            self._wait_for(record, failure.waits, before)
            reported = self._report(record, failure)
            await self._creating(record)
            if not reported:
                return False
            raise
        self._forget_waits(record)
        record.published = self._clock.monotonic()
        return True

    async def _republish(self, record: PodRecord, pod: Pod) -> None:
        """Publish volumes again when it is time; a failure is reported, and the pod runs on with what it has."""
        if self._clock.monotonic() - record.published < self.republish_every:
            return
        try:
            await self._volumes.republish(pod)
        except VolumesError as failure:
            for one in failure.failures.values():
                self._emit(record, "Warning", "FailedMount", str(one))
        record.published = self._clock.monotonic()

    def _above_limit(self, uid: str, message: str) -> None:
        """A pod uses more storage than it may."""
        record = self._records.get(uid)
        if record is None or record.failure is not None:
            return
        record.failure = statuses.PodFailure("Evicted", message)
        self._emit(record, "Warning", "Evicted", message)
        self.controller.enqueue(uid)

    def _judge(self, record: PodRecord, pod: Pod, containers: Containers) -> None:
        """Whether the pod may begin, and go on: else it is Failed."""
        if record.failure is not None or containers.finishing:
            return
        rejected = None if any(run.started_once for run in containers.all) else self._rejection(pod)
        if rejected is not None:
            self._emit(record, "Warning", rejected.reason, rejected.text)
            text = f"{pod_fields.REJECTED}{rejected.text}"
            record.failure = statuses.PodFailure(rejected.reason, text, is_rejected=True)
        elif (seconds := pod.spec.active_deadline_seconds) is not None:
            now = self._clock.time()
            began = time_of(record.started or pod.status.start_time)
            left = (now if began is None else began) + seconds - now
            if left > 0:
                self.controller.enqueue(record.uid, after=left)
            else:
                self._emit(record, "Normal", *_TOO_LONG)
                record.failure = statuses.PodFailure(*_TOO_LONG)

    def _rejection(self, pod: Pod) -> pod_fields.PodRejection | None:
        """Why the pod may not begin here: a kubelet asks again what the scheduler does, which nodeName passes by."""
        node = self._own_node()
        if node is not None and not Suitability(pod.spec).matches(node):
            return _WRONG_NODE
        return None if self._runtime.name == "none" else pod_fields.pod_rejection(to_builtins(pod.spec))

    async def _fail(self, record: PodRecord, pod: Pod, containers: Containers) -> None:
        """End the containers, then mark the pod Failed; its object stays. Resumed after a restart of the kubelet."""
        is_late = record.failure is not None and record.failure.reason == _TOO_LONG[0]
        if containers.stop(grace_of(pod) if is_late else _EVICTION_GRACE):
            await self._write(record)
            await self._down(record)

    async def _mount(self, record: PodRecord, pod: Pod) -> dict[str, Mounted]:
        """Mount all; when that takes long, say meanwhile that the pod is being created.

        Few pods mount at once, so that in a rush the first ones are done before the last ones begin; one that takes
        long no longer counts, so that a driver that hangs does not block the others.
        """
        if not pod.spec.volumes:
            return {}
        self._mounts += 1
        mounting: asyncio.Task[dict[str, Mounted]] | None = None
        try:
            async with self._slots:
                mounting = asyncio.ensure_future(self._volumes.mount(pod))
                await asyncio.wait([mounting], timeout=SLOW)
            if not mounting.done():
                await self._creating(record)
                await asyncio.wait([mounting])
            return mounting.result()
        finally:
            self._mounts -= 1
            if mounting is not None and not mounting.done():
                mounting.cancel()
                await asyncio.gather(mounting, return_exceptions=True)
            elif mounting is not None and not mounting.cancelled():
                mounting.exception()  # known, also when it ended while we are cancelled

    def _report(self, record: PodRecord, failure: VolumesError) -> bool:
        """Emit Events about volumes that do not mount.

        Returns False if the pod only waits for others, which is reported after a while.
        """
        waited = self._clock.monotonic() - record.since
        if failure.waiting and waited < self.patience:
            return False
        for name, one in failure.failures.items():
            text = str(one)
            if text.startswith("error processing PVC"):
                text = (
                    f"Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], "
                    f"failed to process volumes=[{name}]: {text}"
                )
            self._emit(record, "Warning", "FailedMount", text)
        return True

    def _wait_for(self, record: PodRecord, topics: Collection[str], before: int) -> None:
        """Be woken early by what the pod waits for; at once when that came after wake number before."""
        for topic in topics:
            self._waiting.setdefault(topic, set()).add(record.uid)
        if any(self._heard.get(topic, 0) > before for topic in topics):
            self.controller.enqueue(record.uid)

    def _forget_waits(self, record: PodRecord) -> None:
        for topic in [t for t, uids in self._waiting.items() if record.uid in uids]:
            self._waiting[topic].discard(record.uid)
            if not self._waiting[topic]:
                del self._waiting[topic]

    def wake(self, topic: str) -> None:
        """Reconcile the pods that wait for `claim <ns>/<name>` or `driver <name>`."""
        self._wakes += 1
        if not self._mounts:
            self._heard.clear()
        else:
            self._heard[topic] = self._wakes
        for uid in self._waiting.pop(topic, ()):
            self.controller.queue.forget(uid)
            self.controller.enqueue(uid)

    async def _write(self, record: PodRecord, *, volumes: bool = True) -> None:
        """Write the status if it differs from what is there."""
        pod = record.pod
        if pod is None or record.containers is None:
            return
        status = statuses.build(
            pod,
            record.containers,
            address=self._address,
            started=record.started or rfc3339(self._clock.time()),
            now=self._clock.time(),
            ready_volumes=volumes,
            failure=record.failure,
        )
        if status == record.written or statuses.same(pod, status):
            return
        try:
            name, namespace = pod.metadata.name, pod.metadata.namespace
            body = statuses.patch(status)
            await self._client.patch(PODS, name, body, namespace, subresource="status", uid=record.uid)
        except (
            ApiNotFoundError,
            ApiConflictError,
        ) as failure:  # the pod was deleted or replaced: the watch will show it
            log.debug("status not written pod=%s error=%s", pod.key, failure)
            return
        record.written = status

    async def _creating(self, record: PodRecord) -> None:
        """Say that volumes are awaited; not of a pod that runs, whose volumes are only looked at again."""
        if record.containers is not None and not any(run.running for run in record.containers.all):
            await self._write(record, volumes=False)

    async def _end(self, record: PodRecord, pod: Pod, containers: Containers) -> None:
        """Deletion was asked for: containers, volumes, then the object."""
        if not containers.stop(grace_of(pod)):
            return
        await self._down(record)
        if pod.metadata.finalizers and not pod.terminated:
            await self._write(record)  # the object outlives its deletion: it must not say Running
        meta = pod.metadata
        with suppress(ApiNotFoundError, ApiConflictError):
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)

    async def _vanish(self, record: PodRecord, containers: Containers) -> None:
        """The object is deleted: end everything at once and forget the pod."""
        if not containers.stop(0.0):
            return
        await self._down(record)
        await self._runtime.forget(record.uid)
        self._volumes.remove(record.uid)
        self._forget_waits(record)
        if record.pod is None:
            del self._records[record.uid]

    async def _rest(self, record: PodRecord, pod: Pod, containers: Containers) -> None:
        """Succeeded or Failed: nothing runs, volumes are unmounted, logs stay until the object is deleted."""
        if containers.stop(grace_of(pod)):
            await self._down(record)

    async def _down(self, record: PodRecord) -> None:
        """Unmount all. Events tell when that fails; the exception makes it be tried again, soon if a driver comes."""
        record.volumes = None
        self.evictions.release(record.uid)
        before = self._wakes
        self._mounts += 1
        try:
            await self._unmount(record.uid)
        except NotFoundError:  # the driver is not (yet) registered, as after a start
            self._wait_for(record, (ANY_DRIVER,), before)
            raise
        except TonnageError as failure:
            self._emit(record, "Warning", "FailedUnMount", f"UnmountVolume.TearDown failed: {failure}")
            raise
        finally:
            self._mounts -= 1

    async def _unmount(self, uid: str, *, keep_files: bool = False) -> None:
        """Unmount the volumes first, as others may wait for them; then remove what the containers left."""
        await self._runtime.release(uid)
        try:
            await self._volumes.unmount(uid, keep_files=keep_files)
        finally:
            await self._runtime.clean(uid)

    async def stop(self, *, grace: float) -> None:
        """The kubelet ends: stop all containers, take all mounts down, leave objects and data as they are.

        Waits for containers at most grace seconds before they are killed. Call it after run() was cancelled.
        """
        self._stopping = True
        await self.evictions.close()
        records = list(self._records.values())
        ends = []
        for record in records:
            containers = record.containers or await self._begin(record)
            containers.stop(grace)
            ends.append(self._stop(record, containers))
        await asyncio.gather(*ends)
        await self.prober.close()

    async def _stop(self, record: PodRecord, containers: Containers) -> None:
        await containers.wait()
        for left in range(_STOP_TRIES, 0, -1):
            try:
                await self._unmount(record.uid, keep_files=True)
            except TonnageError as failure:  # a call that we cancelled may still be under way at the driver
                level = logging.DEBUG if left > 1 else logging.WARNING
                log.log(level, "volumes not unmounted pod=%s error=%s", record.uid, failure)
                await self._clock.sleep(_STOP_PAUSE)
            else:
                return

    def _emit(self, record: PodRecord, kind: str, reason: str, message: str) -> None:
        if record.pod is not None:
            self._events.record(refer(PODS, record.pod), kind, reason, message)

    def pods(self) -> list[Pod]:
        """The pods of this node whose objects are there."""
        return [record.pod for record in self._records.values() if record.pod is not None]

    def find(self, namespace: str, name: str) -> PodRecord | None:
        """The record of a pod by its name, for logs."""
        key = f"{namespace}/{name}"
        return next((r for r in self._records.values() if r.pod is not None and r.pod.key == key), None)


def not_done(pod: Pod) -> list[str]:
    """Fields of a pod that this kubelet ignores, though the pod runs."""
    return pod_fields.warnings(to_builtins(pod.spec))


def grace_of(pod: Pod) -> float:
    """Seconds between SIGTERM and SIGKILL."""
    grace = pod.metadata.deletion_grace_period_seconds
    if grace is None:
        grace = pod.spec.termination_grace_period_seconds
    return float(DEFAULT_GRACE if grace is None else grace)


def _concerns(before: Pod, after: Pod, record: PodRecord) -> bool:
    old, new = before.metadata, after.metadata
    return (
        old.deletion_timestamp != new.deletion_timestamp
        or old.deletion_grace_period_seconds != new.deletion_grace_period_seconds
        or (new.deleting and old.finalizers != new.finalizers)
        or (after.spec.readiness_gates and before.status.conditions != after.status.conditions)
        or before.spec.active_deadline_seconds != after.spec.active_deadline_seconds
        or len(before.spec.ephemeral_containers) != len(after.spec.ephemeral_containers)
        or (after.terminated and not before.terminated and record.written.get("phase") != after.status.phase)
    )
