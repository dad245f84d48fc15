"""Plugin registration: watches `plugins_registry` for sockets and registers the CSI drivers behind them.

The process that creates the socket (node-driver-registrar, or tonnage's own agent) is the gRPC server. The kubelet asks
for its name, asks the driver about the node, writes CSINode and Node, and reports the outcome. Level-based: each
inotify event causes the folders to be read again, so a lost event costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tonnage.base.aio.backoff import Backoff
from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, TonnageError
from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import NodeInfo
from tonnage.csi.driver.registration import CSI_PLUGIN
from tonnage.host.inotify import CREATE, DELETE, DELETE_SELF, MOVED_FROM, MOVED_TO, ONLYDIR, Inotify
from tonnage.kubernetes.api import names
from tonnage.kubernetes.client.controller import Controller
from tonnage_box.kubelet.registration import Registered, RegistrationClient
from tonnage_box.kubelet.volumes.csi_node_writer import NodeInfoWriter

log = logging.getLogger(__name__)
_MASK = CREATE | DELETE | MOVED_FROM | MOVED_TO | DELETE_SELF | ONLYDIR
_UNWATCHED_SECONDS = 1.0
Identity = tuple[int, int]


class Plugins:
    """The sockets below a folder and their registrations. Updates `drivers`."""

    def __init__(self, registry: str, drivers: RegisteredDrivers, writer: NodeInfoWriter) -> None:
        self._registry = registry
        self._drivers = drivers
        self._writer = writer
        self._sockets: dict[str, Identity] = {}
        self._registered: dict[str, tuple[Identity, str]] = {}
        self.rejected: dict[str, str] = {}
        """Drivers that need a person, and why: no retry registers them while the Node stays as it is."""
        self.on_rejected: Callable[[], None] = lambda: None
        # The socket appears a moment before anybody listens, so the first wait is short.
        self._controller: Controller[str] = Controller(
            "plugins", self.reconcile, backoff=Backoff(initial=0.05, maximum=122.0)
        )

    async def run(self) -> None:
        """Watch and register until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run())
            tasks.create_task(self._watch())

    async def _watch(self) -> None:
        os.makedirs(self._registry, mode=0o750, exist_ok=True)
        try:
            inotify = Inotify()
        except OSError as failure:  # a process with many nodes, or other programs of the user, may have all of them
            log.warning("folder read each second, it cannot be watched folder=%s error=%s", self._registry, failure)
            while True:
                self._scan(None)
                await asyncio.sleep(_UNWATCHED_SECONDS)
        with inotify:
            while True:
                self._scan(inotify)
                await inotify.wait()

    def _scan(self, inotify: Inotify | None) -> None:
        """Compare the existing sockets with the known ones."""
        found: dict[str, Identity] = dict(_sockets(self._registry, inotify))
        for path in found.keys() | self._sockets.keys():
            if found.get(path) != self._sockets.get(path):
                self._controller.queue.forget(path)
                self._controller.enqueue(path)
        self._sockets = found

    async def reconcile(self, path: str) -> None:
        """Register or deregister what is, or was, behind a socket."""
        identity = self._sockets.get(path)
        done = self._registered.get(path)
        if done is not None and done[0] != identity:
            await self._deregister(path, done[1])
            done = None
        if identity is not None and done is None:
            await self._register(path, identity)

    async def _register(self, path: str, identity: Identity) -> None:
        registrar = RegistrationClient(Path(path))
        try:
            info = await registrar.get_info()
            try:
                version = check(info)
                self._check_version(info.name, version, path)
                await self._admit(path, info, version)
            except TonnageError as failure:
                log.warning("driver not registered socket=%s driver=%s error=%s", path, info.name, failure)
                if isinstance(failure, PreconditionError):
                    self.rejected[info.name] = str(failure)
                    self.on_rejected()
                await registrar.notify(registered=False, error=str(failure))
                raise
            self._registered[path] = (identity, info.name)
            self.rejected.pop(info.name, None)
            await registrar.notify(registered=True)
            log.info("driver registered socket=%s driver=%s", path, info.name)
        finally:
            registrar.close()

    def _check_version(self, name: str, version: tuple[int, ...], path: str) -> None:
        """Reject the lower version of two sockets with the same driver name."""
        other = self._drivers.find(name)
        taken = any(driver == name for at, (_, driver) in self._registered.items() if at != path)
        if other is not None and taken and other.version > version:
            there = ".".join(map(str, other.version))
            raise InvalidError(f"driver {name} is already registered with the higher version {there}")

    async def _admit(self, path: str, info: Registered, version: tuple[int, ...]) -> None:
        client = CsiClient(Path(info.endpoint or path))
        try:
            node = await _node_info(client, info.name)
            capabilities = await client.node_capabilities()
            await self._writer.add(info.name, node)
        except BaseException:
            client.close()
            raise
        old = self._drivers.find(info.name)
        self._drivers.put(
            RegisteredDriver(
                info.name,
                client,
                node,
                version,
                staging=types.STAGE_UNSTAGE_VOLUME in capabilities,
                multi_writer=types.SINGLE_NODE_MULTI_WRITER in capabilities,
                mount_group=types.VOLUME_MOUNT_GROUP in capabilities,
                has_stats=types.GET_VOLUME_STATS in capabilities,
                expands=types.EXPAND_VOLUME in capabilities,
            )
        )
        if old is not None:
            old.client.close()

    async def _deregister(self, path: str, name: str) -> None:
        if any(driver == name for at, (_, driver) in self._registered.items() if at != path):
            del self._registered[path]  # another socket serves that name by now
            return
        driver = self._drivers.find(name)
        self._drivers.remove(name)
        await self._writer.remove(name)
        self._registered.pop(path, None)
        if driver is not None:
            driver.client.close()
        log.info("driver deregistered socket=%s driver=%s", path, name)

    def close(self) -> None:
        """Close the connections to all drivers; nothing is deregistered."""
        for name in self._drivers.names():
            self._drivers.get(name).client.close()


