"""Boxes of this machine, as far as verbs of an installation ask for them.

The distribution tonnage-box describes them; its entry point in the group `tonnage.local_box` is called with a data
folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

from tonnage.storage.pools.kind import PoolConfig

GROUP = "tonnage.local_box"


class LocalBox(Protocol):
    """The box of a data folder. Only nodes(), sockets() and check_programs() raise NotFoundError without a cluster."""

    path: Path
    kubeconfig: Path

    def exists(self) -> bool:
        """Whether the folder has a cluster."""

    def running(self) -> int | None:
        """pid of the process that runs it, -1 if another process holds the folder, None if there is none."""

    def held(self) -> AbstractContextManager[None]:
        """Lock the folder of a stopped box. Raises: BusyError."""

    def nodes(self) -> Mapping[str, Sequence[PoolConfig]]:
        """Node -> its pools. Raises: InvalidError for a folder that is not a box's."""

    def sockets(self, node: str) -> Sequence[Path]:
        """Sockets of the node's CSI drivers."""

    def kubelet(self, node: str) -> Path:
        """The directory of the node's kubelet."""

    def check_programs(self) -> None:
        """Check what the box needs of this machine. Raises: HostError."""


def of(folder: Path | None = None) -> LocalBox | None:
    """The box of a data folder, None: the folder of `tonnage up`. None where tonnage-box is not installed."""
    from importlib.metadata import entry_points  # a tenth of the start of a verb that asks for no box

    for found in entry_points(group=GROUP):
        return cast("LocalBox", found.load()(folder))
    return None
