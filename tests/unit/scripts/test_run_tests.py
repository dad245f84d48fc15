"""The runner of the tests: what fails a run, what may run again, and that nothing is left or hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from tests import processes

from tonnage.host import mount
from tonnage.host.run import PATH

pytestmark = pytest.mark.real  # not in make check: each starts a pytest of its own
ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SCRIPT = """
import pathlib, sys
from scripts import run_tests
run_tests.QUICK = {sys.argv[2]: ["test_it.py"]}
run_tests.LIMIT = float(sys.argv[1])
sys.exit(run_tests.main(["--rootdir=.", "-p", "tests.conftest", *sys.argv[3:]]))
"""


def run(
    folder: Path,
    body: str,
    *options: str,
    ci: bool = False,
    limit: float = 300,
    lane: str = "one",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run one file with that text."""
    (folder / "test_it.py").write_text(body)
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(limit), lane, *options],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**ENVIRONMENT, "CI": "1" if ci else "", **environment},
    )  # fmt: skip


FAILS_AT = """
import pathlib
def test_it():
    mark = pathlib.Path(__file__).with_name("mark")
    runs = len(mark.read_text()) + 1 if mark.exists() else 1
    mark.write_text("x" * runs)
    assert runs not in {runs}
"""


def test_all_passed(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_it(): pass")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("1 passed, 0 failed, 0 skipped\n")


@pytest.mark.parametrize(
    ("ci", "at", "code"), [(False, "{1}", 1), (True, "{1}", 0), (True, "{1, 2}", 1), (True, "{1, 4}", 1)]
)
def test_in_ci_one_that_fails_once_and_then_passes_each_time_is_unsteady(
    tmp_path: Path, ci: bool, at: str, code: int
) -> None:
    ended = run(tmp_path, FAILS_AT.replace("{runs}", at), ci=ci)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert ended.stdout.count("Again, alone") == {"{1}": 3 * ci, "{1, 2}": 1, "{1, 4}": 3}[at]
    listed = f"test_it.py::test_it: assert 1 not in {at}\n0 passed, {code} failed"
    title = "failed:" if code else "unsteady (failed once, passed alone: a defect, find the race):"
    assert f"{title}\n  {listed}" in ended.stdout


def test_in_ci_four_failed_tests_are_no_coincidence(tmp_path: Path) -> None:
    body = """
import pathlib, pytest
@pytest.mark.parametrize("n", range(4))
def test_it(n):
    mark = pathlib.Path(__file__).with_name(f"mark{n}")
    failed, _ = mark.exists(), mark.touch()
    assert failed
"""
    ended = run(tmp_path, body, ci=True)
    assert ended.returncode == 1
    assert "Again" not in ended.stdout
    assert "0 passed, 4 failed" in ended.stdout


def test_a_process_that_is_left_is_killed_and_fails_the_run(tmp_path: Path) -> None:
    body = "import subprocess\ndef test_it(): subprocess.Popen(['sleep', '4711'], start_new_session=True)"
    ended = run(tmp_path, body)
    assert ended.returncode == 1
    assert "left behind, and killed: process" in ended.stdout
    assert "sleep 4711" in ended.stdout
    assert not _is_running("sleep 4711")


def test_a_lane_that_hangs_is_ended_and_its_test_named(tmp_path: Path) -> None:
    for limit in (5, 20, 80, 240):  # a machine under load needs long to come to the test
        ended = run(tmp_path, "import time\ndef test_it(): time.sleep(1000)", limit=limit)
        assert ended.returncode == 1
        if "while it ran no test" not in ended.stdout:
            break
    assert "while it ran test_it.py::test_it" in ended.stdout


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    mount.mount("small", tmp_path / "small", "tmpfs", ["size=1m"])
    try:
        ended = run(tmp_path, "def test_it(): pass", environment={"TMPDIR": str(tmp_path / "small")})
    finally:
        mount.umount(tmp_path / "small")
    assert ended.returncode == 1
    assert ended.stdout == (
        f"tests: {tmp_path / 'small'} has 0.0 GiB free, they need 3: free some, or set TMPDIR to another one\n"
    )


def test_a_lane_that_cannot_start_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, "import nothing_of_that_name").returncode == 1


