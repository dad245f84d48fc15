"""Use of the CSI volumes of pods, asked of their drivers at most once a minute (kubelet/server/stats)."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tonnage.base.errors import TonnageError
from tonnage.csi.client.types import VolumeUse
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.containers.paths import Paths
from tonnage_box.kubelet.containers.runtime import Mounted
from tonnage_box.kubelet.volumes import vol_data
from tonnage_box.kubelet.volumes.plugins import RegisteredDrivers

log = logging.getLogger(__name__)
FRESH = 60.0
"""Seconds for which an answer counts."""
_PATIENCE = 10.0


@dataclass(frozen=True)
class PodVolumeUse:
    """Use of one volume of a pod. claim: of its namespace, "" for an inline volume; at: seconds since the epoch."""

    pod: Pod
    name: str
    claim: str
    use: VolumeUse
    at: float


class VolumeStats:
    """Stats of one node's volumes. mounted: what is mounted for the pod of a uid."""

    def __init__(
        self,
        paths: Paths,
        drivers: RegisteredDrivers,
        mounted: Callable[[str], Mapping[str, Mounted]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths, self._drivers, self._mounted = paths, drivers, mounted
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, list[PodVolumeUse]]] = {}
        self._lock = asyncio.Lock()

    async def of(self, pods: Iterable[Pod]) -> list[PodVolumeUse]:
        """The use of all volumes of these pods; those whose driver does not answer are missing."""
        async with self._lock:
            wanted = {pod.metadata.uid: pod for pod in pods}
            now = self._monotonic()
            self._known = {uid: e for uid, e in self._known.items() if uid in wanted and now - e[0] < FRESH}
            missing = [pod for uid, pod in wanted.items() if uid not in self._known and self._mounted(uid)]
            for pod, found in zip(missing, await asyncio.gather(*map(self._ask, missing)), strict=True):
                self._known[pod.metadata.uid] = (now, found)
            return [use for _, found in self._known.values() for use in found]

    async def _ask(self, pod: Pod) -> list[PodVolumeUse]:
        asked = [self._one(pod, name, mounted) for name, mounted in list(self._mounted(pod.metadata.uid).items())]
        return [use for use in await asyncio.gather(*asked) if use is not None]

    async def _one(self, pod: Pod, name: str, mounted: Mounted) -> PodVolumeUse | None:
        folder = os.path.dirname(mounted.path)
        if mounted.block:
            folder = self._paths.block_data(os.path.basename(folder))
        try:
            if mounted.has_statfs:
                use = await asyncio.to_thread(_statfs, mounted.path)
                return PodVolumeUse(pod, name, mounted.claim, use, time.time())
            data = vol_data.load(folder)
            driver = self._drivers.find(data.driver_name) if data is not None else None
            if data is None or driver is None or not driver.has_stats:
                return None
            async with asyncio.timeout(_PATIENCE):
                use = await driver.client.volume_use(data.volume_handle, mounted.path)
        except (TonnageError, OSError) as failure:  # a TimeoutError is an OSError
            log.info("use of a volume is not known pod=%s volume=%s error=%s", pod.key, name, failure)
            return None
        return PodVolumeUse(pod, name, mounted.claim, use, time.time())


def _statfs(path: str) -> VolumeUse:
    """The numbers of a mounted file system. Blocking. Raises: OSError."""
    found = os.statvfs(path)
    unit = found.f_frsize
    return VolumeUse(
        found.f_blocks * unit,
        (found.f_blocks - found.f_bfree) * unit,
        found.f_bavail * unit,
        found.f_files,
        found.f_files - found.f_ffree,
        found.f_ffree,
    )
