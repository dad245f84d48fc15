"""A box of this machine, for the verbs that tonnage has without tonnage-box: `tonnage.tools.ops.local_box.LocalBox`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tonnage.base.errors import NotFoundError
from tonnage.kubernetes.api import names
from tonnage.storage.pools.kind import PoolConfig
from tonnage_box import plan
from tonnage_box.data_dir import DataFolder, Settings, default_folder, no_cluster


class FoundBox:
    """The box of a data folder, None for that of `tonnage up`. Everything is read when it is asked for."""

    def __init__(self, folder: Path | None = None) -> None:
        self._data = DataFolder(folder or default_folder())
        self.path = self._data.path
        self.kubeconfig = self._data.kubeconfig

    def exists(self) -> bool:
        """Whether the folder has a cluster."""
        return self._data.exists()

    def running(self) -> int | None:
        """pid of the process that runs it, -1 if another process holds the folder, None if there is none."""
        return self._data.running()

    def held(self) -> AbstractContextManager[None]:
        """Lock the folder of a stopped box. Raises: BusyError."""
        return self._data.held()

    def nodes(self) -> Mapping[str, Sequence[PoolConfig]]:
        """Node -> its pools. Raises: NotFoundError without a cluster, InvalidError for a folder that is not ours."""
        return plan.saved_nodes(self._data)

    def sockets(self, node: str) -> Sequence[Path]:
        """Sockets of the node's CSI drivers, ours first. Raises: as nodes()."""
        words = self._settings().compat
        drivers = [names.DRIVER, *(names.COMPAT_DRIVERS[word] for word in words)]
        return [self._data.sockets() / node / f"{driver}.sock" for driver in drivers]

    def kubelet(self, node: str) -> Path:
        """The directory of the node's kubelet."""
        return self._data.node(node) / "kubelet"

    def check_programs(self) -> None:
        """Check what its runtime and pools need of this machine. Raises: HostError, and as nodes()."""
        configs = [config for pools in self.nodes().values() for config in pools]
        plan.check_programs(self._settings().runtime, configs)

    def _settings(self) -> Settings:
        settings = self._data.settings()
        if settings is None:
            raise NotFoundError(no_cluster(self.path))
        return settings
