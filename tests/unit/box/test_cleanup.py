"""Putting away what a killed box left: all of its own, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tonnage.base.errors import BusyError, HostError, PreconditionError
from tonnage.host import loop, mount
from tonnage.storage.pools.directory.directory import MARKER, OWN
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.cleanup import clean, leftovers, remove
from tonnage_box.data_dir import DataFolder, Settings

VOLUME = "kubelet/pods/uid/volumes/kubernetes.io~csi/pv/mount"


@pytest.fixture
def user(real_folder: Path) -> Path:
    """A folder of the user's with a file."""
    folder = real_folder / "user"
    folder.mkdir()
    (folder / "file").write_text("mine")
    return folder


@pytest.fixture
def data(real_folder: Path) -> Iterator[DataFolder]:
    """A cluster with one node whose pool lies elsewhere, as a killed process left it."""
    where = real_folder / "disk"
    data = DataFolder(real_folder / "data")
    data.open(Settings(pools=[f"image:{where},name=scratch,size=1Gi"]))
    data.close()
    (data.node("node-1") / VOLUME).mkdir(parents=True)
    (where / "node-1").mkdir(parents=True)
    (where / "node-1" / MARKER).write_text("{}")
    yield data
    for entry in reversed(list(mount.mounts())):
        if entry.target.startswith(str(real_folder)):
            mount.umount(entry.target, lazy=True)


def _mounted(path: Path) -> Path:
    mount.mount("tmpfs", path, "tmpfs")
    return path


@pytest.mark.real
def test_volumes_are_unmounted_and_their_loop_devices_freed(data: DataFolder, real_folder: Path) -> None:
    volume = _mounted(data.node("node-1") / VOLUME)
    image = real_folder / "disk" / "node-1" / "pvc-1.img"
    image.write_bytes(bytes(1 << 20))
    with image.open("r+b") as file:
        device = loop.attach(file.fileno(), str(image), autoclear=False)
    device.close()
    assert leftovers(data) == [f"mount {volume}", f"loop device {device.path}"]
    clean(data)
    assert leftovers(data) == []
    assert not loop.backs(device.index, image)
    assert image.exists()
    remove(data)
    assert not image.parent.exists()
    assert not data.path.exists()


@pytest.mark.real
def test_disks_of_the_user_stay_mounted(data: DataFolder, real_folder: Path, user: Path) -> None:
    """--pool image:/mnt/disk and --data /mnt/disk name mount points that are not ours."""
    for place in (real_folder / "disk", data.path):
        mount.bind(place, place)
    mount.bind(user, real_folder / "disk" / "node-1")
    clean(data)
    assert leftovers(data) == []
    for place in (real_folder / "disk", data.path, real_folder / "disk" / "node-1"):
        assert mount.is_mount(place)


@pytest.mark.real
def test_a_purge_never_reaches_into_a_foreign_mount(data: DataFolder, user: Path) -> None:
    foreign = data.path / "foreign"
    foreign.mkdir()
    mount.bind(user, foreign)
    with pytest.raises(PreconditionError, match="foreign is a mount that is not tonnage's"):
        remove(data)
    assert (user / "file").read_text() == "mine"
    assert data.exists()
    mount.umount(foreign)
    remove(data)
    assert (user / "file").read_text() == "mine"
    assert not data.path.exists()


@pytest.mark.real
def test_a_folder_named_by_way_of_a_symlink_is_the_same(data: DataFolder, real_folder: Path) -> None:
    volume = _mounted(data.node("node-1") / VOLUME)
    (real_folder / "link").symlink_to(real_folder)
    other = DataFolder(real_folder / "link" / "data")
    assert leftovers(other) == [f"mount {volume}"]
    remove(other)
    assert not mount.is_mount(volume)
    assert not data.path.exists()


@pytest.mark.real
def test_one_busy_mount_does_not_keep_the_others(data: DataFolder) -> None:
    busy, free = data.node("node-1") / VOLUME, data.node("node-1") / "kubelet" / "a"
    free.mkdir()
    _mounted(free)
    _mounted(busy)
    at = os.open(busy, os.O_RDONLY)
    try:
        with pytest.raises(HostError, match=r"still in use: mount .*is in use: a process"):
            remove(data)
        assert not mount.is_mount(free)
        assert mount.is_mount(busy)
        assert data.exists()
    finally:
        os.close(at)
    remove(data)
    assert not data.path.exists()


@pytest.mark.real
def test_a_pool_that_another_process_uses_is_not_removed(data: DataFolder, real_folder: Path) -> None:
    marker = real_folder / "disk" / "node-1" / MARKER
    with marker.open() as taken:
        fcntl.flock(taken, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="in use by another process"):
            remove(data)
    assert marker.exists()
    assert data.exists()


async def _known(data: DataFolder) -> str:
    """Make the cluster's database; the cluster's uid."""
    server = ApiServer(SqliteStore(data.state, extractor()))
    await server.start()
    uid = server.cluster_id()
    await server.stop()
    return uid


@pytest.mark.real
def test_disks_of_another_cluster_are_kept(real_folder: Path) -> None:
    data = DataFolder(real_folder / "data")
    data.open(Settings(pools=[f"static:{real_folder / 'disks'}"]))
    data.close()
    data.node("node-1").mkdir()
    asyncio.run(_known(data))
    records = real_folder / "disks" / "node-1" / OWN
    records.mkdir(parents=True)
    (records / "ssd.json").write_text('{"volume": {"owner": {"tonnage.dev/cluster": "theirs"}}}')
    with pytest.raises(PreconditionError, match="volumes of another cluster"):
        remove(data)


@pytest.mark.real
def test_volumes_of_another_cluster_in_the_same_directory_are_kept(data: DataFolder, real_folder: Path) -> None:
    ours, pool = asyncio.run(_known(data)), real_folder / "disk" / "node-1"
    (pool / "pvc-1.json").write_text(f'{{"owner": {{"tonnage.dev/cluster": "{ours}"}}}}')
    (pool / "pvc-2.json").write_text('{"owner": {"tonnage.dev/cluster": "theirs"}}')
    with pytest.raises(PreconditionError, match=r"volumes of another cluster \(pvc-2\).*nothing was removed"):
        remove(data)
    assert sorted(entry.name for entry in pool.glob("*.json")) == ["pvc-1.json", "pvc-2.json"]
    assert data.exists()
    (pool / "pvc-2.json").unlink()
    remove(data)
    assert not pool.exists()


def test_the_root_of_a_disk_can_be_a_data_folder(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    data = DataFolder(tmp_path)
    data.open(Settings())
    data.close()
    data.purge()
    assert [entry.name for entry in tmp_path.iterdir()] == ["lost+found"]


def test_nobody_starts_while_the_folder_is_cleaned(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    data.open(Settings())
    data.close()
    with data.held():
        assert DataFolder(data.path).end_running() is False
        with pytest.raises(BusyError, match="being cleaned or opened by another process"):
            DataFolder(data.path).open(Settings())
    DataFolder(data.path).open(Settings())
