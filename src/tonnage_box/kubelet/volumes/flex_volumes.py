"""FlexVolume drivers: programs that the kubelet runs to mount and unmount volumes (pkg/volume/flexvolume).

The volume manager calls it. Tear-down needs nothing but the paths on disk, as after a restart nothing else is known.
Options hold Secrets, so no message here shows a call's arguments, and none shows output of a call that had a Secret.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tonnage.base.errors import HostError, InvalidError, NotFoundError, TonnageError, UnavailableError, UnsupportedError
from tonnage.host import mount as mounts
from tonnage.host.run import CommandError, run
from tonnage.kubernetes.api.kinds import SECRETS
from tonnage.kubernetes.api.names import FLEX_DRIVERS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage_box.kubelet.containers.paths import Paths, component
from tonnage_box.kubelet.folder import make_folder, names, remove_empty
from tonnage_box.kubelet.volumes import fsgroup

CALL_SECONDS = 600.0
"""Of one call, which then is killed. Kubernetes' kubelet waits forever."""
SUCCESS, NOT_SUPPORTED = "Success", "Not supported"
_CALLS_AT_ONCE = 64
_MERGED = ("/bin/sh", "-c", 'exec "$0" "$@" 2>&1')
"""Runs a program with its two output streams as one, as the kubelet reads them."""
_SHOWN = 200


class FlexCapabilities(msgspec.Struct, frozen=True, rename="camel"):
    """What a driver says at init; the defaults are Kubernetes'."""

    attach: bool = True
    fs_group: bool = True
    supports_metrics: bool = False


class FlexStatus(msgspec.Struct, frozen=True):
    """A driver's answer."""

    status: str = ""
    message: str = ""
    capabilities: FlexCapabilities = FlexCapabilities()


@dataclass(frozen=True)
class FlexVolume:
    """A FlexVolume of a pod. name: of the PersistentVolume, of an inline volume its name in the pod.

    secret: namespace and name, None for none.
    """

    name: str
    driver: str
    fs_type: str
    read_only: bool
    options: Mapping[str, str] = field(repr=False)
    secret: tuple[str, str] | None = None


@dataclass(frozen=True)
class FlexMount:
    """A mounted volume. has_stats: the file system's numbers are the volume's."""

    path: str
    has_stats: bool


