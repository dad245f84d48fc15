"""Inventory of pools and volumes: through the socket of a running driver, else read directly.

Our own drivers list everything at their socket; for other drivers the inventory has what CSI calls return. Reading
directly opens a pool as a driver's start does, which removes leftovers of a kill, and closes it at once. Pools that
were never made are not made by the inventory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tonnage.base.errors import HostError, NotFoundError, TonnageError, UnavailableError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import LIST_SNAPSHOTS, AccessMode, VolumeCapability
from tonnage.csi.driver.services import inventory as inventories
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import names
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools.core import status
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.core.status import PoolStatus
from tonnage.storage.pools.directory.directory import is_unmounted
from tonnage.storage.pools.kind import PoolConfig
from tonnage.tools.ops.report import (
    GONE,
    NOT_MADE,
    Contents,
    PoolReport,
    VolumeReport,
    contents_of,
    listed,
    listed_snapshot,
)


class Served:
    """Pools of one node behind the sockets of running drivers. configs: of known pools."""

    def __init__(self, sockets: Sequence[Path], configs: Sequence[PoolConfig] = (), *, node: str = "") -> None:
        self.sockets, self.configs, self.node = sockets, configs, node

    async def pools(self) -> list[PoolReport]:
        """Return all pools.

        Of a foreign driver those that are known by name: given here, its default one, and those that have volumes.

        Raises: CsiError when the driver does not answer.
        """
        known = {config.name: _about(config, self.node) for config in self.configs}
        if (answer := await inventories.read(self.sockets[0])) is not None:
            found = {pool.pool: self._about(pool.pool, known).with_status(pool) for pool in answer}
            missing = [report for name, report in known.items() if name not in found]
            there_is = ", ".join(found)
            state = {report.pool: f"there is no pool {report.pool!r} (there is {there_is})" for report in missing}
            return [*found.values(), *(msgspec.structs.replace(lost, state=state[lost.pool]) for lost in missing)]
        volumes = (await self.contents()).volumes
        async with CsiClient(self.sockets[0]) as client:
            info = await client.plugin_info()
            default = info.manifest.get(names.MANIFEST_DEFAULT_POOL, "")
            pools = dict.fromkeys([*known, *([default] if default else []), *(v.pool for v in volumes)])
            return [await self._asked(client, self._about(name, known), volumes) for name in pools]

    def _about(self, name: str, known: dict[str, PoolReport]) -> PoolReport:
        return known.get(name) or PoolReport(name, node=self.node)

    async def _asked(self, client: CsiClient, about: PoolReport, volumes: Sequence[VolumeReport]) -> PoolReport:
        mine = [v.size for v in volumes if v.pool == about.pool]
        try:
            capacity = await client.get_capacity({"pool": about.pool})
        except CsiError as failure:
            return msgspec.structs.replace(about, state=failure.message)
        return msgspec.structs.replace(
            about, free=capacity.available, largest=capacity.maximum, allocated=sum(mine), volumes=len(mine)
        )

    async def contents(self) -> Contents:
        """All volumes, snapshots and erasures; of drivers of others no inline volumes, which no CSI call lists.

        Raises: CsiError.
        """
        volumes: dict[str, VolumeReport] = {}
        snapshots: dict[str, VolumeReport] = {}
        answer = Contents()
        for number, socket in enumerate(self.sockets):
            async with CsiClient(socket) as client:
                driver = (await client.plugin_info()).name
                pools = await inventories.read(socket)
                for made in await client.list_volumes():
                    volumes.setdefault(made.id, listed(made, driver, self.node))
                if pools is None and LIST_SNAPSHOTS in await client.controller_capabilities():
                    for snapshot in await client.list_snapshots():
                        snapshots.setdefault(snapshot.id, listed_snapshot(snapshot, driver, self.node))
                if pools is not None and not number:  # all drivers of a node are over the same pools
                    answer = contents_of(pools, node=self.node, driver=driver)
        for volume in answer.volumes:
            other = volumes.get(volume.id)
            volumes[volume.id] = (
                msgspec.structs.replace(volume, driver=other.driver, topology=other.topology) if other else volume
            )
        snapshots.update({snapshot.id: snapshot for snapshot in answer.snapshots})
        return Contents(_ordered(volumes), _ordered(snapshots), answer.erasing, answer.trash)

    async def delete(self, volume: VolumeReport) -> None:
        """Delete a volume or snapshot. Idempotent. Raises: CsiError, also while it is in use."""
        async with CsiClient(await self._socket(volume)) as client:
            if volume.snapshot_of:
                await client.delete_snapshot(volume.id)
            else:
                await client.delete_volume(volume.id)

    async def topology(self, volume: VolumeReport) -> Mapping[str, str]:
        """Labels of the node of a volume. Raises: CsiError."""
        async with CsiClient(await self._socket(volume)) as client:
            return (await client.node_info()).topology

    async def restore(self, volume: VolumeReport) -> None:
        """Make a volume of trash. Idempotent. Raises: CsiError, also when it is evicted."""
        async with CsiClient(await self._socket(volume)) as client:
            await client.restore_volume(volume.id)

    async def is_block(self, volume: VolumeReport) -> bool:
        """Whether it is raw block. Raises: CsiError."""
        if volume.block is not None:
            return volume.block
        async with CsiClient(await self._socket(volume)) as client:
            return await client.validate(volume.id, [VolumeCapability(AccessMode.SINGLE_NODE_WRITER)]) is not None

    async def _socket(self, volume: VolumeReport) -> Path:
        for socket in self.sockets:
            async with CsiClient(socket) as client:
                if (await client.plugin_info()).name == volume.driver:
                    return socket
        raise NotFoundError(f"no driver {volume.driver} answers any more")


class Direct:
    """Pools of one node that no process serves."""

    def __init__(self, configs: Sequence[PoolConfig], *, node: str = "") -> None:
        self.configs, self.node = configs, node

    async def pools(self) -> list[PoolReport]:
        """All pools; one that cannot be opened has its error as state."""
        return [await self._pool(config) for config in self.configs]

    async def _pool(self, config: PoolConfig) -> PoolReport:
        about = _about(config, self.node)
        if not _is_made(config):
            return msgspec.structs.replace(about, state=NOT_MADE if config.kind.is_real else GONE)
        try:
            return about.with_status(await _read(config))
        except TonnageError as failure:
            return msgspec.structs.replace(about, state=str(failure))

    async def contents(self) -> Contents:
        """Return all volumes, snapshots and erasures.

        Raises: UnavailableError when a pool cannot be read: a list with holes is worse than none.
        """
        return contents_of([await _read(c) for c in self.configs if _is_made(c)], node=self.node)

    async def delete(self, volume: VolumeReport) -> None:
        """Delete a volume or snapshot. Idempotent. Raises: PreconditionError while it is in use, UnavailableError."""
        for config in self.configs:
            if config.name == volume.pool:
                async with _opened(config) as pool:
                    if volume.snapshot_of:
                        await pool.snapshots.delete(volume.name)
                    elif not await pool.trash.discard(volume.name):
                        await pool.delete(volume.name)


Source = Served | Direct


async def answers(socket: Path) -> bool:
    """Whether a driver serves that socket. Raises: HostError where we may not ask."""
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except PermissionError as failure:
        raise HostError(f"socket {socket}: {failure.strerror}; run it as root (sudo)") from None
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def _opened(config: PoolConfig) -> AsyncIterator[Pool]:
    """Open a pool for one reading. Raises: UnavailableError."""
    pool = pool_config.make(config.existing())
    try:
        await pool.open()
    except UnavailableError as failure:
        if "in use" not in str(failure):
            raise
        hint = "read it through the socket of its driver with --endpoint, or through its cluster with --data"
        raise UnavailableError(f"pool {config.name} is held by another process: {hint}") from None
    try:
        yield pool
    finally:
        await pool.close()


async def _read(config: PoolConfig) -> PoolStatus:
    """Raises: UnavailableError and the like."""
    async with _opened(config) as pool:
        found = await status.read(pool)
        if found.problem:
            raise UnavailableError(found.problem)
        return found


def _ordered(found: dict[str, VolumeReport]) -> list[VolumeReport]:
    return [volume for _, volume in sorted(found.items())]


def _about(config: PoolConfig, node: str) -> PoolReport:
    return PoolReport(config.name, node=node, kind=config.kind.name, where=config.place, size=config.size or None)


def _is_made(config: PoolConfig) -> bool:
    """Whether a pool exists. A pool in an unused directory must not be created by reading it."""
    if not config.kind.is_real:
        return False
    return config.marker is None or config.marker.exists() or is_unmounted(config.marker.parent)
