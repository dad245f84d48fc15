"""What all tests share: which real things this machine can do, leaving nothing behind, and whole clusters."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest
from cluster.gobuild import NO_BUILD
from hypothesis import HealthCheck, settings
from tests import starts
from tests.clusters import OF_A_BOX, Cluster, tonnage
from tests.examples import DEFAULT, PROFILES
from tests.programs import absent, found, need

from tonnage.base.errors import UnsupportedError
from tonnage.host import loop, mount
from tonnage_box.kubelet.pod_cgroups import PodCgroup, PodCgroups

# Shared machines are slow at times, which is no fault. CI looks at the same examples each time, people at new ones.
settings.register_profile(
    "tonnage", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tonnage")
os.environ[NO_BUILD] = "yes"  # a test that builds would take minutes on a fresh machine, and none elsewhere
for _name, _part in PROFILES.items():
    settings.register_profile(_name, settings(), max_examples=max(25, DEFAULT // _part))
LANE_MARKERS = ("real", "programs", "campaign", "uml", "qemu", "e2e", "alone", "cinder", "velero")
"""Markers by which lanes choose their files (--files-with mark.NAME)."""
_TOLD: list[str] = []


@pytest.fixture
def tell() -> Callable[[str], None]:
    """Adds a line to what is shown after all tests: counts that people want to see though the test passed."""
    return _TOLD.append


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much of what is chosen at random is run; the same seed chooses the same."""
    group = parser.getgroup("tonnage")
    group.addoption("--kills", type=int, default=1000, help="kills of drivers in all (default %(default)s)")
    group.addoption("--kill-seed", type=int, default=1, help="seed of the first life (default %(default)s)")
    group.addoption("--cuts", type=int, default=150, help="power cuts in all (default %(default)s)")
    group.addoption("--cut-seed", type=int, default=1, help="seed of their moments (default %(default)s)")
    group.addoption("--fuzz", type=int, default=5000, help="malformed requests in all (default %(default)s)")
    group.addoption(
        "--fields", type=int, default=24, help="fields whose largest value is counted (default %(default)s)"
    )
    group.addoption("--fields-seed", type=int, default=1, help="seed of their choice (default %(default)s)")
    group.addoption("--machines", type=int, default=0, help="lives of each state machine of tests/crash/faults")
    group.addoption("--fuzz-seed", type=int, default=1, help="seed of the requests (default %(default)s)")
    group.addoption(
        "--pods", type=int, default=200, help="pods that a box makes when it is killed (default %(default)s)"
    )
    group.addoption(
        "--histories", type=int, default=300, help="histories of a cluster that forgets (default %(default)s)"
    )
    group.addoption("--history-seed", type=int, default=1, help="seed of the first history (default %(default)s)")
    group.addoption(
        "--slowness-seed", type=int, default=0,
        help="in virtual time, turns of the event loop take a while that this seed chooses (0: none)",
    )  # fmt: skip
    group.addoption("--report-to", type=Path, help="a JSON file for the outcomes of all tests (scripts/run_tests.py)")
    group.addoption(
        "--files-with", help="a regular expression: only test files that it finds something in are imported"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without the text that was asked for: importing all takes a lane half a minute on a slow machine."""
    text = config.getoption("--files-with")
    if text and collection_path.match("test_*.py") and not re.search(text, _text(collection_path)):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what is imported and collected out of the garbage collector, which has nothing to find there."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Fail where a lane would miss the test: its file does not write the marker that the lane looks for.

    What uses the machine by a fixture of this file is marked too: other lanes have neither its programs nor its time.
    """
    uses = {"real_folder", "make_cluster"}.intersection(getattr(item, "fixturenames", ()))
    if uses and item.path.match("test_*.py") and not item.get_closest_marker("real"):
        raise pytest.UsageError(f"{item.nodeid}: write pytest.mark.real: it uses {', '.join(sorted(uses))}")
    for name in LANE_MARKERS:
        if item.get_closest_marker(name) and f"mark.{name}" not in _text(item.path):
            raise pytest.UsageError(
                f"{item.nodeid}: write pytest.mark.{name} in its own file: --files-with looks for it"
            )


@cache
def _text(path: Path) -> str:
    return path.read_text()


class LineKiller:
    """Counts the lines of our code in all threads and kills the process before one of them, 0 for none.

    Made in a process that was forked to be killed.
    """

    def __init__(self, at: int, folders: tuple[str, ...]) -> None:
        self.count = 0
        self.places: dict[str, list[int]] = {}
        """By source line: the counts at which it ran. Only kept when nothing is to be killed."""
        self._at = at
        self._folders = tuple(f"/tonnage/{folder}/" for folder in folders)

    def start(self) -> None:
        """Begin to count, in this thread and in those to come."""
        sys.settrace(self._call)
        threading.settrace(self._call)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if any(folder in name for folder in self._folders) and "_proto" not in name else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if not self._at:
                self.places.setdefault(f"{frame.f_code.co_filename}:{frame.f_lineno}", []).append(self.count)
            elif self.count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


@pytest.fixture
def line_killer() -> type[LineKiller]:
    """kill -9 at a line."""
    return LineKiller


class _CurrentTest:
    """Keeps the name of the test that runs in a file, for who ends a run that hangs."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("wb", buffering=0)  # open all the time: a file that is made anew is flushed to the disk

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(nodeid.encode())

    def pytest_unconfigure(self) -> None:
        self._file.close()


def pytest_configure(config: pytest.Config) -> None:
    """Name the current test where the outcomes go."""
    if file := config.getoption("--report-to"):
        config.pluginmanager.register(_CurrentTest(file.with_suffix(".now")))


def pytest_unconfigure() -> None:
    """Leave no process."""
    starts.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests told; write the outcomes."""
    if file := terminalreporter.config.getoption("--report-to"):
        stats = terminalreporter.stats
        outcomes: dict[str, list[str] | dict[str, str]] = {
            "passed": sorted({report.nodeid for report in stats.get("passed", [])}),
            "skipped": {report.nodeid: _reason(report) for report in stats.get("skipped", [])},
            "failed": {report.nodeid: _reason(report) for key in ("failed", "error") for report in stats.get(key, [])},
        }
        file.write_text(json.dumps(outcomes))
    if _TOLD:
        terminalreporter.section("what was run")
        for line in _TOLD:
            terminalreporter.write_line(line)


def _reason(report: pytest.TestReport) -> str:
    """The first words of what a test failed with, or why it was skipped."""
    if isinstance(report.longrepr, tuple):  # file, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join((crash.message if crash else report.longreprtext).split())[:500]


def _no_mounts() -> str:
    """Why nothing can be mounted here, "" where it can."""
    if os.geteuid() != 0:
        return "needs root: mounts and loop devices"
    return "" if os.access(loop.CONTROL, os.R_OK | os.W_OK) else f"needs {loop.CONTROL}"


def _sweep(folder: Path) -> None:
    """Take away every mount and loop device under folder, whatever the test left."""
    for entry in reversed(list(mount.mounts())):
        if entry.target.startswith(f"{folder}/"):
            mount.umount(entry.target, lazy=True)
    for index, path in loop.attached():
        if path.startswith(f"{folder}/"):
            loop.detach(index)


@pytest.fixture
def real_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for real mounts and loop devices, all taken away at the end; skips where they cannot be had."""
    if reason := _no_mounts() or absent("mkfs.ext4"):
        pytest.skip(reason)
    try:
        yield tmp_path
    finally:
        _sweep(tmp_path)


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is some: what a killed process leaves is the same there, and no flush waits.

    Mounts and loop devices in it are taken away at the end.
    """
    memory = Path("/dev/shm")
    is_there = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30
    folder = Path(tempfile.mkdtemp(prefix="tonnage-test-", dir=memory if is_there else tmp_path))
    try:
        yield folder
    finally:
        _sweep(folder)
        shutil.rmtree(folder)


@pytest.fixture
def own_disk(real_folder: Path) -> Path:
    """A mounted ext4 of 8 GiB: what is free on it does not depend on what other tests and programs write meanwhile."""
    image, place = real_folder / "own-disk.img", real_folder / "own-disk"
    with image.open("wb") as file:
        file.truncate(8 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    place.mkdir()
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    return place


@pytest.fixture
def own_group() -> Iterator[PodCgroup]:
    """A cgroup of a pod of our own kubelet in which IO can be limited, removed at the end; skips where none can be."""
    uid, cgroups = str(uuid4()), PodCgroups()
    try:
        group = cgroups.make_pod(uid)
    except (UnsupportedError, OSError) as failure:
        pytest.skip(f"no cgroup that limits IO can be made: {failure}")
    try:
        yield group
    finally:
        cgroups.remove_pod(uid)


@pytest.fixture(scope="session")
def kubectl_program() -> str:
    """A kubectl that is new enough; skips where there is none."""
    return str(found("kubectl"))


@pytest.fixture(scope="session")
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters that are not yet up; all are removed at the end, and nothing may be left on the machine."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts, loop devices, bwrap")
    need(*OF_A_BOX)
    made: list[Cluster] = []
    base = Path(tempfile.mkdtemp(prefix="tonnage-test-", dir="/var/tmp"))

    def make(*arguments: str) -> Cluster:
        home = base / f"home{len(made)}"  # kubectl keeps discovery there
        home.mkdir()
        made.append(Cluster(base / f"data{len(made)}", arguments, home))
        return made[-1]

    yield make
    for cluster in made:
        if cluster.data.exists():  # others were removed by their tests
            tonnage("down", "--purge", "--data", str(cluster.data))
    left = [line for line in Path("/proc/mounts").read_text().splitlines() if str(base) in line]
    assert not left
    assert not [cluster.data for cluster in made if cluster.data.exists()]
    shutil.rmtree(base)


@pytest.fixture(scope="session")
def three_nodes(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """Three nodes of 30716Mi with real volumes and containers, on a disk that may have less."""
    cluster = make_cluster("--nodes", "3", "--pool", "image,name=scratch,size=30716Mi,sparse=yes,overcommit=yes")
    cluster.said = cluster.up()
    yield cluster
    cluster.down("--purge")


@pytest.fixture(scope="module")
def cluster(three_nodes: Cluster) -> Iterator[Cluster]:
    """The cluster that files share: each leaves it as it was."""
    kinds = "pods,pvc,pv,deployments,statefulsets,daemonsets,replicasets,jobs,cronjobs,pdb,sc"
    shown = ("get", kinds, "-A", "--no-headers", "-o", "custom-columns=KIND:.kind,NAME:.metadata.name")
    before = three_nodes.kubectl(*shown)
    yield three_nodes
    assert three_nodes.kubectl(*shown) == before
    assert set(three_nodes.capacities().values()) == {"30716Mi"}
    assert "SchedulingDisabled" not in three_nodes.kubectl("get", "nodes")
