"""A start that fails leaves nothing that it made itself, and everything that was there before."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked_cli import tonnage

from tonnage.base.errors import BusyError, HostError, InvalidError, UnavailableError
from tonnage.kubernetes.api.kinds import STORAGE_CLASSES
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.core.pool import Pool
from tonnage_box.cleanup import remove_unused
from tonnage_box.cluster import Box, BoxOptions
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.node import BoxNode
from tonnage_box.plan import plan

FAKE = Settings(pools=["fake,name=fast,size=1Gi", "fake,name=slow_2,size=1Gi"], runtime="none")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def up(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return tonnage("up", "--pool", "fake", "--runtime", "none", "--data", str(folder), *options)


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*.json") if path.is_file()}


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_folders_that_up_made_are_gone_and_others_stay(tmp_path: Path, taken: int, detach: tuple[str, ...]) -> None:
    failed = up(tmp_path / "a" / "b" / "d", "--port", str(taken), *detach)
    assert failed.returncode != 0
    assert str(taken) in failed.stderr
    assert not (tmp_path / "a").exists()

    (own := tmp_path / "own").mkdir()
    assert up(own, "--port", str(taken), *detach).returncode != 0
    assert {entry.name for entry in own.iterdir()} <= {"tonnage.log"}


async def start_and_stop(folder: Path, port: int = 0) -> None:
    data = DataFolder(folder)
    box = Box(data, plan(data, data.settings() or FAKE), BoxOptions(port=port))
    try:
        await box.start()
    finally:
        await box.stop()


async def test_a_cluster_that_was_there_stays(tmp_path: Path, taken: int) -> None:
    await start_and_stop(tmp_path / "d")
    before = content(tmp_path)
    assert before
    with pytest.raises(BusyError):
        await start_and_stop(tmp_path / "d", taken)
    assert content(tmp_path) == before
    await start_and_stop(tmp_path / "d")


async def test_a_folder_that_another_process_holds_stays(tmp_path: Path) -> None:
    other = DataFolder(tmp_path / "d")
    other.open(FAKE)
    with pytest.raises(BusyError):
        await start_and_stop(tmp_path / "d")
    assert content(tmp_path)
    other.undo()
    other.close()
    assert not (tmp_path / "d").exists()


@pytest.mark.real
async def test_pools_elsewhere(tmp_path: Path, real_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = real_folder / "old", real_folder / "a" / "new"
    (old / "node-1").mkdir(parents=True)
    monkeypatch.setattr(BoxNode, "published", fail)
    data = DataFolder(tmp_path / "d")
    pools = [f"image:{where},name={where.name},size=1Gi" for where in (old, new)]
    box = Box(data, plan(data, Settings(pools=pools, runtime="none")))
    with pytest.raises(HostError, match="the last step"):
        await box.start()
    assert (new / "node-1" / ".tonnage-pool").exists()
    await box.stop()

    assert not (real_folder / "a").exists()
    assert os.listdir(old) == ["node-1"]
    assert not (tmp_path / "d").exists()


async def fail(node: BoxNode) -> None:
    """In place of the last step of a start."""
    raise HostError("the last step")


async def used_before(node: BoxNode) -> None:
    """The same, after somebody who did not wait for the end of the start made volumes in every pool."""
    for pool in node.driver.pools:
        await pool.create(VolumeRequest("v", 64 << 20, fstype=pool.features.fstypes[0]))
    raise HostError("the last step")


def images(folder: Path) -> dict[Path, int]:
    """Images below a folder, with inodes: one that was made anew is another one."""
    return {path: path.stat().st_ino for path in folder.rglob("*.img")}


async def failed_start(data: DataFolder, settings: Settings, *, recover: bool = False) -> None:
    box = Box(data, plan(data, settings), BoxOptions(recover=recover))
    with pytest.raises(HostError, match="the last step"):
        await box.start()
    await box.stop()
    await box.stop()


async def volumes_after_start(data: DataFolder, *, recover: bool = False) -> list[tuple[str, str]]:
    """Pool and name of the volumes, once it has started at last."""
    settings = data.settings()
    assert settings is not None
    box = Box(data, plan(data, settings), BoxOptions(recover=recover))
    try:
        await box.start()
        return sorted(await box.nodes["node-1"].driver.contents())
    finally:
        await box.stop()


@pytest.mark.real
@pytest.mark.parametrize("kind", ["image", "btrfs"])
async def test_pools_with_volumes_stay(
    real_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A user need not wait until all nodes are ready: what was made in the first ones has volumes of the user's."""
    data = DataFolder(real_folder / "d")
    pools = [f"{kind},name=inside,size=1Gi,sparse=yes", f"{kind}:{real_folder / 'far'},name=far,size=1Gi,sparse=yes"]
    settings = Settings(pools=pools, runtime="none")
    monkeypatch.setattr(BoxNode, "published", fail)
    await failed_start(data, settings)
    assert os.listdir(real_folder) == [], "no volume: nothing stays"

    monkeypatch.setattr(BoxNode, "published", used_before)
    await failed_start(data, settings)
    assert "is not removed: volumes were made before the start failed" in caplog.text
    before = images(real_folder)
    assert len(before) == 2
    monkeypatch.setattr(BoxNode, "published", fail)
    await failed_start(data, settings)
    monkeypatch.undo()
    assert images(real_folder) == before
    assert await volumes_after_start(data) == [("far", "v"), ("inside", "v")]

    (data.path / "state.db").unlink()
    monkeypatch.setattr(BoxNode, "published", fail)
    await failed_start(data, settings, recover=True)
    monkeypatch.undo()
    assert await volumes_after_start(data) == [("far", "v"), ("inside", "v")]


