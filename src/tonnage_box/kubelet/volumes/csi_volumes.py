"""CSI volumes of a node: stage, publish, unpublish, unstage, in Kubernetes' order and paths.

vol_data.json is written before the driver is called and removed after the driver has undone its part. So tear-down
needs
nothing else: any volume with a vol_data.json may be mounted ("uncertain") and is unpublished, also after a restart,
also when mounting never succeeded. Described in docs/reference/kubernetes/kubelet.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tonnage.base.aio.tasks import KeyedLocks
from tonnage.base.errors import HostError, InvalidError, TonnageError, UnsupportedError
from tonnage.csi.client.types import AttachedContext, VolumeCapability
from tonnage.csi.errors import CsiError
from tonnage.host import mount as mounts
from tonnage.kubernetes.api.names import attached_volume
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.containers.paths import CSI, Paths
from tonnage_box.kubelet.folder import make_folder, names, remove_empty
from tonnage_box.kubelet.volumes import fsgroup, vol_data
from tonnage_box.kubelet.volumes.plugins import RegisteredDriver, RegisteredDrivers
from tonnage_box.kubelet.volumes.vol_data import EPHEMERAL, PERSISTENT, VolumeData

log = logging.getLogger(__name__)
_UNPUBLISHED = " after it was unpublished"


@dataclass(frozen=True)
class CsiVolume:
    """One CSI volume of one pod, ready to be mounted.

    spec: name of the PV, or of an inline volume in the pod; pod_group: fsGroup, when the kubelet must set it.
    """

    spec: str
    driver: str
    handle: str
    capability: VolumeCapability
    context: Mapping[str, str]
    publish_context: Mapping[str, str]
    read_only: bool = False
    inline: bool = False
    stage_secrets: Mapping[str, str] | None = None
    publish_secrets: Mapping[str, str] | None = None
    pod_group: int | None = None
    group_policy: str | None = None
    attachment: str = ""
    """Name of its VolumeAttachment, for a driver that wants one."""
    attached: Mapping[str, str] = field(default_factory=dict)
    """What the driver returned when it was attached."""
    is_exclusive: bool = False
    """Whether only one pod may use it at one time (access mode ReadWriteOncePod)."""

    def contexts(self, context: Mapping[str, str]) -> Mapping[str, str] | AttachedContext:
        """A context for a call, with that of the attachment."""
        return AttachedContext(context, self.attached) if self.attachment else context


class MountError(TonnageError):
    """Mounting one volume failed; the text is that of Kubernetes' FailedMount event.

    driver: the driver, when it is not registered. topic: what it waits for besides.
    """

    def __init__(self, message: str, *, driver: str = "", topic: str = "") -> None:
        super().__init__(message)
        self.driver = driver
        self.topic = topic or (f"driver {driver}" if driver else "")

    @property
    def waiting(self) -> bool:
        """Whether others may be about to change that."""
        return bool(self.topic)


class CsiMounts:
    """Mounts and unmounts CSI volumes. All methods are idempotent; calls on the same volume wait for one another."""

    def __init__(self, paths: Paths, drivers: RegisteredDrivers, node_name: str) -> None:
        self._paths = paths
        self._drivers = drivers
        self._node = node_name
        self.on_unused: Callable[[VolumeData], None] = lambda data: None
        """Called with a volume that no pod uses any more."""
        self.on_left: Callable[[str], None] = lambda topic: None
        """Called when a pod no longer uses a volume, with the topic of those that wait for that."""
        self._locks = KeyedLocks()
        self._staged: set[tuple[str, str]] = set()
        # Which pods use a volume (by driver and handle), and the other way round.
        self._users: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._keys: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)

    async def mount(self, pod: Pod, volume: CsiVolume) -> str:
        """Make the volume available to the pod and return its path (a folder, or a device for raw block).

        Raises: MountError.
        """
        key = volume.driver, volume.handle
        async with self._locks.hold(key):
            if volume.is_exclusive and self._users.get(key, set()) - {pod.metadata.uid}:
                text = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
                step = "MapVolume.SetUpDevice" if volume.capability.block else "MountVolume.SetUp"
                raise MountError(f'{step} failed for volume "{volume.spec}" : {text}', topic=_topic(key))
            self._take(pod.metadata.uid, key)
            driver = self._driver(volume)
            staging = ""
            if driver.staging and not volume.inline:
                staging = await self._stage(driver, volume)
            return await self._publish(driver, pod, volume, staging)

    def _driver(self, volume: CsiVolume) -> RegisteredDriver:
        try:
            return self._drivers.get(volume.driver)
        except TonnageError as failure:
            step, where = "MountDevice", "attacher.MountDevice failed to create newCsiDriverClient"
            if volume.inline:
                step, where = "SetUp", "mounter.SetUpAt failed to get CSI client"
            text = f'MountVolume.{step} failed for volume "{volume.spec}" : kubernetes.io/csi: {where}: {failure}'
            raise MountError(text, driver=volume.driver) from failure

    async def _stage(self, driver: RegisteredDriver, volume: CsiVolume) -> str:
        block, key = volume.capability.block, (volume.driver, volume.handle)
        folder, staging = self._staging(key, block=volume.spec if block else "")
        if key in self._staged:
            return staging
        try:
            self._note(folder, volume)
            make_folder(staging)
            await driver.client.stage(
                volume.handle,
                staging,
                volume.capability,
                context=volume.contexts(volume.context),
                secrets=volume.stage_secrets or {},
            )
        except (TonnageError, OSError) as failure:
            if is_final(failure):
                with suppress(OSError, HostError):  # what is mounted there since earlier stays known
                    _forget(folder, staging)
            step = "MapVolume.SetUpDevice" if block else "MountVolume.MountDevice"
            raise MountError(f'{step} failed for volume "{volume.spec}" : {failure}') from failure
        self._staged.add(key)
        return staging

    def _staging(self, key: tuple[str, str], *, block: str) -> tuple[str, str]:
        """The folder of a volume's vol_data.json, and where it is staged. block: the PV of a block volume, or ""."""
        if block:
            return self._paths.block_data(block), self._paths.block_staging(block)
        folder = self._paths.staging(*key)
        return folder, f"{folder}/globalmount"

    async def _publish(self, driver: RegisteredDriver, pod: Pod, volume: CsiVolume, staging: str) -> str:
        uid = pod.metadata.uid
        block = volume.capability.block
        folder = self._paths.block_data(volume.spec) if block else self._paths.volume(uid, CSI, volume.spec)
        target = self._paths.block_publish(volume.spec, uid) if block else f"{folder}/mount"
        try:
            self._note(folder, volume)
            if block:
                make_folder(os.path.dirname(target))
                self._link(uid, volume.spec, target)
            await driver.client.publish(
                volume.handle,
                target,
                volume.capability,
                staging=staging,
                readonly=volume.read_only,
                context=volume.contexts(volume.publish_context),
                secrets=volume.publish_secrets or {},
            )
        except (TonnageError, OSError) as failure:
            if is_final(failure) and not block:
                with suppress(OSError, HostError):  # the same volume may be mounted there already
                    _forget(folder, target)
                    os.rmdir(folder)
            step = "MapVolume.MapPodDevice" if block else "MountVolume.SetUp"
            raise MountError(f'{step} failed for volume "{volume.spec}" : {failure}') from failure
        if volume.pod_group is not None and not block:
            await self._give(volume, target)
        return target

    async def _give(self, volume: CsiVolume, target: str) -> None:
        assert volume.pod_group is not None
        try:
            await asyncio.to_thread(fsgroup.apply, target, volume.pod_group, policy=volume.group_policy)
        except HostError as failure:
            text = (
                f'MountVolume.SetUp failed for volume "{volume.spec}" : applyFSGroup failed for vol {volume.handle}: '
            )
            raise MountError(text + str(failure)) from failure

    async def expand(self, volume: CsiVolume, path: str, size: int, secrets: Mapping[str, str] | None) -> None:
        """Let the driver grow what is mounted at path to that many bytes. Raises: CsiError, NotFoundError."""
        key = volume.driver, volume.handle
        async with self._locks.hold(key):
            driver = self._drivers.get(volume.driver)
            if not driver.expands:
                raise UnsupportedError(f"NodeExpand is not supported by the CSI driver {volume.driver}")
            staging = self._staging(key, block=volume.spec if volume.capability.block else "")[1]
            await driver.client.expand(
                volume.handle,
                path,
                size,
                volume.capability,
                staging=staging if driver.staging else "",
                secrets=secrets,
            )

    def _note(self, folder: str, volume: CsiVolume) -> None:
        """Write vol_data.json unless it is there."""
        mode = EPHEMERAL if volume.inline else PERSISTENT
        attachment = volume.attachment
        data = VolumeData(volume.driver, volume.handle, volume.spec, self._node, attachment, volume_lifecycle_mode=mode)
        if make_folder(folder) or _read(folder, anyway=True) != data:
            # This file is the only record of an inline volume once the pod is deleted, so it must be durable.
            vol_data.save(folder, data, durable=volume.inline)

    def _link(self, uid: str, spec: str, target: str) -> None:
        folder = self._paths.block_links(uid)
        make_folder(folder)
        with suppress(FileExistsError):
            os.symlink(target, f"{folder}/{spec}")

    async def unmount(self, uid: str, *, keep_inline: bool = False) -> None:
        """Take all CSI volumes away from a pod, by what is on disk.

        Raises: CsiError, NotFoundError (driver), HostError.

        keep_inline: but inline ones, since unpublishing them would end them, and the pod goes on later.
        """
        work = [
            self._unmount(uid, name, data)
            for name, data in list(self._of_pod(uid))
            if not (keep_inline and data.volume_lifecycle_mode == EPHEMERAL)
        ]
        work += [self._unmap(uid, name) for name in names(self._paths.block_links(uid))]
        await _all(work)
        # Volumes that were staged for the pod, but whose publish failed for good.
        await _all([self._leave(uid, key) for key in sorted(self._keys.get(uid, ()))])
        self._keys.pop(uid, None)

    async def _leave(self, uid: str, key: tuple[str, str]) -> None:
        async with self._locks.hold(key):
            data = _read(*self._staging(key, block=""))
            if data is not None:
                await self._release(uid, data)
            else:
                self._drop(uid, key)

    def _take(self, uid: str, key: tuple[str, str]) -> None:
        self._users[key].add(uid)
        self._keys[uid].add(key)

    def _drop(self, uid: str, key: tuple[str, str]) -> None:
        self._users[key].discard(uid)
        self._keys[uid].discard(key)
        if not self._users[key]:
            del self._users[key]
        self.on_left(_topic(key))

    def _of_pod(self, uid: str) -> Iterator[tuple[str, VolumeData]]:
        """The pod's mounted volumes; a folder without vol_data.json never reached the driver and is removed."""
        folder = self._paths.volumes(uid, CSI)
        for name in names(folder):
            data = _read(f"{folder}/{name}", f"{folder}/{name}/mount")
            if data is None:
                remove_empty(f"{folder}/{name}/mount")
                remove_empty(f"{folder}/{name}")
            else:
                yield name, data

    async def _unmount(self, uid: str, name: str, data: VolumeData) -> None:
        folder = self._paths.volume(uid, CSI, name)
        async with self._locks.hold(data.key):
            await self._drivers.get(data.driver_name).client.unpublish(data.volume_handle, f"{folder}/mount")
            _forget(folder, f"{folder}/mount")
            remove_empty(folder)
            await self._release(uid, data)

    async def _unmap(self, uid: str, name: str) -> None:
        folder = self._paths.block_data(name)
        data = _read(folder, self._paths.block_publish(name, uid))
        if data is not None:
            async with self._locks.hold(data.key):
                target = self._paths.block_publish(name, uid)
                await self._drivers.get(data.driver_name).client.unpublish(data.volume_handle, target)
                remove_empty(target, after=_UNPUBLISHED)
                with suppress(OSError):  # another pod may have its device there
                    os.rmdir(os.path.dirname(target))
                await self._release(uid, data, block=name)
        remove_empty(f"{self._paths.block_links(uid)}/{name}", after=_UNPUBLISHED)

    async def _release(self, uid: str, data: VolumeData, *, block: str = "") -> None:
        """After the pod's part is gone: unstage when it was the last."""
        if self._users[data.key] <= {uid}:
            await self._unstage(data, block=block)
        self._drop(uid, data.key)

    async def _unstage(self, data: VolumeData, *, block: str = "") -> None:
        folder, staging = self._staging(data.key, block=block)
        driver = self._drivers.get(data.driver_name)
        if data.volume_lifecycle_mode == EPHEMERAL:
            return
        if driver.staging and vol_data.load(folder) is not None:
            self._staged.discard(data.key)
            await driver.client.unstage(data.volume_handle, staging)
        _forget(folder, staging)
        remove_empty(folder)
        if block:
            remove_empty(os.path.dirname(folder))
        self.on_unused(data)

    def attached(self) -> set[str]:
        """Volumes with an attachment that may be mounted, by what is on disk; named as in a Node's status."""
        plugins, pods = self._paths.plugins, self._paths.pods
        folders = [f"{plugins}/{driver}/{name}" for driver in names(plugins) for name in names(f"{plugins}/{driver}")]
        folders += [f"{folder}/data" for folder in folders]
        for uid in names(pods):
            base = self._paths.volumes(uid, CSI)
            folders += [f"{base}/{name}" for name in names(base)]
        found = (_read(folder, anyway=True) for folder in folders)
        return {attached_volume(*data.key) for data in found if data is not None and data.attachment}

    def recover(self, uids: list[str]) -> None:
        """After a start: learn from disk which pods use which volume. Nothing counts as staged yet."""
        for uid in uids:
            try:
                self._recover(uid)
            except TonnageError as failure:  # reported again as an Event in the tear-down of this pod only
                log.error("volumes of a pod cannot be read pod=%s error=%s", uid, failure)

    def _recover(self, uid: str) -> None:
        for _, data in self._of_pod(uid):
            self._take(uid, data.key)
        for name in names(self._paths.block_links(uid)):
            block = _read(self._paths.block_data(name), self._paths.block_publish(name, uid))
            if block is not None:
                self._take(uid, block.key)

    async def sweep(self, driver: str) -> None:
        """Unstage what the driver staged for pods that are no more; one that fails does not keep the others.

        Raises: CsiError, NotFoundError, HostError.
        """
        work = []
        folder = f"{self._paths.plugins}/{driver}"
        for name in names(folder):
            data = _read(f"{folder}/{name}", f"{folder}/{name}/globalmount")
            if data is not None:
                work.append(self._sweep(data, block=""))
        for name in names(f"{self._paths.plugins}/volumeDevices"):
            if name in ("staging", "publish"):
                continue
            data = _read(self._paths.block_data(name), self._paths.block_staging(name))
            if data is not None and data.driver_name == driver:
                work.append(self._sweep(data, block=name))
        await _all(work)

    async def _sweep(self, data: VolumeData, *, block: str) -> None:
        async with self._locks.hold(data.key):
            if not self._users.get(data.key):
                await self._unstage(data, block=block)


def _topic(key: tuple[str, str]) -> str:
    return f"volume {'/'.join(key)}"


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all to the end, then raise the first failure."""
    if len(work) == 1:
        await work[0]
        return
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def is_final(failure: Exception) -> bool:
    """Whether the driver certainly does nothing more about a failed stage or publish (6.5)."""
    return isinstance(failure, CsiError) and failure.node_final


def _read(folder: str, target: str = "", *, anyway: bool = False) -> VolumeData | None:
    """Read vol_data.json. Raises: InvalidError.

    A damaged one counts as none, and is removed, when nothing is mounted at target: a power cut, which alone can damage
    it, has ended all mounts. anyway: it will be written again.
    """
    try:
        return vol_data.load(folder)
    except InvalidError as failure:
        if anyway:
            return None
        if mounts.is_mount(target):
            raise
        log.warning("damaged file of a volume that is not mounted is removed error=%s", failure)
        vol_data.remove(folder)
        with suppress(OSError):
            os.rmdir(target)
            os.rmdir(folder)
        return None


def _forget(folder: str, target: str) -> None:
    """Remove an unmounted target, then vol_data.json: in this order, so that a kill in between is repeated."""
    remove_empty(target, after=_UNPUBLISHED)
    vol_data.remove(folder)
