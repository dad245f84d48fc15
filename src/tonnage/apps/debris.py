"""What a killed box leaves on the machine, and how it is put away: processes, mounts, loop devices, files."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tonnage.aio.clock import RealClock
from tonnage.apps.data import DataFolder
from tonnage.errors import HostError
from tonnage.host import loop, mount
from tonnage.kubelet.bubblewrap import BubblewrapRuntime
from tonnage.pools import config as pool_config
from tonnage.pools.directory import MARKER

_KILL_SECONDS = 5.0


def folders(data: DataFolder) -> list[Path]:
    """Everywhere a cluster keeps things: its data folder, its sockets, and pools that the user put elsewhere."""
    settings = data.settings()
    pools = [pool_config.parse(text).where for text in (settings.pools if settings else [])]
    return [data.path, data.sockets(), *(Path(os.path.abspath(p)) for p in pools if p is not None)]


def leftovers(data: DataFolder) -> list[str]:
    """Mounts and loop devices of this cluster that are there now, for people to read."""
    places = folders(data)
    return [f"mount {m}" for m in _mounts(places)] + [f"loop device {loop.device(i)}" for i in _loops(places)]


def clean(data: DataFolder) -> None:
    """End containers, unmount and detach everything of a cluster that no longer runs. Volumes stay. May be repeated.

    Raises HostError naming what could not be put away.
    """
    for node in _nodes(data):
        asyncio.run(_end_containers(node / "kubelet"))
    places = folders(data)
    for target in reversed(list(_mounts(places))):  # what was mounted last lies on top
        mount.umount(target, lazy=False)
    for index in _loops(places):
        loop.detach(index)
    if left := leftovers(data):
        raise HostError(f"still in use: {', '.join(left)}; end what uses it and repeat")


def remove(data: DataFolder) -> None:
    """clean(), then remove the data folder and the cluster's part of pools elsewhere. May be repeated."""
    if not data.exists():
        return
    clean(data)
    settings = data.settings()
    for text in settings.pools if settings else []:
        where = pool_config.parse(text).where
        for node in _nodes(data):
            if where is not None:
                _erase(where / node.name)
    data.purge()


async def _end_containers(kubelet: Path) -> None:
    """Kill the containers that outlived their kubelet, and wait for their end."""
    runtime = BubblewrapRuntime(kubelet, RealClock())
    ended = asyncio.Event()
    pods = Path(runtime.paths.pods)
    for pod in sorted(pods.iterdir()) if pods.is_dir() else []:
        for found in await runtime.adopt(pod.name, None, ended.set):
            while found.process.ended is None:
                ended.clear()
                found.process.stop(0)
                await asyncio.wait_for(ended.wait(), _KILL_SECONDS)
        await runtime.clean(pod.name)
    await runtime.close()


def _erase(pool: Path) -> None:
    """Remove a node's pool elsewhere, if it is one of ours."""
    if (pool / MARKER).is_file() and not pool.is_symlink():
        shutil.rmtree(pool)


def _nodes(data: DataFolder) -> list[Path]:
    nodes = data.path / "nodes"
    return sorted(nodes.iterdir()) if nodes.is_dir() else []


def _mounts(places: list[Path]) -> Iterator[str]:
    for found in mount.mounts():
        if any(_inside(found.target, place) for place in places):
            yield found.target


def _loops(places: list[Path]) -> Iterator[int]:
    for index, file in loop.attached():
        if any(_inside(file.removesuffix(" (deleted)"), place) for place in places):
            yield index


def _inside(path: str, place: Path) -> bool:
    return path == str(place) or path.startswith(f"{place}/")
