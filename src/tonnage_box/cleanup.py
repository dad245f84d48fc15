"""Cleanup of leftovers of a killed box: processes, mounts, loop devices, files."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator, Set
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import BusyError, HostError, PreconditionError, TonnageError, UnavailableError
from tonnage.host import loop, mount, tree
from tonnage.kubernetes.api import names
from tonnage.storage.pools import config as pool_config
from tonnage.storage.pools.btrfs.image_file import IMAGE_FILES, ROOT
from tonnage.storage.pools.directory.directory import MARKER, OWN
from tonnage.storage.pools.directory.snapshots import FOLDER as SNAPSHOTS
from tonnage.storage.pools.kind import PoolKind
from tonnage_box.data_dir import DataFolder
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime

_KILL_SECONDS = 5.0
_PAUSES = (0.01, 0.05, 0.1, 0.2, 0.4)  # seconds


def leftovers(data: DataFolder) -> list[str]:
    """Mounts and loop devices of this cluster that are there now, for people to read."""
    return [f"mount {m}" for m in _mounts(data)] + [f"loop device {loop.device(i)}" for i in _loops(data)]


def clean(data: DataFolder) -> None:
    """End containers, unmount and detach everything of a cluster that no longer runs. Idempotent. Blocking.

    Volumes stay, and so do mounts that are not the cluster's, wherever they are. Raises: HostError, naming what could
    not be put away; everything else is.
    """
    reasons = []
    for node in _nodes(data):
        try:
            asyncio.run(_end_containers(node / "kubelet"))
        except TonnageError as failure:
            reasons.append(str(failure))
    for target in reversed(list(_mounts(data))):  # the latest mount is on top
        try:
            mount.umount(target)
        except TonnageError as failure:
            reasons.append(str(failure))
    shown = {found.source for found in mount.mounts()} | {f"/dev{found.root}" for found in mount.mounts()}
    for index in _loops(data):
        if loop.device(index) not in shown:
            loop.detach(index)
    if left := _left_at_last(data):
        why = f" ({'; '.join(reasons)})" if reasons else ""
        raise HostError(f"still in use: {', '.join(left)}{why}; end what uses it and repeat")
    if reasons:
        raise HostError("; ".join(reasons))


def _left_at_last(data: DataFolder) -> list[str]:
    """Leftovers after a delay: the kernel frees a loop device a moment after its last umount."""
    for pause in _PAUSES:
        if next(_loops(data), None) is None:
            break
        time.sleep(pause)
    return leftovers(data)


def remove(data: DataFolder) -> None:
    """clean(), then remove the data folder and the cluster's part of pools elsewhere. Idempotent.

    Raises: PreconditionError when something that is not the cluster's is mounted where it would be removed, or when a
    pool elsewhere has volumes of another cluster, HostError.
    """
    if not data.exists():
        return
    clean(data)
    elsewhere = _elsewhere(data)
    for place in (data.path, *elsewhere):
        for found in mount.mounts():
            if found.target.startswith(f"{place}/"):
                raise PreconditionError(
                    f"{found.target} is a mount that is not tonnage's, in a folder that would be removed: unmount it "
                    "and repeat; nothing was removed"
                )
    own = {_cluster(data), *data.clusters()} - {""}
    prepared = {place: kind for kind, place in _places(data) if kind.is_prepared}
    for pool in (*elsewhere, *prepared):
        _reject_others(pool, own)
    for pool in elsewhere:
        _erase(pool)
    for directory, kind in prepared.items():
        _give_up(kind, directory)
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
                try:
                    await asyncio.wait_for(ended.wait(), _KILL_SECONDS)
                except TimeoutError:
                    raise HostError(f"container {found.name} of pod {pod.name} does not end when killed") from None
        await runtime.release(pod.name)
        await runtime.clean(pod.name)
    await runtime.close()


def _cluster(data: DataFolder) -> str:
    """The cluster's uid, "" if its database does not have it."""
    query = "SELECT data FROM objects WHERE collection = 'namespaces' AND name = 'kube-system'"
    try:
        with closing(sqlite3.connect(f"{data.state.absolute().as_uri()}?mode=ro", uri=True)) as state:
            (found,) = state.execute(query).fetchone() or ("{}",)
        return str(msgspec.json.decode(found)["metadata"]["uid"])
    except (sqlite3.Error, msgspec.MsgspecError, KeyError, TypeError):
        return ""