@pytest.mark.real
@pytest.mark.parametrize("recover", [False, True])
async def test_a_folder_that_has_lost_its_marker_stays(
    real_folder: Path, monkeypatch: pytest.MonkeyPatch, *, recover: bool
) -> None:
    data = DataFolder(real_folder / "d")
    settings = Settings(pools=[f"image:{real_folder / 'far'},name=far,size=1Gi,sparse=yes"], runtime="none")
    monkeypatch.setattr(BoxNode, "published", used_before)
    await failed_start(data, settings)
    (data.path / "tonnage.json").unlink()
    before = images(real_folder)
    box = Box(data, plan(data, settings), BoxOptions(recover=recover))
    with pytest.raises(InvalidError, match="nothing was touched"):
        await box.start()
    await box.stop()
    assert images(real_folder) == before
    assert not data.exists()


async def test_what_cannot_be_listed_is_taken_as_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(pool: Pool) -> list[str]:
        raise UnavailableError("the pool")

    async def broken(node: BoxNode) -> None:
        monkeypatch.setattr(type(node.driver.pools[0]), "list", unknown)
        await fail(node)

    monkeypatch.setattr(BoxNode, "published", broken)
    await failed_start(DataFolder(tmp_path / "d"), FAKE)
    assert (tmp_path / "d" / "tonnage.json").exists()


@pytest.mark.real
async def test_one_pool_that_cannot_be_removed_does_not_keep_the_others(
    tmp_path: Path, real_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(pool: Path) -> None:
        if "one" in pool.parts:
            raise BusyError(f"pool directory {pool} is in use by another process: it is not removed")
        remove_unused(pool)

    data = DataFolder(tmp_path / "d")
    pools = [f"image:{real_folder / name},name={name},size=1Gi,sparse=yes" for name in ("one", "two")]
    monkeypatch.setattr(BoxNode, "published", fail)
    monkeypatch.setattr("tonnage_box.cluster.remove_unused", remove)
    await failed_start(data, Settings(pools=pools, runtime="none"))
    assert os.listdir(real_folder) == ["one"]
    assert not data.path.exists()


async def test_every_pool_has_a_class_of_its_name(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    box = Box(data, plan(data, FAKE))
    await box.start()
    try:
        found = {c.metadata.name: c.parameters for c in (await box.client.list(STORAGE_CLASSES)).items}
    finally:
        await box.stop()
    assert found == {
        "tonnage-scratch": {},
        "tonnage-immediate": {},
        "tonnage-fast": {"pool": "fast"},
        "tonnage-slow-2": {"pool": "slow_2"},
    }
