import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import processes

TESTS = Path(__file__).parents[3]
LISTED = re.compile(r"""(?:Path\(|listdir\()["']/proc["']\)""")
PROGRAM = "print(1, flush=True); input()"
ALLOWED = {
    "cinder/guest_iscsi.py",  # in a guest, which has none of our modules
    "processes.py",
    "unit/box/kubelet/streaming/test_pod_streams.py",  # a program in a container
    "unit/storage/pools/base/test_reservation_disks.py",  # the file system
    "vm/lvm_bench.py",  # in a guest
}


def test_one_that_ends_between_two_looks_is_not_there() -> None:
    """A zombie has a command line no more, a pid that nothing has fails to open, and so on, for each look."""
    command = [sys.executable, "-c", PROGRAM, "a-text-of-this"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"1\n"  # the kernel shows no arguments while the program is loaded
        assert processes.is_running(running.pid)
        assert processes.arguments(running.pid)[1:] == ["-c", PROGRAM, "a-text-of-this"]
        assert running.pid in processes.with_text("a-text")
        assert running.pid in processes.with_argument("a-text-of-this")
        assert running.pid not in processes.with_argument("a-text")
        assert running.pid in processes.children(os.getpid())
        processes.kill([running.pid])
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        for _ in ("a zombie", "gone"):
            assert not processes.is_running(running.pid)
            assert processes.arguments(running.pid) == []
            assert running.pid not in processes.with_text("a-text-of-this")
            running.wait()
        assert running.returncode == -signal.SIGKILL
        processes.kill([running.pid])


def test_a_file_that_was_opened_in_time_fails_no_look() -> None:
    """What /proc answers to a reader that opened the file before the process ended is ESRCH, not ENOENT."""
    with subprocess.Popen(["sleep", "1000"]) as running:
        with open(f"/proc/{running.pid}/status", "rb") as file:
            running.kill()
            running.wait()
            with pytest.raises(ProcessLookupError):
                file.read()
        assert processes.read(running.pid, "status") == b""


def test_no_test_lists_processes_by_itself() -> None:
    found = {str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py") if LISTED.search(path.read_text())}
    assert found - {str(Path(__file__).relative_to(TESTS))} == ALLOWED
