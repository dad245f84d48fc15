"""Sources of `tonnage pools` and `tonnage volumes`: a data folder, a driver's socket, a configuration, pools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tonnage.base.errors import BusyError, InvalidError, NotFoundError, UnavailableError
from tonnage.csi.inline.memory import recorded
from tonnage.csi.server.sockets import socket_path
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.kubeconfig import load
from tonnage.node.config import driver as config_driver
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools.kind import PoolConfig
from tonnage.tools.ops import inventory, local_box
from tonnage.tools.ops.inventory import Direct, Served, Source
from tonnage.tools.ops.local_box import LocalBox
from tonnage.tools.ops.report import Contents, PoolReport, VolumeReport, of_inline_driver


@dataclass(frozen=True)
class Wanted:
    """Options of the command line, "" or empty where not given."""

    data: Path | None = None
    endpoint: str = ""
    config: Path | None = None
    pools: Sequence[str] = ()
    kubeconfig: Path | None = None


@dataclass(frozen=True)
class ClusterSources:
    """One source for each node.

    kubeconfig: of the cluster that owns the volumes, None if there is none; why_none says how to provide one. kubelets:
    node -> the kubelet's directory, of nodes with inline drivers.
    """

    nodes: Sequence[Source]
    kubeconfig: Path | None = None
    why_none: str = "name its kubeconfig with --kubeconfig"
    kubelets: Mapping[str, Path] = field(default_factory=dict)

    @property
    def configs(self) -> list[PoolConfig]:
        """Configurations of all pools."""
        return [config for source in self.nodes for config in source.configs]

    async def pools(self) -> list[PoolReport]:
        """All pools of all nodes. Raises: CsiError when a driver does not answer."""
        return [report for source in self.nodes for report in await source.pools()]

    async def contents(self) -> Contents:
        """All volumes, snapshots and erasures; also volumes of inline drivers. Raises: CsiError, UnavailableError."""
        found = [await source.contents() for source in self.nodes]
        return Contents(
            [*(volume for contents in found for volume in contents.volumes), *self._inline()],
            [snapshot for contents in found for snapshot in contents.snapshots],
            [erasure for contents in found for erasure in contents.erasing],
            [volume for contents in found for volume in contents.trash],
        )

    def _inline(self) -> Iterator[VolumeReport]:
        for node, kubelet in self.kubelets.items():
            yield from (of_inline_driver(volume, node) for volume in recorded(kubelet))

    def source_of(self, volume: VolumeReport) -> Source:
        """Source of a volume or snapshot of its contents."""
        return next(source for source in self.nodes if source.node == volume.node)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client | None]:
        """A client of the cluster, None where none can be asked."""
        if self.kubeconfig is None:
            yield None
            return
        from tonnage.kubernetes.client.http import HttpTransport  # a third of the start of a verb that asks no cluster

        async with Client(HttpTransport(load(self.kubeconfig))) as client:
            yield client


@asynccontextmanager
async def opened(wanted: Wanted) -> AsyncIterator[ClusterSources]:
    """The requested sources; the data folder of a stopped box is locked while they are in use.

    Raises: InvalidError, NotFoundError, BusyError, UnavailableError.
    """
    if wanted.endpoint or wanted.config or wanted.pools:
        if wanted.data:
            raise InvalidError("--data is a box; --endpoint, --config and --pool are a driver: choose one")
        yield await _of_driver(wanted)
        return
    box = local_box.of(wanted.data)
    if box is None:
        raise NotFoundError("tonnage-box is not installed here; name a driver with --endpoint, --config or --pool")
    nodes = box.nodes()
    running = box.running()
    if running is not None:
        if running < 0:
            raise BusyError(f"data folder {box.path} is being cleaned or opened by another process: repeat")
        yield _of_running(box, nodes, wanted)
        return
    with box.held():
        nodes = box.nodes()
        why = f"its cluster does not run: `tonnage up --data {box.path}`"
        sources = [Direct(pools, node=name) for name, pools in nodes.items()]
        yield ClusterSources(sources, wanted.kubeconfig, why)


def _of_running(box: LocalBox, nodes: Mapping[str, Sequence[PoolConfig]], wanted: Wanted) -> ClusterSources:
    sources = [Served(box.sockets(name), pools, node=name) for name, pools in nodes.items()]
    kubelets = {name: box.kubelet(name) for name in nodes}
    return ClusterSources(sources, wanted.kubeconfig or box.kubeconfig, kubelets=kubelets)


async def _of_driver(wanted: Wanted) -> ClusterSources:
    file = config_driver.load(wanted.config) if wanted.config else {}
    pools = [pool_config.parse(text) for text in wanted.pools]
    pools += config_driver.pools_of(file, str(wanted.config))
    text = wanted.endpoint or file.get("endpoint", "")
    socket = socket_path(text) if text else None
    if socket is not None and await inventory.answers(socket):
        node, plugins = file.get("node_name", ""), socket.parent.parent
        kubelets = {node: plugins.parent} if plugins.name == "plugins" else {}  # <kubelet>/plugins/<driver>/csi.sock
        return ClusterSources([Served([socket], pools, node=node)], wanted.kubeconfig, kubelets=kubelets)
    if wanted.endpoint and not pools:
        raise UnavailableError(f"no driver answers at {socket}: start it, or read its pools with --config or --pool")
    return ClusterSources([Direct(pools, node=file.get("node_name", ""))], wanted.kubeconfig)
