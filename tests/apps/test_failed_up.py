"""A start that fails leaves nothing that it made itself, and everything that was there before."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tonnage.api.kinds import STORAGE_CLASSES
from tonnage.box.cluster import Box
from tonnage.box.data_dir import DataFolder, Settings
from tonnage.box.node import BoxNode
from tonnage.box.plan import plan
from tonnage.errors import Busy, HostError

FAKE = Settings(pools=["fake,name=fast,size=1Gi", "fake,name=slow_2,size=1Gi"], runtime="none")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def up(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tonnage.cli", "up", "--pool", "fake", "--runtime", "none", "--data", str(folder)]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)


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
    box = Box(data, plan(data, data.settings() or FAKE), port=port)
    try:
        await box.start()
    finally:
        await box.stop()


async def test_a_cluster_that_was_there_stays(tmp_path: Path, taken: int) -> None:
    await start_and_stop(tmp_path / "d")
    before = content(tmp_path)
    assert before
    with pytest.raises(Busy):
        await start_and_stop(tmp_path / "d", taken)
    assert content(tmp_path) == before
    await start_and_stop(tmp_path / "d")


async def test_a_folder_that_another_process_holds_stays(tmp_path: Path) -> None:
    other = DataFolder(tmp_path / "d")
    other.open(FAKE)
    with pytest.raises(Busy):
        await start_and_stop(tmp_path / "d")
    assert content(tmp_path)
    other.undo()
    other.close()
    assert not (tmp_path / "d").exists()


@pytest.mark.real
async def test_pools_elsewhere(tmp_path: Path, real_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(node: BoxNode) -> None:
        raise HostError("the last step")

    old, new = real_folder / "old", real_folder / "a" / "new"
    (old / "node-1").mkdir(parents=True)
    monkeypatch.setattr(BoxNode, "published", fail)
    data = DataFolder(tmp_path / "d")
    pools = [f"image:{where},name={where.name},size=1Gi" for where in (old, new)]
    box = Box(data, plan(data, Settings(pools=pools, runtime="none")), port=0)
    with pytest.raises(HostError, match="the last step"):
        await box.start()
    assert (new / "node-1" / ".tonnage-pool").exists()
    await box.stop()

    assert not (real_folder / "a").exists()
    assert os.listdir(old) == ["node-1"]
    assert not (tmp_path / "d").exists()


async def test_every_pool_has_a_class_of_its_name(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "d")
    box = Box(data, plan(data, FAKE), port=0)
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
