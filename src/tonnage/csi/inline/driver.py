"""The inline driver: runs one source for all volumes of a driver name. Used by its CSI services.

The life of a volume: record, fill, show, record, answer. A failed fill after the first answer leaves the content as it
is; unpublishing works without the source.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tonnage.base.aio.clock import Clock, RealClock
from tonnage.base.aio.tasks import Background, KeyedLocks, supervise
from tonnage.base.errors import (
    AlreadyExistsError,
    BusyError,
    ExhaustedError,
    HostError,
    InvalidError,
    NotFoundError,
    TonnageError,
    UnavailableError,
    host_errors,
)
from tonnage.base.observe import metrics
from tonnage.csi.inline.base import ClosableSource, Files, Filled, FillRequest, InlinePod, InlineSource, PodEvents
from tonnage.csi.inline.memory import InlineRecord, MemoryStore
from tonnage.csi.inline.timer import LONGEST_SLEEP, DueTimes, FillLimits, FillRate
from tonnage.csi.inline.trees import NoPools, TreePools, Trees
from tonnage.csi.inline.volume import InlinePhase, InlineRequest, InlineVolume, key_of
from tonnage.host import mount
from tonnage.host.descriptor import opened
from tonnage.kubernetes.api import names

log = logging.getLogger(__name__)
FAILED, RENEWED, STALE = "InlineFailed", "InlineRenewed", "InlineStale"
"""Reasons of Events on the pod."""
_CLOCK_SET = 5.0
"""Seconds by which wall clock and monotonic clock must part until the wall clock counts as set."""
FORGOTTEN = 3600.0
"""Seconds after which a volume that was asked for before the start is removed; the kubelet repeats within minutes."""
_RENEWED_EVERY = 24 * 3600.0
_TEMPORARY = (UnavailableError, ExhaustedError, BusyError)


@dataclass(frozen=True)
class InlineUsage:
    """Bytes and files of a volume, and why its content is stale, "" if it is not."""

    total: int
    used: int
    files: int
    max_files: int
    problem: str


@dataclass
class _State:
    volumes: dict[str, InlineVolume] = field(default_factory=dict)
    due: DueTimes = field(default_factory=DueTimes)
    renewed: dict[str, float] = field(default_factory=dict)
    offset: float | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class InlineDriver:
    """All volumes of one driver name. Call start(), then stop(); volumes and mounts stay.

    rate: of the node, shared by its drivers; None for one of its own.
    """

    fill_seconds = 100.0
    """Of one fill; the kubelet waits two minutes."""

    def __init__(
        self,
        name: str,
        source: InlineSource,
        store: MemoryStore,
        *,
        events: PodEvents = lambda pod, type_, reason, message: None,
        clock: Clock | None = None,
        pools: TreePools | None = None,
        rate: FillRate | None = None,
    ) -> None:
        self.name, self.source, self.store = name, source, store
        self._events, self._clock = events, clock or RealClock()
        self._trees = Trees(store.folder.parent / "trees", pools or NoPools())
        self._limits = FillLimits((rate or FillRate(self._clock)) if source.needs.asks else None)
        self._locks = KeyedLocks()
        self._tasks = Background(f"inline driver {name}")
        self._state = _State()

    async def start(self) -> None:
        """Mount the tmpfs, continue the volumes that are shown, start the timer. Raises: HostError."""
        await asyncio.to_thread(self.store.open)
        for record in await asyncio.to_thread(lambda: list(self.store.records())):
            try:
                await self._recover(record)
            except Exception as failure:  # one volume does not keep the others from being served
                log.error("inline volume not recovered volume=%s error=%s", record.handle, failure)
        self._measure()
        self._tasks.start(supervise(f"timer of {self.name}", self._run), "timer")

    async def stop(self) -> None:
        """Stop the timer and the source. Idempotent."""
        await self._tasks.close()
        if isinstance(self.source, ClosableSource):
            await self.source.close()

    async def _recover(self, record: InlineRecord) -> None:
        tree = record.tree()
        has_writes = tree is not None and tree.writable is not None
        was_shown = record.phase is InlinePhase.SHOWN
        if not was_shown or not (has_writes or await asyncio.to_thread(self._is_shown, record)):
            # A mount that was not recorded may lack its options: the next call makes it anew.
            await asyncio.to_thread(_unbind, record.target)
            if not was_shown and tree is None:  # the source may have asked somebody already: the next call goes on
                self._keep(InlineVolume(record.request(), due=self._clock.time() + FORGOTTEN))
            elif not has_writes:
                await asyncio.to_thread(self._remove, record.key)
            return  # what a pod has written stays until it is unpublished
        if tree is not None:
            self._trees.adopt(record.key, tree)
        filled: Filled = tree if tree is not None else await asyncio.to_thread(self.store.read, record.key)
        volume = InlineVolume(
            record.request(), InlinePhase.SHOWN, filled, record.due, error=record.error, stale=record.stale
        )
        volume.reported = record.error if record.stale <= self._clock.time() else ""
        volume.failures, volume.lacks_tokens = int(bool(record.error)), record.hidden
        self._keep(volume)

    def _keep(self, volume: InlineVolume) -> None:
        key = volume.request.key
        self._state.volumes[key] = volume
        self._state.due.set(key, None if volume.lacks_tokens else volume.due)
        self._state.wake.set()

    def _is_shown(self, record: InlineRecord) -> bool:
        shown = self.store.data(record.key)
        tree = record.tree()
        if tree is not None:
            shown = self._trees.shown(record.key, tree)
        with suppress(OSError):
            return mount.is_mount(record.target) and os.path.samefile(record.target, shown)
        return False

    async def publish(self, request: InlineRequest) -> None:
        """Show a pod its volume. Idempotent: a volume that was shown is mounted again where it is not, and renewed.

        Raises: as fill(), at the first time only; AlreadyExistsError for another path; UnavailableError where a volume
        that was shown cannot be mounted again, which removes nothing; HostError.
        """
        async with self._locks.hold(request.key):
            volume = self._state.volumes.get(request.key)
            if volume is not None and volume.is_shown:
                volume.ask(request, now=self._clock.time(), refill=self.source.needs.republish)
                self._keep(volume)
                await self._show_again(volume)
                return
            if volume is not None and volume.request.target != request.target:
                volume.ask(request, now=self._clock.time(), refill=False)
            await self._publish(request, InlineVolume(request, filled=volume.filled if volume else None))

    async def _show_again(self, volume: InlineVolume) -> None:
        """Mount what the pod has had, where that mount is gone; the source is not needed."""
        record, filled = self._record(volume), volume.filled
        if filled is None or await asyncio.to_thread(self._is_shown, record):
            return
        try:
            shown = await self._made(volume.request, filled)
            await asyncio.to_thread(self._mount, volume.request, filled, shown)
            await asyncio.to_thread(self.store.save, record)
        except TonnageError as failure:  # after a final error, the kubelet would forget a volume that has data
            raise UnavailableError(f"inline volume {record.handle}: it cannot be shown again: {failure}") from failure

    async def _made(self, request: InlineRequest, filled: Filled) -> Path:
        """Make the content and return the folder to show. Idempotent."""
        if not isinstance(filled, Files):
            return await self._trees.make(request.key, filled, request.pod)
        await asyncio.to_thread(self.store.write, request.key, filled.content, _group(request, filled))
        return self.store.data(request.key)

    @staticmethod
    def _mount(request: InlineRequest, filled: Filled, shown: Path) -> None:
        writable = not isinstance(filled, Files) and filled.writable is not None
        _bind(str(shown), request.target, readonly=request.read_only or not writable)

    async def _publish(self, request: InlineRequest, volume: InlineVolume) -> None:
        try:
            self._check(request)
            await asyncio.to_thread(self.store.save, self._record(volume))
            self._keep(volume)
            filled = await self._fill(volume)
            await self._show(volume, filled)
        except Exception as failure:
            self._failed(volume, failure)
            if not isinstance(failure, _TEMPORARY):
                await self._take_away(request)
            raise
        finally:
            self._measure()

    async def _show(self, volume: InlineVolume, filled: Filled) -> None:
        request = volume.request
        record = self._record(volume).with_filled(filled)
        if not isinstance(filled, Files):
            await asyncio.to_thread(self.store.save, record)  # names the pool's volume before there is one
        shown = await self._made(request, filled)
        if not isinstance(filled, Files) and filled.writable is not None and request.pod.fs_group is not None:
            await asyncio.to_thread(_set_group, shown, request.pod.fs_group)
        volume.succeed(filled, now=self._clock.time(), chance=random.random())
        if not await asyncio.to_thread(self._is_shown, record):
            await asyncio.to_thread(self._mount, request, filled, shown)
        volume.show()
        await asyncio.to_thread(self.store.save, self._record(volume))
        self._keep(volume)

    def _check(self, request: InlineRequest) -> None:
        needs = self.source.needs
        if needs.read_only and not request.read_only:
            raise InvalidError(f"driver {self.name}: its volumes are read-only: set readOnly: true in the pod's volume")
        for key, value in request.attributes.items():
            rule = self.source.attributes.get(key)
            if rule is None and not needs.accepts(key):
                known = ", ".join(sorted(self.source.attributes)) or "none"
                raise InvalidError(f"volumeAttributes: {key[:80]!r} is unknown to driver {self.name}; it takes {known}")
            if rule is not None:
                try:
                    rule.check(value)
                except InvalidError as reason:
                    raise InvalidError(f"volumeAttributes: {key}: {reason}") from None
        if lacking := [audience for audience in needs.audiences if audience not in request.pod.tokens]:
            raise UnavailableError(
                f"driver {self.name}: the kubelet gave no token for audience {lacking[0]!r}: "
                "set tokenRequests in the CSIDriver object"
            )

    async def _fill(self, volume: InlineVolume) -> Filled:
        """Call the source. Raises: TonnageError only."""
        request = volume.request
        ask = FillRequest(
            request.pod,
            request.attributes,
            request.read_only,
            request.handle,
            self.store.source(request.key),
            volume.filled,
        )
        began, code = time.monotonic(), "ok"
        try:
            async with self._limits.hold(), asyncio.timeout(self.fill_seconds):
                filled = await self.source.fill(ask)
            self._check_size(filled)
        except TonnageError as failure:
            code = type(failure).__name__
            raise
        except TimeoutError:
            code = "timeout"
            raise UnavailableError(
                f"driver {self.name}: no content after {self.fill_seconds:.0f} s; repeating"
            ) from None
        except Exception as failure:  # its text may hold a secret
            code = "bug"
            log.error("source failed driver=%s error=%s at=%s", self.name, type(failure).__name__, _line(failure))
            raise HostError(f"driver {self.name}: its source failed: {type(failure).__name__}; see the log") from None
        finally:
            metrics.INLINE_FILLS.labels(self.name, code).inc()
            metrics.INLINE_FILL_SECONDS.labels(self.name).observe(time.monotonic() - began)
        return filled

    def _check_size(self, filled: Filled) -> None:
        if not isinstance(filled, Files):
            return
        needs, size = self.source.needs, sum(len(one.data) for one in filled.content.values())
        if size > needs.budget:
            raise ExhaustedError(f"driver {self.name}: content of {size} bytes; a volume has at most {needs.budget}")
        if len(filled.content) > needs.files:
            raise ExhaustedError(f"driver {self.name}: {len(filled.content)} files; a volume has at most {needs.files}")

    def _failed(self, volume: InlineVolume, failure: Exception) -> None:
        text, pod = str(failure), volume.request.pod
        first = volume.error != text
        volume.fail(text, now=self._clock.time())
        if volume.is_stale(self._clock.time()) and volume.reported != text:
            volume.reported = text
            self._events(pod, "Warning", STALE, f"volume of driver {self.name} keeps its old content: {text}")
        elif first and not volume.is_shown:
            self._events(pod, "Warning", FAILED, text)

    async def _take_away(self, request: InlineRequest) -> None:
        """Undo a publish that failed for good: the kubelet does not call NodeUnpublishVolume."""
        try:
            await self._undo(request.key, request.target)
        except Exception as failure:
            log.error("inline volume left after a failed publish volume=%s error=%r", request.handle, failure)

    async def unpublish(self, handle: str, target: str) -> None:
        """Unmount and remove a volume; an unknown one is success. Works without its source. Idempotent.

        Raises: PreconditionError while it is in use, HostError.
        """
        keys = [handle, *([key_of(handle, target, persistent=True)] if self.source.needs.persistent else [])]
        for key in keys:
            async with self._locks.hold(key):
                self._state.due.set(key, None)
                await self._undo(key, target)
        self._measure()

    async def _undo(self, key: str, target: str) -> None:
        await asyncio.to_thread(_unbind, target)
        await self._trees.remove(key)
        await asyncio.to_thread(self.store.remove, key)
        if (volume := self._state.volumes.pop(key, None)) is not None:
            for gauge in (metrics.INLINE_VOLUME_SIZE, metrics.INLINE_VOLUME_USED):
                with suppress(KeyError):  # it was never measured
                    gauge.remove(*_labels(volume.request))
        self._state.renewed.pop(key, None)
        self._state.due.set(key, None)

    def _remove(self, key: str) -> None:
        self._trees.unmount(key)
        self.store.remove(key)

    async def usage(self, handle: str, path: str) -> InlineUsage:
        """Return a volume's usage. Raises: NotFoundError."""
        volumes = self._state.volumes
        volume = volumes.get(handle) or volumes.get(key_of(handle, path, persistent=True))
        if volume is None or not volume.is_shown:
            raise NotFoundError(f"there is no inline volume {handle!r} of driver {self.name}")
        problem = volume.error if volume.is_stale(self._clock.time()) else ""
        if isinstance(volume.filled, Files):
            content, needs = volume.filled.content, self.source.needs
            used = sum(len(one.data) for one in content.values())
            return InlineUsage(needs.budget, used, len(content), needs.files, problem)
        with host_errors(f"cannot read the usage of {path}"):
            disk = await asyncio.to_thread(os.statvfs, path)
        size = disk.f_blocks * disk.f_frsize
        used = size - disk.f_bfree * disk.f_frsize
        return InlineUsage(size, used, disk.f_files - disk.f_ffree, disk.f_files, problem)

    async def measure(self) -> None:
        """Update the gauges of each volume that is shown."""
        for volume in [one for one in self._state.volumes.values() if one.is_shown]:
            request = volume.request
            try:
                found = await self.usage(request.handle, request.target)
            except TonnageError as failure:
                log.warning("inline volume cannot be read volume=%s error=%s", request.handle, failure)
                continue
            if volume.request.key not in self._state.volumes:  # removed meanwhile
                continue
            labels = _labels(volume.request)
            metrics.INLINE_VOLUME_SIZE.labels(*labels).set(found.total)
            metrics.INLINE_VOLUME_USED.labels(*labels).set(found.used)

    async def _run(self) -> None:
        state = self._state
        while True:
            state.wake.clear()
            self._follow_clock()
            for key in state.due.pop(self._clock.time()):
                self._tasks.start(self._renew(key), f"renewal of {key}")
            first = state.due.next()
            with suppress(TimeoutError):
                pause = None if first is None else min(max(first - self._clock.time(), 0.0), LONGEST_SLEEP)
                async with asyncio.timeout(pause):
                    await state.wake.wait()

    def _follow_clock(self) -> None:
        """After the wall clock was set, fill all that waits for a time by the old one: it may be far away now."""
        state, offset = self._state, self._clock.time() - self._clock.monotonic()
        was, state.offset = state.offset, offset
        if was is None or abs(offset - was) <= _CLOCK_SET:
            return
        log.warning("clock was set by %.0f s, inline volumes are filled again driver=%s", offset - was, self.name)
        for key, volume in state.volumes.items():
            if volume.is_shown and volume.due is not None and not volume.lacks_tokens:
                state.due.set(key, self._clock.time())

    async def _renew(self, key: str) -> None:
        """Fill a volume that is shown once more; a failure leaves its content."""
        async with self._locks.hold(key):
            volume = self._state.volumes.get(key)
            if volume is None or not volume.is_shown:
                await self._forget(volume)
                return
            was_stale = volume.is_stale(self._clock.time())
            try:
                before, filled = volume.filled, await self._fill(volume)
                is_tree = not isinstance(filled, Files)  # stays as it is: a pod has written on top of it
                if not is_tree:
                    await self._made(volume.request, filled)
                volume.succeed(before if is_tree else filled, now=self._clock.time(), chance=random.random())
                await asyncio.to_thread(self.store.save, self._record(volume))
                if was_stale or _is_new(filled, before):
                    self._renewed(volume, was_stale=was_stale)
            except Exception as failure:
                self._failed(volume, failure)
            self._keep(volume)
            self._measure()

    async def _forget(self, volume: InlineVolume | None) -> None:
        """Remove a volume that was asked for before the start, and never since."""
        if volume is not None and volume.due is not None and volume.due <= self._clock.time():
            await self._undo(volume.request.key, volume.request.target)

    def _renewed(self, volume: InlineVolume, *, was_stale: bool) -> None:
        now, key = self._clock.time(), volume.request.key
        if was_stale or now - self._state.renewed.get(key, 0.0) >= _RENEWED_EVERY:
            self._state.renewed[key] = now
            self._events(volume.request.pod, "Normal", RENEWED, f"volume of driver {self.name} has new content")

    def _record(self, volume: InlineVolume) -> InlineRecord:
        request, pod = volume.request, volume.request.pod
        plain = {key: value for key, value in request.attributes.items() if not self._is_secret(key)}
        hidden = bool(pod.tokens or pod.secrets or len(plain) < len(request.attributes))
        record = InlineRecord(
            request.handle,
            request.target,
            pod.namespace,
            pod.name,
            pod.uid,
            volume.phase,
            service_account=pod.service_account,
            fs_group=pod.fs_group,
            read_only=request.read_only,
            persistent=request.persistent,
            attributes=plain,
            hidden=hidden,
            due=volume.due,
            error=volume.error,
            stale=volume.stale,
        )
        return record.with_filled(volume.filled) if volume.filled is not None else record

    def _is_secret(self, key: str) -> bool:
        rule = self.source.attributes.get(key)
        return rule is not None and rule.secret

    def _measure(self) -> None:
        volumes, now = self._state.volumes.values(), self._clock.time()
        for phase in InlinePhase:
            count = sum(volume.phase is phase for volume in volumes)
            metrics.INLINE_VOLUMES.labels(self.name, phase.value).set(count)
        metrics.INLINE_STALE.labels(self.name).set(sum(volume.is_stale(now) for volume in volumes))
        metrics.INLINE_BYTES.labels(self.name).set(self.store.used())


