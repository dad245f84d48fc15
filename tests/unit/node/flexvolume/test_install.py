"""The kubelet's program: its calls under real shells, and where it is installed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.programs import needs

from tonnage.base.errors import InvalidError, PreconditionError
from tonnage.kubernetes.api.names import FLEX_DRIVERS
from tonnage.node.flexvolume.install import install, path_of, program, uninstall

SHELLS = [
    ("dash",),
    ("bash", "--posix"),
    pytest.param(("busybox", "sh"), marks=[pytest.mark.real, needs("busybox")]),
]
LOCAL = FLEX_DRIVERS[0]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    made = tmp_path / "flex"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture(params=SHELLS, ids=["dash", "bash", "busybox"])
def call(request: pytest.FixtureRequest, tmp_path: Path, spool: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts the program as the kubelet does; its two streams are one."""
    file = tmp_path / "local"

    def start(*arguments: str, seconds: int = 600) -> subprocess.Popen[bytes]:
        file.write_text(program(spool, seconds=seconds))
        command = [*request.param, str(file), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0)

    return start


def serve(spool: Path, answer: bytes) -> tuple[threading.Thread, list[bytes]]:
    """Answer the next call, as the agent does; the requests that came."""
    requests: list[bytes] = []

    def work() -> None:
        while not (calls := list(spool.glob("q.*"))):
            threading.Event().wait(0.005)
        requests.append((calls[0] / "request").read_bytes())
        fd = os.open(calls[0] / "answer", os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, answer)
        os.close(fd)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, requests


def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until no process of a call is left."""
    for _ in range(6000):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        threading.Event().wait(0.01)
    raise AssertionError("a process of the call is left")


def test_init_needs_no_agent(call: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = call("init")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    found = json.loads(output)
    assert found["status"] == "Success"
    assert found["capabilities"] == {
        "attach": False,
        "selinuxRelabel": True,
        "supportsMetrics": True,
        "fsGroup": True,
        "requiresFSResize": False,
    }


@pytest.mark.parametrize("command", ["attach", "getvolumename", "expandvolume", ""])
def test_what_is_not_offered_is_answered_in_the_kubelets_words(
    call: Callable[..., subprocess.Popen[bytes]], command: str
) -> None:
    process = call(command, "{}")
    assert json.loads(process.communicate(timeout=60)[0]) == {"status": "Not supported"}
    assert process.returncode == 1


@pytest.mark.slow
def test_a_call_reaches_the_agent_whole_and_leaves_nothing(
    call: Callable[..., subprocess.Popen[bytes]], spool: Path
) -> None:
    options = json.dumps({"kubernetes.io/secret/key": "aHVudGVyMg==", "a": 'it\'s "$HOME" `id`\n\\ %s'})
    thread, requests = serve(spool, b'{"status":"Success"}\n')
    process = call("mount", "/var/lib/kubelet/pods/u/volumes/tonnage.dev~local/data with space", options)
    output, _ = process.communicate(timeout=60)
    thread.join(60)
    assert output == b'{"status":"Success"}\n'
    assert process.returncode == 0
    _, command, folder, given, end = requests[0].split(b"\0")
    assert (command, end) == (b"mount", b"")
    assert folder.endswith(b"data with space")
    assert json.loads(given) == json.loads(options)
    assert list(spool.iterdir()) == []
    ended(process)


def test_a_failure_is_passed_on_and_has_an_exit_code(call: Callable[..., subprocess.Popen[bytes]], spool: Path) -> None:
    answer = b'{"status":"Failure","message":"a\\nb \\\\ 100% %s"}\n'
    thread, _ = serve(spool, answer)
    process = call("unmount", "/x")
    assert process.communicate(timeout=60)[0] == answer
    thread.join(60)
    assert process.returncode == 1


def test_without_an_agent_the_call_fails_by_itself(call: Callable[..., subprocess.Popen[bytes]], spool: Path) -> None:
    process = call("mount", "/x", "{}", seconds=1)
    output, _ = process.communicate(timeout=60)
    assert json.loads(output)["status"] == "Failure"
    assert b"agent is not running" in output
    assert list(spool.iterdir()) == []
    spool.rmdir()
    output, _ = call("mount", "/x", "{}").communicate(timeout=60)
    assert b"tonnage node agent has not run" in output
    assert json.loads(output)["status"] == "Failure"


def test_a_program_that_is_ended_leaves_no_call(call: Callable[..., subprocess.Popen[bytes]], spool: Path) -> None:
    process = call("mount", "/x", "{}")
    while not list(spool.glob("q.*")):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert list(spool.iterdir()) == []
    ended(process)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a tmpfs")
@pytest.mark.real
def test_a_full_folder_is_named(call: Callable[..., subprocess.Popen[bytes]], spool: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=20", "full", spool], check=True)
    try:
        output, _ = call("mount", "/x", json.dumps({"a": "b" * 100_000})).communicate(timeout=60)
        assert json.loads(output) == {
            "status": "Failure", "message": f"the folder of tonnage node agent is full: {spool}"
        }  # fmt: skip
        assert list(spool.iterdir()) == []
    finally:
        subprocess.run(["umount", spool], check=True)


def test_install_is_repeatable_and_removes_only_its_own(tmp_path: Path) -> None:
    plugins = tmp_path / "exec"
    paths = [path_of(plugins, driver) for driver in FLEX_DRIVERS]
    assert install(plugins) == paths
    assert [str(path.relative_to(plugins)) for path in paths] == [
        "tonnage.dev~local/local",
        "monostream.com~localflex/localflex",
        "volumes.k8s.elastic.co~elastic-local/elastic-local",
    ]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o755 for path in paths)
    before = [path.stat().st_ino for path in paths]
    assert install(plugins) == []
    assert [path.stat().st_ino for path in paths] == before, "the kubelet would probe them again"
    assert sorted(os.listdir(paths[0].parent)) == ["local"]
    paths[0].write_text(paths[0].read_text() + "# changed\n")
    assert install(plugins) == [paths[0]]
    paths[1].write_text("#!/bin/sh\n# of others\n")
    assert uninstall(plugins) == [paths[0], paths[2]]
    assert sorted(os.listdir(plugins)) == ["monostream.com~localflex"]
    assert uninstall(plugins) == []


def test_install_leaves_other_drivers_alone(tmp_path: Path) -> None:
    other = path_of(tmp_path, "monostream.com/localflex")
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    with pytest.raises(PreconditionError, match="another FlexVolume driver is installed there; remove it first"):
        install(tmp_path)
    assert not path_of(tmp_path, LOCAL).exists(), "all or nothing"
    assert install(tmp_path, drivers=[LOCAL]) == [path_of(tmp_path, LOCAL)]


@pytest.mark.parametrize("spool", ["relative", "/a'b", "/a b", "/a\nb", "/$(id)"])
def test_a_spool_is_never_read_by_the_shell(spool: str) -> None:
    with pytest.raises(InvalidError, match="want an absolute path"):
        program(Path(spool))
