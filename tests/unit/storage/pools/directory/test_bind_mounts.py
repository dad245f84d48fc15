"""Where volumes that are folders are shown, and that nothing else is taken for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tonnage.base.errors import AlreadyExistsError, PreconditionError, UnavailableError, UnsupportedError
from tonnage.host import mount
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.directory.backend import PoolFolder
from tonnage.storage.pools.directory.bind_mounts import BindMounts
from tonnage.storage.pools.directory.directory import Directory

MI = 1024**2


@pytest.fixture
def disk(real_folder: Path) -> Path:
    """A disk with the folders a.vol and b.vol, and places to show them."""
    disk = real_folder / "disk"
    disk.mkdir()
    mount.mount("none", disk, "tmpfs", ["size=64m"])
    made = Directory(disk, "kind")
    made.open()
    made.close()
    for name in ("a.vol", "b.vol"):
        (disk / name).mkdir()
    return disk


@pytest.fixture
def folder(disk: Path) -> Iterator[PoolFolder]:
    folder = PoolFolder(disk, kind="kind", suffix=".vol")
    folder.directory.open()
    yield folder
    folder.directory.close()


@pytest.fixture
def binds(folder: PoolFolder) -> BindMounts:
    return BindMounts(folder, lambda _: 0)


def _record(name: str) -> VolumeRecord:
    return VolumeRecord(name, MI, UUID(int=1), fstype="tmpfs")


@pytest.mark.real
def test_a_life(binds: BindMounts, disk: Path, real_folder: Path) -> None:
    staging, target = real_folder / "staging", real_folder / "target"
    (disk / "a.vol" / "file").touch()
    for _ in range(2):
        binds.stage(_record("a"), staging, [])
        binds.publish(_record("a"), staging, target, readonly=True)
    assert binds.uses("a") == [staging, target]
    with pytest.raises(PreconditionError, match=f"in use at {staging}"):
        binds.check_unused("a")
    assert (target / "file").exists()
    for _ in range(2):
        binds.unpublish("a", target)
        binds.unstage("a", staging)
    binds.check_unused("a")


@pytest.mark.real
def test_what_an_earlier_run_shows_is_found(folder: PoolFolder, real_folder: Path) -> None:
    BindMounts(folder, lambda _: 0).stage(_record("a"), real_folder / "staging", [])
    binds = BindMounts(folder, lambda _: 0)
    binds.check_unused("a")
    binds.find("tmpfs")
    assert binds.uses("a") == [real_folder / "staging"]
    binds.check_unused("b")
    binds.find("ext4")
    assert binds.uses("a") == [], "a volume is on the pool's file system, of which there is one type"


@pytest.mark.real
def test_another_volumes_place(binds: BindMounts, real_folder: Path) -> None:
    staging = real_folder / "staging"
    binds.stage(_record("a"), staging, [])
    with pytest.raises(AlreadyExistsError, match="is a mount of something else"):
        binds.stage(_record("b"), staging, [])
    with pytest.raises(PreconditionError, match="volume b is not staged"):
        binds.publish(_record("b"), staging, real_folder / "target", readonly=False)


@pytest.mark.real
def test_options(binds: BindMounts, real_folder: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"a kind volume cannot have the mount option 'commit=5'"):
        binds.stage(_record("a"), real_folder / "staging", ["noexec", "commit=5"])
    with pytest.raises(
        UnsupportedError, match=r"a kind volume cannot have the mount option context=.*seLinuxMount: false"
    ):
        binds.stage(_record("a"), real_folder / "staging", ['context="system_u:object_r:container_file_t:s0:c1,c2"'])
    assert not mount.is_mount(real_folder / "staging")
    binds.stage(_record("a"), real_folder / "staging", ["noexec", "rw"])
    (shown,) = [entry for entry in mount.mounts() if entry.target == str(real_folder / "staging")]
    assert {"noexec", "nodev"} <= set(shown.options.split(","))


@pytest.mark.real
def test_nothing_is_staged_from_what_lies_over_the_pool(binds: BindMounts, disk: Path, real_folder: Path) -> None:
    mount.mount("none", disk, "tmpfs", ["size=1m"])
    with pytest.raises(UnavailableError, match="is not the one that was opened"):
        binds.stage(_record("a"), real_folder / "staging", [])