def _labels(request: InlineRequest) -> tuple[str, str, str]:
    """Namespace, pod and volume; the kubelet's path has the volume's name (pkg/volume/csi: <volume>/mount)."""
    return request.pod.namespace, request.pod.name, Path(request.target).parent.name


def _is_new(filled: Filled | None, before: Filled | None) -> bool:
    return isinstance(filled, Files) and isinstance(before, Files) and filled.content != before.content


def _group(request: InlineRequest, filled: Files) -> int | None:
    return request.pod.fs_group if filled.group is None else filled.group


def pod_of(context: Mapping[str, str], secrets: Mapping[str, str], fs_group: int | None) -> InlinePod:
    """Return the pod that the kubelet describes in the context of a volume. Its tokens are there or in the secrets.

    Raises: InvalidError for tokens that cannot be read.
    """
    given = dict(secrets)
    tokens = _tokens(given.pop(names.CSI_TOKENS, "") or context.get(names.CSI_TOKENS, ""))
    return InlinePod(
        context.get(names.CSI_POD_NAMESPACE, ""),
        context.get(names.CSI_POD_NAME, ""),
        context.get(names.CSI_POD_UID, ""),
        context.get(names.CSI_SERVICE_ACCOUNT, ""),
        tokens,
        given,
        fs_group,
    )


