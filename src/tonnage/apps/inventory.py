"""What pools and volumes there are: through a driver's socket where one runs, for it holds its pools, else directly.

Reading directly opens a pool as a driver's start does, which puts away what a kill left half done, and gives it back
at once. Pools that were never made are not made by looking at them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tonnage.aio.clock import rfc3339
from tonnage.api import names
from tonnage.csi import volume_id
from tonnage.csi.client import CsiClient
from tonnage.csi.driver import CONTEXT_CREATED, OWNER_DRIVER, is_inline
from tonnage.csi.errors import CsiError
from tonnage.csi.words import AccessMode, CreatedVolume, VolumeCapability
from tonnage.errors import NotFound, TonnageError, Unavailable
from tonnage.pools import config as pool_config
from tonnage.pools.base import Pool, Volume
from tonnage.pools.config import PoolConfig
from tonnage.pools.directory import MARKER


class PoolReport(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A pool; sizes in bytes, None for what cannot be told. state: "ready", NOT_MADE, GONE, or what is wrong."""

    pool: str
    state: str = "ready"
    node: str = ""
    kind: str = ""
    where: str = ""
    size: int | None = None
    free: int | None = None
    largest: int | None = None
    promised: int | None = None
    volumes: int | None = None

    @property
    def readable(self) -> bool:
        """Whether the numbers are there, or none is to be expected."""
        return self.free is not None or self.state in (NOT_MADE, GONE)


