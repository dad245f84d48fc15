"""The power is cut between any two writes to the disk under a pool: see power.py. More cuts: `--cuts 5000`; others:
`--cut-seed 4711`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.kills.fusedisk import BLOCK, Disk
from tests.crash.kills.power import POWERED
from tests.programs import need

pytestmark = [pytest.mark.real, pytest.mark.campaign]
ROOT = Path(__file__).parents[3]


def _need(kind: str) -> None:
    need(*POWERED[kind].programs, POWERED[kind].disk[0])
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse: a disk that remembers what was written")


def _cut(kind: str, cuts: int, seed: int, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    _need(kind)
    return _run("power", kind, "--cuts", str(cuts), "--seed", str(seed), *more, "--folder", str(folder))


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # A mount namespace of its own: one that another process cloned meanwhile would keep the disk mounted.
    command = ["unshare", "--mount", "--propagation", "private", "--kill-child", "--fork", sys.executable]
    command += ["-m", f"tests.crash.kills.{module}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)


@pytest.mark.parametrize("kind", POWERED)
def test_what_was_answered_is_there_after_a_power_cut(
    kind: str, rooted: None, fast_folder: Path, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    cuts, seed = request.config.getoption("--cuts") // len(POWERED), request.config.getoption("--cut-seed")
    ended = _cut(kind, max(1, cuts), seed, fast_folder)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-20000:]}"
    told = json.loads(ended.stdout.splitlines()[-1])
    tell(
        f"power of {kind}: cut {told['cuts']} times between {told['events']} writes and flushes, all recovered,"
        f" {told['seconds']:.0f} s (--cut-seed {seed})"
    )


def test_an_image_store_shows_no_half_image_after_a_power_cut(
    rooted: None, fast_folder: Path, request: pytest.FixtureRequest, tell: Callable[[str], None]
) -> None:
    _need("image on ext4")
    cuts, seed = request.config.getoption("--cuts") // len(POWERED), request.config.getoption("--cut-seed")
    given = ("--cuts", str(max(1, cuts)), "--seed", str(seed), "--folder", str(fast_folder))
    ended = _run("store_power", *given)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-20000:]}"
    tell(f"power of an image store: cut {json.loads(ended.stdout.splitlines()[-1])['cuts']} times, all recovered")


@pytest.mark.timeout(120)
def test_a_disk_that_another_mount_namespace_has_ends(rooted: None, real_folder: Path) -> None:
    _need("image on ext4")
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
def test_a_driver_that_does_not_flush_is_found_out(kind: str, rooted: None, fast_folder: Path) -> None:
    ended = _cut(kind, 100, 1, fast_folder, "--forgetful")
    assert ended.returncode == 1
    assert "power was cut after event" in ended.stderr


def test_an_image_store_that_does_not_flush_is_found_out(rooted: None, fast_folder: Path) -> None:
    _need("image on ext4")
    ended = _run("store_power", "--cuts", "60", "--seed", "1", "--forgetful", "--folder", str(fast_folder))
    assert ended.returncode == 1
    assert "power was cut" in ended.stderr
