"""A data folder whose state.db is gone or damaged: refused and left as it was, until --recover begins an empty cluster."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tonnage.aio.clock import RealClock
from tonnage.api.kinds import CLAIMS, NAMESPACES, PODS, VOLUMES
from tonnage.api.names import FORMER_CLUSTERS
from tonnage.api.pods import Pod
from tonnage.box.cluster import Box, BoxOptions
from tonnage.box.data_dir import DataFolder, Settings
from tonnage.box.plan import plan
from tonnage.cli.workloads import pod_with
from tonnage.errors import UnavailableError
from tonnage.kube.wait import until
from tonnage.ops.orphans import Owner, Registry
from tonnage.ops.report import contents_of
from tonnage.pools.core import status

FIRST_START = """
import asyncio, os, sys
from pathlib import Path
from tonnage.box.apiserver.server.server import extractor
from tonnage.box.apiserver.storage.sqlite import SqliteStore
from tonnage.box.cluster import Box
from tonnage.box.data_dir import DataFolder, Settings
from tonnage.box.plan import plan

FILES = tuple(f"/tonnage/{name}.py" for name in ("box/data_dir", "box/cluster", "box/apiserver/storage/sqlite", "box/apiserver/server/server"))

def first(path, die_at):
    lines = 0
    def trace(frame, event, arg):
        nonlocal lines
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        lines += event == "line"
        if lines == die_at:
            os._exit(9)
        return trace
    async def start():
        data = DataFolder(path)
        box = Box(data, plan(data, Settings(pools=["fake,size=1Gi"], runtime="none")))
        data.open(box.plan.settings)
        await box._start_server()
    import threading
    threading.settrace(trace)
    sys.settrace(trace)
    asyncio.run(start())
    os._exit(0)

def second(path):
    async def start():
        data = DataFolder(path)
        data.open(Settings())
        store = SqliteStore(data.state, extractor(), used=data.had_cluster())
        await store.start()
        await store.stop()
    asyncio.run(start())
    os._exit(0)

def ended(body, *arguments):
    if (child := os.fork()) == 0:
        body(*arguments)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

base, at = Path(sys.argv[1]), int(sys.argv[2])
while ended(first, base / str(at), at) == 9:
    assert ended(second, base / str(at)) == 0, at
    at += int(sys.argv[3])
print(at)
"""


def made(folder: Path, settings: Settings, *, recover: bool = False) -> Box:
    data = DataFolder(folder)
    return Box(data, plan(data, settings), BoxOptions(recover=recover))


def content(folder: Path) -> dict[str, bytes]:
    """Every file but those that say who has the folder, and the log."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    own = ("lock", "state.db.lock", "tonnage.log")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.name not in own}


def up(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tonnage.cli", "up", "--data", str(folder), "--port", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def gone(state: Path) -> None:
    state.unlink()


def flipped(state: Path) -> None:
    data = bytearray(state.read_bytes())
    for at in range(4036, len(data), 4096):
        data[at] ^= 0x55
    state.write_bytes(data)


@pytest.mark.parametrize("harm", [gone, flipped])
def test_up_is_refused_changes_nothing_and_recovers_when_told(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    folder = tmp_path / "d"
    first = up(folder, "--nodes", "1", "--pool", "fake,size=1Gi", "--runtime", "none", "--detach")
    assert first.returncode == 0, first.stderr
    DataFolder(folder).end_running()
    harm(folder / "state.db")
    before = content(folder)

    for options in ((), ("--nodes", "2"), ("--detach",)):
        refused = up(folder, *options)
        assert refused.returncode == 1
        assert "tonnage up --recover" in refused.stderr
        assert "Traceback" not in refused.stderr + refused.stdout
        assert len(refused.stderr.strip().splitlines()) == 1
        assert content(folder) == before

    recovered = up(folder, "--recover", "--detach")
    assert recovered.returncode == 0, recovered.stderr
    DataFolder(folder).end_running()
    assert len(DataFolder(folder).clusters()) == 2
    again = up(folder, "--detach")
    assert again.returncode == 0, again.stderr
    DataFolder(folder).end_running()
    assert len(DataFolder(folder).clusters()) == 2


def test_a_first_start_that_was_killed_is_no_lost_database(tmp_path: Path) -> None:
    """Killed at every seventeenth line, from one that is drawn."""
    drawn = random.randrange(1, 18)
    arguments = [sys.executable, "-c", FIRST_START, str(tmp_path), str(drawn), "17"]
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, f"drawn: {drawn}\n{ran.stderr}"
    assert int(ran.stdout) > 200


def is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


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

    refused = made(folder, settings)
    with pytest.raises(UnavailableError, match="is missing, and its folder had a cluster"):
        await refused.start()
    await refused.stop()
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