def test_what_was_not_run_is_counted_by_its_reason(tmp_path: Path) -> None:
    body = """
import pytest
@pytest.mark.parametrize("n", range(12))
def test_it(n): pytest.skip("needs lvm (Debian: apt-get install lvm2)")
@pytest.mark.skipif(True, reason="needs memcached (Debian: apt-get install memcached)")
def test_other(): pass
def test_passes(): pass
"""
    ended = run(tmp_path, body)
    assert ended.returncode == 0
    assert ended.stdout.endswith("""what was not run:
    12 x needs lvm (Debian: apt-get install lvm2)
     1 x needs memcached (Debian: apt-get install memcached)
1 passed, 0 failed, 13 skipped
""")


def test_a_test_of_the_unit_lane_that_asks_for_a_program_fails_the_run(tmp_path: Path) -> None:
    body = """
from tests.programs import need, needs
def test_asks(): need("mkfs.ext4")
@needs("mkfs.ext4")
def test_is_marked(): pass
"""
    ended = run(tmp_path, body, lane="unit")
    assert ended.returncode == 1
    reason = "needs mkfs.ext4 (Debian: apt-get install e2fsprogs): mark it real"
    assert f"test_asks: {reason}\n  test_it.py::test_is_marked: {reason}\n" in ended.stdout


@pytest.mark.parametrize("fixture", ["real_folder", "own_disk"])
def test_what_mounts_without_the_mark_real_fails_the_run(tmp_path: Path, fixture: str) -> None:
    """The lanes would miss it: unit has no programs, and real looks for files with the mark."""
    ended = run(tmp_path, f"def test_it({fixture}): pass")
    assert ended.returncode == 1
    assert "test_it.py::test_it: write pytest.mark.real: it uses real_folder" in ended.stdout + ended.stderr
    marked = run(tmp_path, f"import pytest\n@pytest.mark.real\ndef test_it({fixture}): pass", "--collect-only")
    assert marked.returncode == 0, marked.stdout + marked.stderr


def test_the_unit_lane_finds_no_program_that_a_machine_may_lack(tmp_path: Path) -> None:
    """Also none in the folders where tonnage looks, whatever PATH is, where the lane has mounts of its own."""
    body = """
import os, shutil, subprocess, sys
from cluster.programs import PACKAGES
from tonnage.host.run import PATH, run
def test_it():
    ours = [name for name, package in PACKAGES.items() if package != "util-linux"]
    assert not [name for name in ours if shutil.which(name)]
    if os.geteuid() == 0:
        assert not [name for name in ours if shutil.which(name, path=PATH)]
        assert run(["sh", "-c", "command -v pgrep mkfs.ext4 || echo none"]) == "none\\n"
    for name in ("sh", "bash", "tar", "mount", "awk", "git", "make", "python3", sys.executable):
        assert shutil.which(name), name
    assert subprocess.check_output([sys.executable, "-c", "import ssl, sqlite3; print(1)"]) == b"1\\n"
"""
    assert shutil.which("mkfs.ext4", path=PATH), "this test would show nothing"
    ended = run(tmp_path, body, lane="unit")
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout
    assert shutil.which("mkfs.ext4", path=PATH), "mounts of the lane came out of it"


def _is_running(command: str) -> bool:
    """pgrep(1) is not on every machine."""
    return any(processes.arguments(pid) == command.split() for pid in processes.pids())


def test_who_ends_the_run_ends_its_tests(tmp_path: Path) -> None:
    """Also where the run is a shell's background job, which ignores SIGINT."""
    body = "import subprocess\ndef test_it(): subprocess.run(['sleep', '4712'])"
    (tmp_path / "test_it.py").write_text(body)
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", SCRIPT, "300", "one"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, env=ENVIRONMENT) as running:
        while not _is_running("sleep 4712"):
            assert running.poll() is None
            time.sleep(0.1)
        running.terminate()
    assert running.returncode != 0
    assert not _is_running("sleep 4712")
