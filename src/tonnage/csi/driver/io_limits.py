"""I/O limits of volumes (`iops`, `bandwidth`), set in the pod's cgroup for the volume's device.

The kubelet's target paths contain the pod's uid (pkg/volume/csi). So the mount table shows which pod uses which volume,
and the limits are restored from it when the driver starts. Other orchestrators do not name the pod. For them a cgroup
may be configured; without one, a volume with limits is not published.

A limit that cannot be enforced is rejected.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.aio.tasks import Background
from tonnage.base.errors import HostError, PreconditionError, TonnageError, UnavailableError, UnsupportedError
from tonnage.host import inotify, mount
from tonnage.host.iolimits import Cgroup, Cgroups, Device, origin
from tonnage.storage.pools.base.contract import PoolVolume
from tonnage.storage.pools.base.parameters import LIMITS, IoLimits, io_limits_of
from tonnage.storage.pools.base.threads import Threads
from tonnage.storage.pools.core.pool import Pool

log = logging.getLogger(__name__)
_POD = re.compile(r"/pods/([^/]+)/volumes/kubernetes\.io~csi/|/volumeDevices/publish/[^/]+/([^/]+)$")
_CHANGES = inotify.CREATE | inotify.MOVED_TO | inotify.ONLYDIR | inotify.DONT_FOLLOW


@dataclass(frozen=True)
class _Held:
    """The limits that are set for one target."""

    group: Cgroup
    device: Device
    limits: IoLimits

    def set(self) -> None:
        self.group.limit(self.device, iops=self.limits.iops, bandwidth=self.limits.bandwidth)


class Throttle:
    """I/O limits for all drivers of a process that serve the same pools.

    group: the cgroup (below the root, as `nomad.slice`) to limit for targets that name no pod, "" to reject them.
    """

    def __init__(self, cgroups: Cgroups | None = None, *, group: str = "") -> None:
        self._cgroups = cgroups or Cgroups()
        self._group = group
        self._held: dict[str, _Held] = {}
        self._threads = Threads("io-limits", workers=1)
        self._background = Background("io limits")
        self._watched: inotify.Inotify | None = None

    def check(self) -> None:
        """Raises: UnsupportedError where this node cannot limit IOError."""
        self._cgroups.top()

    @asynccontextmanager
    async def limited(self, pool: Pool, volume: PoolVolume, target: Path, *, pod: str = "") -> AsyncIterator[None]:
        """Set the volume's limits after the body has published it at target. pod: uid, "" if unknown.

        The cgroup is looked up before the body runs, so what cannot be limited is not published; if the kernel rejects
        the limits, it is unpublished. Raises: PreconditionError, UnsupportedError, HostError, and what the body raises.
        """
        if not io_limits_of(volume.effective):
            yield
            return
        group = await self._threads.run(self._find, volume.name, target, pod)
        yield
        try:
            await self.hold(pool, volume, target, group)
        except Exception:
            await pool.unpublish(volume.name, target)
            raise

    def _find(self, volume: str, target: Path, uid: str) -> Cgroup:
        uid = uid or pod_of(target)
        if uid:
            try:
                return self._cgroups.pod(uid)
            except PreconditionError as reason:
                raise PreconditionError(f"volume {volume} has limits of IO, which cannot be held: {reason}") from None
        if not self._group:
            raise PreconditionError(
                f"volume {volume} has limits of IO, and {target} tells of no pod whose cgroup could be limited: name a"
                " group of the orchestrator with ioCgroup in the driver's configuration, or take the limits away"
            )
        return self._cgroups.named(self._group)

    async def hold(self, pool: Pool, volume: PoolVolume, target: Path, group: Cgroup) -> None:
        """Set the limits for the volume published at target. Idempotent. Raises: HostError, PreconditionError."""
        # A read-only one may differ from the volume's own device.
        device = _node(target) if volume.block else await pool.device(volume.name)
        if device is None:
            raise PreconditionError(f"volume {volume.name} has no device whose IO could be limited: stage it first")
        await self._set(target, _Held(group, device, io_limits_of(volume.effective)))

    async def _set(self, target: Path, held: _Held) -> None:
        await self._threads.run(held.set)
        self._held[str(target)] = held
        if not held.group.v2:
            self._watch(held.group)
            await self._threads.run(held.set)  # for groups that were made before the watch

    @asynccontextmanager
    async def released(self, target: Path) -> AsyncIterator[None]:
        """Remove the limits of target after the body has unpublished it; success when there are none.

        They are removed first: after a kill in between, the mount still shows them.
        """
        held = self._held.pop(str(target), None)
        if held is None:
            yield
            return
        await self._release(held)
        try:
            yield
        except BaseException:
            await self._set(target, held)
            raise

    async def _release(self, held: _Held) -> None:
        if any((other.group, other.device) == (held.group, held.device) for other in self._held.values()):
            return
        with suppress(HostError):  # the device or the pod's group is going
            await self._threads.run(_Held(held.group, held.device, IoLimits()).set)

    async def reapply(self, pool: Pool, volume: PoolVolume) -> None:
        """Apply the limits in a volume's record wherever it is published. Idempotent.

        Raises: PreconditionError, UnsupportedError, HostError for the first failure, after setting the others.
        """
        failed: list[TonnageError] = []
        for target in await self._shown(pool, volume):
            try:
                held = self._held.get(str(target))
                group = held.group if held else await self._threads.run(self._find, volume.name, target, "")
                await self.hold(pool, volume, target, group)
            except (PreconditionError, UnsupportedError) as failure:
                if io_limits_of(volume.effective):  # else there is nothing to take away either
                    failed.append(failure)
            except TonnageError as failure:
                failed.append(failure)
        if failed:
            raise failed[0]

    async def _shown(self, pool: Pool, volume: PoolVolume) -> list[Path]:
        device = await pool.device(volume.name)
        if device is None:
            return []
        staged_elsewhere = [Path(target) for target, held in self._held.items() if held.device == device]
        found = await self._threads.run(lambda: list(_targets(device, block=volume.block)))
        return list(dict.fromkeys([*(path for path in found if pod_of(path)), *staged_elsewhere]))

    async def restore(self, pools: Iterable[Pool]) -> None:
        """Restore all limits when the driver starts. Failures are logged: the pods run already.

        A pool that is not open is skipped: it is restored when it opens.
        """
        for pool in pools:
            if not LIMITS & (pool.features.parameters | pool.features.modifiable):
                continue
            try:
                volumes = await pool.list()
            except UnavailableError:
                continue
            for volume in volumes:
                try:
                    if io_limits_of(volume.effective):
                        await self.reapply(pool, volume)
                except TonnageError as failure:
                    log.warning("io limits not set pool=%s volume=%s error=%s", pool.name, volume.name, failure)

    def _watch(self, group: Cgroup) -> None:
        """On cgroup v1: watch for new cgroups of containers."""
        if self._watched is None:
            self._watched = inotify.Inotify()
            self._background.start(self._follow(self._watched), "io limits of new containers")
        with suppress(FileNotFoundError):
            self._watched.add(str(group.path), _CHANGES)

    async def _follow(self, watched: inotify.Inotify) -> None:
        while True:
            await watched.wait()
            for held in list(self._held.values()):
                try:
                    await self._threads.run(held.set)
                except HostError as failure:
                    log.warning("io limits not set group=%s error=%s", held.group.path, failure)

    async def close(self) -> None:
        """Stop watching; the limits stay. Idempotent."""
        await self._background.close()
        if self._watched is not None:
            self._watched.close()
            self._watched = None
        self._held.clear()
        self._threads.close()


def pod_of(target: Path) -> str:
    """The uid of the pod in a kubelet's target path, "" for other paths."""
    found = _POD.search(str(target))
    return (found[1] or found[2]) if found else ""


def _node(path: str | Path) -> Device | None:
    with suppress(OSError):
        found = os.lstat(path)
        if stat.S_ISBLK(found.st_mode):
            return os.major(found.st_rdev), os.minor(found.st_rdev)
    return None


def _targets(device: Device, *, block: bool) -> Iterator[Path]:
    """Paths where a device is mounted, or its node bind-mounted. Raises: HostError."""
    number, same = f"{device[0]}:{device[1]}", origin(device)
    for found in mount.mounts():
        if block:
            node = _node(found.target) if found.root != "/" else None
            if node is not None and origin(node) == same:
                yield Path(found.target)
        elif found.device == number or (found.source.startswith("/dev/") and _node(found.source) == device):
            yield Path(found.target)