async def _node_info(client: CsiClient, name: str) -> NodeInfo:
    node = await client.node_info()
    if not node.node_id:
        raise InvalidError(f"driver {name} gave an empty node_id")
    return node


def check(info: Registered) -> tuple[int, ...]:
    """Validate what a plugin says of itself, and return the highest CSI version 1.x that it speaks.

    Raises: InvalidError.
    """
    if info.type != CSI_PLUGIN:
        raise InvalidError(f"plugin type {info.type!r} is not supported: only {CSI_PLUGIN} is")
    names.check_driver_name(info.name)
    spoken = [version for text in info.versions if (version := _version(text)) is not None and version[0] == 1]
    if not spoken:
        raise InvalidError(
            f"driver {info.name} supports CSI {', '.join(info.versions) or 'nothing'}: want a version 1.x"
        )
    return max(spoken)


def _version(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.removeprefix("v").split("-")[0].split("."))
    except ValueError:
        return None


def _sockets(folder: str, inotify: Inotify | None) -> Iterator[tuple[str, Identity]]:
    """All sockets below folder; each folder is watched before it is read. Names that begin with a dot are not meant."""
    try:
        if inotify is not None:
            inotify.add(folder, _MASK)
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _sockets(entry.path, inotify)
        elif stat.S_ISSOCK(status.st_mode):
            yield entry.path, (status.st_ino, status.st_mtime_ns)


@dataclass(frozen=True)
class RegisteredDriver:
    """A registered driver. staging to expands: its node capabilities; version: of CSI."""

    name: str
    client: CsiClient
    info: NodeInfo
    version: tuple[int, ...] = (1, 0, 0)
    staging: bool = False
    multi_writer: bool = False
    mount_group: bool = False
    has_stats: bool = False
    expands: bool = False


class RegisteredDrivers:
    """Registered drivers by name."""

    def __init__(self) -> None:
        self._drivers: dict[str, RegisteredDriver] = {}
        self.on_change: Callable[[str], None] = lambda name: None
        """Called with a driver's name after each registration and deregistration."""

    def get(self, name: str) -> RegisteredDriver:
        """The driver of that name. Raises: NotFoundError in the words of Kubernetes."""
        driver = self._drivers.get(name)
        if driver is None:
            raise NotFoundError(f"driver name {name} not found in the list of registered CSI drivers")
        return driver

    def find(self, name: str) -> RegisteredDriver | None:
        """The driver of that name, if it is registered."""
        return self._drivers.get(name)

    def names(self) -> list[str]:
        """All registered names."""
        return list(self._drivers)

    def put(self, driver: RegisteredDriver) -> None:
        """Register; the driver that had the name is replaced."""
        self._drivers[driver.name] = driver
        self.on_change(driver.name)

    def remove(self, name: str) -> None:
        """Deregister; an unknown name is ignored."""
        if self._drivers.pop(name, None) is not None:
            self.on_change(name)