class _Owned(msgspec.Struct):
    """Fields read from the record of a volume or snapshot, or of a disk that is a volume."""

    owner: dict[str, str] = {}
    volume: _Owned | None = None


def _reject_others(pool: Path, own: Set[str]) -> None:
    """Check that no other cluster, given the same directory, has volumes in a pool. Raises: PreconditionError.

    own: uids of the clusters that the data folder had, none where they are not known.
    """
    clusters = set()
    for record in (record for folder in (pool, pool / SNAPSHOTS, pool / OWN) for record in folder.glob("*.json")):
        with suppress(msgspec.MsgspecError, OSError):
            found = msgspec.json.decode(record.read_bytes(), type=_Owned)
            clusters.add((found.volume or found).owner.get(names.PARAM_CLUSTER, ""))
        others = clusters - own - {""}
        if len(others) > (0 if own else 1):
            raise PreconditionError(
                f"pool directory {pool} has volumes of another cluster ({record.stem}): purge them there first, or"
                " remove the directory yourself; nothing was removed"
            )


def remove_unused(pool: Path) -> None:
    """Remove the folder of a pool that has no volume. Raises: BusyError, HostError.

    All in it are hidden files of ours, or an image whose inside the caller has looked into.
    """
    _erase(pool, used=False)


def _erase(pool: Path, *, used: bool = True) -> None:
    """Remove a node's pool elsewhere, if it is one of ours.

    used: also one that has volumes. Raises: BusyError, HostError.
    """
    if not (pool / MARKER).is_file() or pool.is_symlink():
        return
    try:
        with open(pool / MARKER, "rb") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if used or not any(map(_holds_data, os.scandir(pool))):
                tree.remove(pool, keep=MARKER)
    except BlockingIOError:
        raise BusyError(f"pool directory {pool} is in use by another process: it is not removed") from None
    except OSError as failure:
        raise HostError(f"cannot remove pool directory {pool}: {failure.strerror}") from failure


def _holds_data(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a pool's folder is or has a volume or snapshot; records are next to their images."""
    if entry.name == SNAPSHOTS:
        return any(not name.startswith(".") for name in os.listdir(entry))
    return not entry.name.startswith(".") and entry.name not in IMAGE_FILES


def _nodes(data: DataFolder) -> list[Path]:
    nodes = data.path / "nodes"
    return sorted(nodes.iterdir()) if nodes.is_dir() else []


def _give_up(kind: PoolKind[Any], directory: Path) -> None:
    """Delete a node's volumes on disks that the user prepared; disks and directory stay.

    Raises: BusyError, HostError.
    """
    try:
        if kind.give_up is not None:
            kind.give_up(directory)
    except UnavailableError as failure:
        raise BusyError(f"the volumes in {directory} are not deleted: {failure}") from failure


def _places(data: DataFolder) -> list[tuple[PoolKind[Any], Path]]:
    """The nodes' parts of directories outside of the data folder."""
    settings = data.settings()
    configs = [pool_config.parse(text) for text in (settings.pools if settings else [])]
    return [(c.kind, c.where.resolve() / node.name) for c in configs if c.where is not None for node in _nodes(data)]


def _elsewhere(data: DataFolder) -> list[Path]:
    """Those that pools have made; not disks that the user prepared."""
    return [place for kind, place in _places(data) if not kind.is_prepared]


def _pools(data: DataFolder) -> list[Path]:
    inside = [pool for node in _nodes(data) for pool in node.glob("pools/*")]
    return [*inside, *_elsewhere(data)]


def _mounts(data: DataFolder) -> Iterator[str]:
    """Mounts of the cluster: volumes in its kubelets' folders, and the insides of its pools.

    Any other mount, even in or below these folders' parents, is the user's.
    """
    kubelets = [f"{node}/kubelet/" for node in _nodes(data)]
    roots = {f"{pool}/{ROOT}" for pool in _pools(data)}
    for found in mount.mounts():
        if found.target in roots or found.target.startswith(tuple(kubelets)):
            yield found.target


def _loops(data: DataFolder) -> Iterator[int]:
    pools = {str(pool) for pool in _pools(data)}
    for index, file in loop.attached():
        if (pool := os.path.dirname(file)) in pools and loop.lies_in(index, pool):
            yield index
