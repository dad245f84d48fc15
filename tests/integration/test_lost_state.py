"""A data folder whose state.db is gone or damaged: rejected and left as it was, until --recover begins an empty cluster."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests import clusters
from tests.forked import forked
from tests.forked_cli import tonnage

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import UnavailableError
from tonnage.host.inotify import CREATE, DELETE, MODIFY, MOVED_TO, Inotify
from tonnage.kubernetes.api.kinds import CLAIMS, NAMESPACES, PODS, VOLUMES
from tonnage.kubernetes.api.names import FORMER_CLUSTERS
from tonnage.kubernetes.api.pods import Pod
from tonnage.storage.pools.core import status
from tonnage.tools.ops.orphans import Owner, Registry
from tonnage.tools.ops.report import contents_of
from tonnage_box.api.wait import until
from tonnage_box.apiserver.server.server import extractor
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box, BoxOptions
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

FILES = tuple(
    f"/tonnage_box/{name}.py"
    for name in ("data_dir", "cluster", "apiserver/storage/sqlite", "apiserver/server/server", "apiserver/server/auth")
)
Place = list[str | int]
"""A source line, and how often it has run before."""


def trace(at_line: Callable[[Place], None]) -> None:
    """Call it before each line of FILES, in all threads."""
    ran: Counter[str] = Counter()

    def each(frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line":
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            ran[line] += 1
            at_line([line, ran[line]])
        return each

    threading.settrace(each)
    sys.settrace(each)


async def first_start(folder: Path) -> None:
    data = DataFolder(folder)
    box = Box(data, plan(data, Settings(pools=["fake,size=1Gi"], runtime="none")))
    data.open(box.plan.settings)
    await box._start_server()


async def changing_places(folder: Path) -> list[Place]:
    """Where a first start finds its folder changed: between two of these places a kill leaves the same."""
    found: list[Place] = []
    with Inotify() as watcher:

        def look(place: Place) -> None:
            if not found or watcher._read():
                found.append(place)
                for entry in (folder.parent, *folder.parent.rglob("*")):
                    if entry.is_dir():
                        watcher.add(str(entry), CREATE | DELETE | MODIFY | MOVED_TO)

        trace(look)
        await first_start(folder)
        sys.settrace(None)
    return found


async def killed_start(folder: Path, killed_at: Place) -> None:
    def look(place: Place) -> None:
        if place == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    trace(look)
    await first_start(folder)


async def second_start(folder: Path) -> None:
    data = DataFolder(folder)
    data.open(Settings())
    store = SqliteStore(data.state, extractor(), used=data.had_cluster())
    await store.start()
    await store.stop()


def made(folder: Path, settings: Settings, *, recover: bool = False) -> Box:
    data = DataFolder(folder)
    return Box(data, plan(data, settings), BoxOptions(recover=recover))


def content(folder: Path) -> dict[str, bytes]:
    """Every file but those that say who has the folder, and the log."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    own = ("lock", "state.db.lock", "tonnage.log")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.name not in own}


def in_background(folder: Path, *options: str) -> None:
    started = clusters.tonnage("up", "--data", str(folder), "--port", "0", "--detach", *options)
    assert started.returncode == 0, started.stderr
    DataFolder(folder).end_running()


def gone(state: Path) -> None:
    state.unlink()


def flipped(state: Path) -> None:
    data = bytearray(state.read_bytes())
    for at in range(4036, len(data), 4096):
        data[at] ^= 0x55
    state.write_bytes(data)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a cluster that was there once."""
    folder = tmp_path_factory.mktemp("used") / "d"
    in_background(folder, "--nodes", "1", "--pool", "fake,size=1Gi", "--runtime", "none")
    return folder


@pytest.mark.parametrize("harm", [gone, flipped])
def test_up_is_rejected_changes_nothing_and_recovers_when_told(
    tmp_path: Path, used: Path, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "d"
    shutil.copytree(used, folder)
    harm(folder / "state.db")
    before = content(folder)

    for options in ((), ("--nodes", "2"), ("--detach",)):
        rejected = tonnage("up", "--data", str(folder), "--port", "0", *options)
        assert rejected.returncode == 1
        assert "tonnage up --recover" in rejected.stderr
        assert "Traceback" not in rejected.stderr + rejected.stdout
        assert len(rejected.stderr.strip().splitlines()) == 1
        assert content(folder) == before

    in_background(folder, "--recover")
    assert len(DataFolder(folder).clusters()) == 2
    in_background(folder)
    assert len(DataFolder(folder).clusters()) == 2


def test_a_first_start_that_was_killed_is_no_lost_database(memory_folder: Path) -> None:
    """Killed wherever it has changed something."""
    (memory_folder / "whole").mkdir()
    code, places = forked(partial(changing_places, memory_folder / "whole" / "d"))
    assert code == 0
    kills = 0
    for number, place in enumerate(places):
        folder = memory_folder / str(number)
        code, _ = forked(partial(killed_start, folder, place))
        assert code in (0, -signal.SIGKILL), place  # transactions are committed together now and then
        kills += code != 0
        assert forked(partial(second_start, folder))[0] == 0, place
    assert kills > 25


def is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


@pytest.mark.real
async def test_volumes_of_a_lost_cluster_are_orphans(real_folder: Path) -> None:
    settings = Settings(pools=[f"image:{real_folder / 'elsewhere'},name=scratch,size=200Mi,sparse=yes"], runtime="none")
    folder = real_folder / "d"
    first = made(folder, settings)
    await first.start()
    try:
        await first.client.create(PODS, pod_with("p", {"data": "32Mi"}), "default")
        await until(first.client, PODS, "p", is_running, namespace="default")
    finally:
        await first.stop()
    (image,) = (real_folder / "elsewhere").glob("*/*.img")
    (folder / "state.db").unlink()

    rejected = made(folder, settings)
    with pytest.raises(UnavailableError, match="is missing, and its folder had a cluster"):
        await rejected.start()
    await rejected.stop()
    assert image.exists()

    second = made(folder, settings, recover=True)
    await second.start()
    try:
        assert not (await second.client.list(VOLUMES)).items
        assert not (await second.client.list(CLAIMS)).items
        former = (await second.client.get(NAMESPACES, "kube-system")).metadata.annotations[FORMER_CLUSTERS]
        assert [former] == DataFolder(folder).clusters()[:-1]
        agent = second.nodes["node-1"].agent
        found = [await agent.sweep.sweep(driver) for driver in agent.drivers]
        assert [(f.removed, f.asked, [o.id.partition("/")[2] for o in f.orphans]) for f in found] == [
            ([], [], [image.stem])
        ]
        registry = Registry(second.client, RealClock())
        await registry.look()
        (pool,) = second.nodes["node-1"].driver.pools
        held = contents_of([await status.read(pool)])
        assert [await registry.owner(volume) for volume in held.volumes] == [Owner.NOBODY]
        assert image.exists()
    finally:
        await second.stop()