class _Token(msgspec.Struct):
    token: str


def _tokens(text: str) -> dict[str, str]:
    if not text:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, _Token])
    except msgspec.MsgspecError:  # its text may hold a token
        raise InvalidError(f"{names.CSI_TOKENS}: cannot be read") from None
    return {audience: one.token for audience, one in found.items()}


def _bind(shown: str, target: str, *, readonly: bool) -> None:
    """Mount a folder at the target. Raises: AlreadyExistsError if something else is mounted there, HostError."""
    with host_errors(f"cannot make {target}"):
        os.makedirs(target, mode=0o750, exist_ok=True)
    if mount.is_mount(target):
        raise AlreadyExistsError(f"{target}: something else is mounted there")
    mount.bind(shown, target, readonly=readonly, options=("nodev", "nosuid"))


def _set_group(shown: Path, group: int) -> None:
    """Give the root of a tree to a group, as fsGroup does: more would copy the whole content into the layer."""
    with host_errors(f"cannot set the group of {shown}"), opened(shown, os.O_RDONLY | os.O_DIRECTORY) as root:
        os.fchown(root, -1, group)
        os.fchmod(root, stat.S_IMODE(os.fstat(root).st_mode) | 0o2770)


def _unbind(target: str) -> None:
    while mount.umount(target):
        pass
    with suppress(OSError):  # the kubelet removes it otherwise
        os.rmdir(target)


def _line(failure: BaseException) -> str:
    """Return file and line where an exception was raised."""
    trace = failure.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace is not None else "?"
