"""The power is cut between any two writes to the disk under a pool: see power.py. More cuts: `--cuts 5000`; others:
`--cut-seed 4711`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.kills.batch import Batch
from tests.crash.kills.fusedisk import BLOCK, Disk
from tests.crash.kills.power import POWERED
from tests.programs import absent

pytestmark = [pytest.mark.real, pytest.mark.campaign]


def _missing(kind: str) -> str:
    if reason := absent(*POWERED[kind].programs, POWERED[kind].disk[0]):
        return reason
    is_there = os.access("/dev/fuse", os.R_OK | os.W_OK)
    return "" if is_there else "needs /dev/fuse: a disk that remembers what was written"


@pytest.fixture(scope="module")
def cuts(rooted: None, fast_folder: Path, request: pytest.FixtureRequest) -> Iterator[Batch]:
    """The power cuts of all tests that were chosen, begun together."""
    count, seed = request.config.getoption("--cuts") // len(POWERED), request.config.getoption("--cut-seed")
    chosen = ("--cuts", str(max(1, count)), "--seed", str(seed))
    words: dict[Any, tuple[str, ...]] = {
        test_what_was_answered_is_there_after_a_power_cut: ("power", *chosen),
        test_a_driver_that_does_not_flush_is_found_out: ("power", "--cuts", "100", "--forgetful"),
        test_an_image_store_shows_no_half_image_after_a_power_cut: ("store_power", *chosen),
        test_an_image_store_that_does_not_flush_is_found_out: ("store_power", "--cuts", "60", "--forgetful"),
    }
    jobs = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == request.path and item.function in words:
            kind = str(item.callspec.params["kind"]) if hasattr(item, "callspec") else ""
            if not _missing(kind or "image on ext4"):
                jobs[item.name] = [*words[item.function], *([kind] if kind else []), "--folder", str(fast_folder)]
    # A mount namespace of its own: one that another process cloned meanwhile would keep the disks mounted.
    batch = Batch(
        fast_folder, jobs, prefix=("unshare", "--mount", "--propagation", "private", "--kill-child", "--fork")
    )
    yield batch
    batch.end()


def _ended(cuts: Batch, request: pytest.FixtureRequest, kind: str) -> subprocess.CompletedProcess[str]:
    if reason := _missing(kind):
        pytest.skip(reason)
    return cuts.ended(request.node.name)


@pytest.mark.parametrize("kind", POWERED)
def test_what_was_answered_is_there_after_a_power_cut(
    kind: str, cuts: Batch, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    ended = _ended(cuts, request, kind)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-20000:]}"
    told = json.loads(ended.stdout.splitlines()[-1])
    tell(
        f"power of {kind}: cut {told['cuts']} times between {told['events']} writes and flushes, all recovered,"
        f" {told['seconds']:.0f} s (--cut-seed {request.config.getoption('--cut-seed')})"
    )


def test_an_image_store_shows_no_half_image_after_a_power_cut(
    cuts: Batch, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    ended = _ended(cuts, request, "image on ext4")
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-20000:]}"
    tell(f"power of an image store: cut {json.loads(ended.stdout.splitlines()[-1])['cuts']} times, all recovered")


@pytest.mark.timeout(120)
def test_a_disk_that_another_mount_namespace_has_ends(rooted: None, real_folder: Path) -> None:
    if reason := _missing("image on ext4"):
        pytest.skip(reason)
    content, folder = real_folder / "content", real_folder / "disk"
    content.write_bytes(bytes(BLOCK))
    folder.mkdir()
    disk = Disk(folder)
    disk.start(content)
    command = ["unshare", "--mount", "--propagation", "private", "--kill-child", "sh", "-c", "echo; exec sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()  # it has its copy of the mount
            disk.stop()
            assert str(folder) not in Path("/proc/self/mountinfo").read_text()
            assert str(folder) in Path(f"/proc/{other.pid}/mountinfo").read_text()
        finally:
            other.kill()


@pytest.mark.parametrize("kind", ["image on ext4", "btrfs"])
def test_a_driver_that_does_not_flush_is_found_out(kind: str, cuts: Batch, request: pytest.FixtureRequest) -> None:
    ended = _ended(cuts, request, kind)
    assert ended.returncode == 1
    assert "power was cut after event" in ended.stderr


def test_an_image_store_that_does_not_flush_is_found_out(cuts: Batch, request: pytest.FixtureRequest) -> None:
    ended = _ended(cuts, request, "image on ext4")
    assert ended.returncode == 1
    assert "power was cut" in ended.stderr