class FlexVolumes:
    """FlexVolumes of one node."""

    def __init__(self, client: Client, paths: Paths) -> None:
        self._client, self._paths = client, paths
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, "flexvolume")
        self._probed: dict[str, tuple[tuple[int, ...], FlexCapabilities]] = {}

    async def mount(self, pod: Pod, volume: FlexVolume) -> FlexMount:
        """Mount a volume for a pod. Idempotent.

        Raises: NotFoundError (driver, Secret), UnsupportedError, InvalidError, UnavailableError (the driver failed),
        HostError.
        """
        try:
            program = self._program(volume.driver)
        except NotFoundError as failure:
            advice = "start the box with --compat flexvolume" if volume.driver in FLEX_DRIVERS else "install it there"
            raise NotFoundError(f"{failure}; {advice}") from failure
        able = await self._probe(volume.driver, program)
        if able.attach:
            raise UnsupportedError(
                f"FlexVolume driver {volume.driver}: it wants to attach volumes, which this kubelet does not do; "
                'a driver that says `"capabilities": {"attach": false}` at init is used without'
            )
        path = self._paths.volume(pod.metadata.uid, _escaped(volume.driver), volume.name)
        make_folder(path)
        if not mounts.is_mount(path):
            options = await self._options(pod, volume)
            try:
                await self._call(volume.driver, program, "mount", path, options, shows=volume.secret is None)
            except TonnageError:
                with suppress(HostError):  # what is mounted there all the same is unmounted with the pod
                    remove_empty(path)
                raise
        if able.fs_group and not volume.read_only:
            await fsgroup.give(path, pod.spec.security_context)
        return FlexMount(path, able.supports_metrics)

    def _program(self, driver: str) -> str:
        """The driver's file. Raises: InvalidError, NotFoundError."""
        program = f"{self._paths.flexvolume}/{_escaped(driver)}/{component(driver.rpartition('/')[2])}"
        if not os.path.isfile(program):
            raise NotFoundError(f"FlexVolume driver {driver} is not installed: there is no file {program}")
        return program

    async def _probe(self, driver: str, program: str) -> FlexCapabilities:
        """Call init, once for each version of the driver's file."""
        found = os.stat(program)
        version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._probed.get(program)
        if known is None or known[0] != version:
            status = await self._call(driver, program, "init")
            known = self._probed[program] = (version, status.capabilities)
        return known[1]

    async def _options(self, pod: Pod, volume: FlexVolume) -> str:
        """The options of a mount, as JSON; the author's are merged last, as the kubelet does."""
        meta, group = pod.metadata, pod.spec.security_context.fs_group
        options = {
            "kubernetes.io/fsType": volume.fs_type,
            "kubernetes.io/readwrite": "ro" if volume.read_only else "rw",
            "kubernetes.io/pvOrVolumeName": volume.name,
            "kubernetes.io/pod.name": meta.name,
            "kubernetes.io/pod.namespace": meta.namespace,
            "kubernetes.io/pod.uid": meta.uid,
            "kubernetes.io/serviceAccount.name": pod.spec.service_account_name,
            **({} if group is None else {"kubernetes.io/mounterArgs.FsGroup": str(group)}),
            **await self._secrets(volume),
            **volume.options,
        }
        return msgspec.json.encode(options).decode()

    async def _secrets(self, volume: FlexVolume) -> dict[str, str]:
        """The Secret's keys. Its type must be the driver's name. Raises: NotFoundError, InvalidError."""
        if volume.secret is None:
            return {}
        namespace, name = volume.secret
        secret = await self._client.get(SECRETS, name, namespace)
        if secret.type != volume.driver:
            raise InvalidError(
                f"secret {namespace}/{name} has the type {secret.type!r}: that of driver {volume.driver} must have "
                f"its name as type"
            )
        return {f"kubernetes.io/secret/{key}": text for key, text in secret.data.items()}

    async def _call(self, driver: str, program: str, command: str, *arguments: str, shows: bool = True) -> FlexStatus:
        """Run the driver. Raises: UnsupportedError ("Not supported"), UnavailableError, HostError."""
        what = f"FlexVolume driver {driver}: {command}"
        output = await self._run(what, (*_MERGED, program, command, *arguments))
        try:
            status = msgspec.json.decode(output, type=FlexStatus)
        except msgspec.MsgspecError as failure:
            shown = f": {output[:_SHOWN]!r}" if shows else ""
            raise UnavailableError(f"{what}: its output is no JSON object of a FlexVolume driver{shown}") from failure
        if status.status == NOT_SUPPORTED:
            raise UnsupportedError(f"{what}: not supported by the driver")
        if status.status != SUCCESS:
            raise UnavailableError(f"{what} command failed, status: {status.status}, reason: {status.message}")
        return status

    async def _run(self, what: str, command: Sequence[str]) -> str:
        """Run a program in one of the threads for them, so that one that hangs delays no other; return its output."""
        stop, ours = os.pipe()
        work = self._threads.submit(partial(run, command, timeout=CALL_SECONDS, stop=stop))
        work.add_done_callback(lambda _: os.close(stop))
        try:
            return await asyncio.wrap_future(work)
        except CommandError as failure:
            if failure.code is None:  # its text has the arguments
                raise HostError(f"{what}: the driver cannot be run, or did not end in {CALL_SECONDS:g} s") from None
            return failure.stderr  # the answer counts, whatever the exit code
        finally:
            os.close(ours)  # ends a program whose caller is gone

    async def unmount(self, uid: str) -> None:
        """Unmount all FlexVolumes of a pod, by what is on disk. Idempotent.

        One that fails does not keep the others. Raises the first failure, as mount().
        """
        work = [self._unmount(driver, path) for driver, path in self._of_pod(uid)]
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        for plugin in self.plugins(uid):
            remove_empty(self._paths.volumes(uid, plugin))

    def _of_pod(self, uid: str) -> Iterator[tuple[str, str]]:
        for plugin in self.plugins(uid):
            folder = self._paths.volumes(uid, plugin)
            for name in names(folder):
                yield plugin.replace("~", "/", 1), f"{folder}/{name}"

    def plugins(self, uid: str) -> list[str]:
        """Folder names of the FlexVolume drivers that have volumes of a pod."""
        found = names(f"{self._paths.pod(uid)}/volumes")
        return [name for name in found if "~" in name and not name.startswith("kubernetes.io~")]

    async def _unmount(self, driver: str, path: str) -> None:
        try:
            program = self._program(driver)
        except NotFoundError as failure:
            if mounts.is_mount(path):
                raise HostError(f"{path} stays mounted: {failure}; install it again") from failure
        else:
            try:
                await self._call(driver, program, "unmount", path)
            except UnsupportedError:
                await asyncio.to_thread(mounts.umount, path)
        remove_empty(path, after=" after it was unmounted")


def _escaped(driver: str) -> str:
    """The name of a driver's folder. Raises: InvalidError."""
    vendor, slash, name = driver.partition("/")
    if not vendor or "/" in name or (slash and not name) or driver.startswith((".", "kubernetes.io/")):
        raise InvalidError(f"FlexVolume driver {driver[:60]!r}: want <vendor>/<driver>")
    return component(driver.replace("/", "~"))
