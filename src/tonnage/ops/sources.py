"""Sources of `tonnage pools` and `tonnage volumes`: a data folder, a driver's socket, a configuration, pools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tonnage.api import names
from tonnage.csi.server.sockets import socket_path
from tonnage.errors import BusyError, InvalidError, NotFoundError, UnavailableError
from tonnage.inline.memory import recorded
from tonnage.kube.client import Client
from tonnage.kube.http import HttpTransport
from tonnage.kube.kubeconfig import load
from tonnage.node.config import driver as config_driver
from tonnage.ops import inventory
from tonnage.ops.inventory import Direct, Served, Source
from tonnage.ops.report import Contents, PoolReport, VolumeReport, of_inline_driver
from tonnage.pools import config as pool_config
from tonnage.pools.kind import PoolConfig

if TYPE_CHECKING:
    from tonnage.box.data_dir import DataFolder


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
        """All pools of all nodes. Raises CsiError when a driver does not answer."""
        return [report for source in self.nodes for report in await source.pools()]

    async def contents(self) -> Contents:
        """All volumes, snapshots and erasures; also volumes of inline drivers. Raises CsiError, UnavailableError."""
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
        async with Client(HttpTransport(load(self.kubeconfig))) as client:
            yield client


@asynccontextmanager
async def opened(wanted: Wanted) -> AsyncIterator[ClusterSources]:
    """The requested sources; the data folder of a stopped box is locked while they are in use.

    Raises InvalidError, NotFoundError, BusyError, UnavailableError.
    """
    if wanted.endpoint or wanted.config or wanted.pools:
        if wanted.data:
            raise InvalidError("--data is a box; --endpoint, --config and --pool are a driver: choose one")
        yield await _of_driver(wanted)
        return
    try:
        from tonnage.box import plan
        from tonnage.box.data_dir import DataFolder, default_folder, no_cluster
    except ModuleNotFoundError:  # in the container image
        raise NotFoundError("no box is installed here; name a driver with --endpoint, --config or --pool") from None
    data = DataFolder(wanted.data or default_folder())
    if data.settings() is None:
        hint = "name a box's folder with --data, or a driver with --endpoint, --config or --pool"
        raise NotFoundError(f"{no_cluster(data.path)}; {hint}")
    running = data.running()
    if running is not None:
        if running < 0:
            raise BusyError(f"data folder {data.path} is being cleaned or opened by another process: repeat")
        yield _of_running(data, plan.saved_nodes(data), wanted)
        return
    with data.held():
        nodes = plan.saved_nodes(data)
        why = f"its cluster does not run: `tonnage up --data {data.path}`"
        sources = [Direct(pools, node=name) for name, pools in nodes.items()]
        yield ClusterSources(sources, wanted.kubeconfig, why)


def _of_running(data: DataFolder, nodes: dict[str, list[PoolConfig]], wanted: Wanted) -> ClusterSources:
    settings = data.settings()
    drivers = [names.DRIVER, *(names.COMPAT_DRIVERS[word] for word in (settings.compat if settings else ()))]
    sources = [
        Served([data.sockets() / name / f"{driver}.sock" for driver in drivers], pools, node=name)
        for name, pools in nodes.items()
    ]
    kubelets = {name: data.node(name) / "kubelet" for name in nodes}
    return ClusterSources(sources, wanted.kubeconfig or data.kubeconfig, kubelets=kubelets)


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