class VolumeReport(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A volume. id: its CSI id. claim: namespace/name that it was made for. pod: of an inline volume. block, fstype:
    only where it was read directly. topology: labels of the node it is on."""

    id: str
    size: int
    node: str = ""
    driver: str = ""
    created: str = ""
    claim: str = ""
    persistent_volume: str = ""
    cluster: str = ""
    ephemeral: bool = False
    reclaim: str = ""
    inline: bool = False
    pod: str = ""
    block: bool | None = None
    fstype: str = ""
    topology: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """Without its pool."""
        return self.id.partition("/")[2]

    @property
    def pool(self) -> str:
        """The pool it lies in."""
        return self.id.partition("/")[0]

    @property
    def used_by(self) -> str:
        """Whom it was made for, in words."""
        if self.inline:
            return f"pod {self.pod}" if self.pod else "a pod (inline)"
        return f"claim {self.claim}" if self.claim else ""


NOT_MADE = "not made yet"
GONE = "memory: ended with its driver"


class Served:
    """The pools of one node behind the sockets of a running driver. pools: what is known of them from elsewhere."""

    def __init__(self, sockets: Sequence[Path], pools: Sequence[PoolConfig] = (), *, node: str = "") -> None:
        self.sockets, self._pools, self._node = sockets, pools, node

    async def pools(self) -> list[PoolReport]:
        """All pools that are known by name: given here, the driver's default one, and those that have volumes.

        Raises CsiError when the driver does not answer.
        """
        volumes = await self.volumes()
        async with CsiClient(self.sockets[0]) as client:
            info = await client.plugin_info()
            default = info.manifest.get(names.MANIFEST_DEFAULT_POOL, "")
            known = {pool.name: pool for pool in self._pools}
            found = dict.fromkeys([*known, *([default] if default else []), *(v.pool for v in volumes)])
            return [await self._pool(client, name, known.get(name), volumes) for name in found]

    async def _pool(
        self, client: CsiClient, name: str, known: PoolConfig | None, volumes: Sequence[VolumeReport]
    ) -> PoolReport:
        mine = [v.size for v in volumes if v.pool == name]
        about = _about(known, self._node) if known else PoolReport(name, node=self._node)
        try:
            room = await client.get_capacity({"pool": name})
        except CsiError as failure:
            return msgspec.structs.replace(about, state=failure.message)
        return msgspec.structs.replace(
            about, free=room.available, largest=room.maximum, promised=sum(mine), volumes=len(mine)
        )

    async def volumes(self) -> list[VolumeReport]:
        """All volumes but inline ones, which no CSI call lists. Raises CsiError."""
        found: dict[str, VolumeReport] = {}
        for socket in self.sockets:
            async with CsiClient(socket) as client:
                driver = (await client.plugin_info()).name
                for made in await client.list_volumes():
                    found.setdefault(made.id, _listed(made, driver, self._node))
        return sorted(found.values(), key=lambda volume: volume.id)

    async def delete(self, volume: VolumeReport) -> None:
        """Delete a volume. May be repeated. Raises CsiError, also while it is in use."""
        async with CsiClient(await self._socket(volume)) as client:
            await client.delete_volume(volume.id)

    async def is_block(self, volume: VolumeReport) -> bool:
        """Whether it is raw block. Raises CsiError."""
        async with CsiClient(await self._socket(volume)) as client:
            return await client.validate(volume.id, [VolumeCapability(AccessMode.SINGLE_NODE_WRITER)]) is not None

    async def _socket(self, volume: VolumeReport) -> Path:
        for socket in self.sockets:
            async with CsiClient(socket) as client:
                if (await client.plugin_info()).name == volume.driver:
                    return socket
        raise NotFound(f"no driver {volume.driver} answers any more")


class Direct:
    """The pools of one node, which no process serves."""

    def __init__(self, pools: Sequence[PoolConfig], *, node: str = "") -> None:
        self._pools, self._node = pools, node

    async def pools(self) -> list[PoolReport]:
        """All pools; one that cannot be opened says why."""
        return [await self._pool(config) for config in self._pools]

    async def _pool(self, config: PoolConfig) -> PoolReport:
        about = _about(config, self._node)
        if not _is_made(config):
            return msgspec.structs.replace(about, state=NOT_MADE if config.where else GONE)
        try:
            async with _Open(config) as pool:
                room, volumes = await pool.capacity(), await pool.list()
        except TonnageError as failure:
            return msgspec.structs.replace(about, state=str(failure))
        return msgspec.structs.replace(
            about,
            size=room.total,
            free=room.free,
            largest=room.largest,
            promised=sum(volume.size for volume in volumes),
            volumes=len(volumes),
        )

    async def volumes(self) -> list[VolumeReport]:
        """All volumes. Raises Unavailable when a pool cannot be opened: a list with holes is worse than none."""
        found: list[VolumeReport] = []
        for config in self._pools:
            if _is_made(config):
                async with _Open(config) as pool:
                    found += [_recorded(volume, pool.name, self._node) for volume in await pool.list()]
        return sorted(found, key=lambda volume: volume.id)

    async def delete(self, volume: VolumeReport) -> None:
        """Delete a volume. May be repeated. Raises Precondition while it is in use, Unavailable."""
        for config in self._pools:
            if config.name == volume.pool:
                async with _Open(config) as pool:
                    await pool.delete(volume.name)


Source = Served | Direct


async def answers(socket: Path) -> bool:
    """Whether a driver serves that socket."""
    with suppress(OSError):
        _, writer = await asyncio.open_unix_connection(str(socket))
        writer.close()
        return True
    return False


class _Open:
    """A pool for a moment."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._pool = pool_config.make(config)

    async def __aenter__(self) -> Pool:
        try:
            await self._pool.open()
        except Unavailable as failure:
            if "in use" not in str(failure):
                raise
            hint = "read it through the socket of its driver with --endpoint, or through its cluster with --data"
            raise Unavailable(f"pool {self._config.name} is held by another process: {hint}") from None
        return self._pool

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()


def _about(config: PoolConfig, node: str) -> PoolReport:
    where = str(config.where) if config.where else ""
    return PoolReport(config.name, node=node, kind=config.kind, where=where, size=config.size or None)


def _is_made(config: PoolConfig) -> bool:
    return config.where is not None and (config.where / MARKER).exists()


def _listed(made: CreatedVolume, driver: str, node: str) -> VolumeReport:
    return _report(made.id, made.size, node, driver, made.context, made.context.get(CONTEXT_CREATED, ""), made)


def _recorded(volume: Volume, pool: str, node: str) -> VolumeReport:
    driver = volume.owner.get(OWNER_DRIVER, "")
    vid = volume_id.join(pool, volume.name)
    report = _report(vid, volume.size, node, driver, volume.owner, rfc3339(volume.created))
    return msgspec.structs.replace(report, block=volume.block, fstype=volume.fstype, inline=is_inline(volume))


def _report(
    vid: str,
    size: int,
    node: str,
    driver: str,
    record: Mapping[str, str],
    created: str,
    made: CreatedVolume | None = None,
) -> VolumeReport:
    return VolumeReport(
        vid,
        size,
        node=node,
        driver=driver,
        created=created,
        claim=_pair(record, names.CSI_PVC_NAMESPACE, names.CSI_PVC_NAME),
        persistent_volume=record.get(names.CSI_PV_NAME, ""),
        cluster=record.get(names.PARAM_CLUSTER, ""),
        ephemeral=record.get(names.PARAM_EPHEMERAL) == "true",
        reclaim=record.get(names.PARAM_RECLAIM, ""),
        pod=_pair(record, names.CSI_POD_NAMESPACE, names.CSI_POD_NAME),
        topology=dict(made.topologies[0]) if made and made.topologies else {},
    )


def _pair(record: Mapping[str, str], namespace: str, name: str) -> str:
    return f"{record.get(namespace, '')}/{record[name]}" if name in record else ""
