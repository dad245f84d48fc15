"""exec, attach, cp and run with the real kubectl, also at a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import programs
from tests import processes
from tests.clusters import Cluster

pytestmark = pytest.mark.real
_SECONDS = 120.0


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    """One node with a pod `app` that has an ephemeral volume of 64Mi at /data."""
    cluster = make_cluster("--nodes", "1", "--pool", "image,name=scratch,size=1Gi,sparse=yes")
    cluster.up()
    claim = {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "tonnage-scratch",
            "resources": {"requests": {"storage": "64Mi"}},
        }
    }
    main = {
        "name": "main",
        "image": "x",
        "command": ["sleep", "1000"],
        "env": [{"name": "GREETING", "value": "a b"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [main],
        "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": claim}}],
    }
    app = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(app))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/app", "--timeout=60s")
    yield cluster
    cluster.down("--purge")


class Terminal:
    """kubectl at a terminal."""

    def __init__(self, box: Cluster, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        os.set_blocking(self._ours, False)
        self._kubectl = subprocess.Popen(
            [str(programs.kubectl()), *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=box.environment
        )
        os.close(theirs)
        self.shown = b""

    def _read(self) -> None:
        try:
            self.shown += os.read(self._ours, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # kubectl has ended
            time.sleep(0.01)

    def until(self, text: bytes) -> None:
        """Wait for output."""
        deadline = time.monotonic() + _SECONDS
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            self._read()

    def type(self, text: bytes) -> None:
        """Type."""
        os.write(self._ours, text)

    def wait(self) -> int:
        """Its exit code."""
        deadline = time.monotonic() + _SECONDS
        while (code := self._kubectl.poll()) is None:
            assert time.monotonic() < deadline, self.shown
            self._read()
        self._read()
        os.close(self._ours)
        return code


def kubectl(box: Cluster, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run it; however it ends."""
    command = [str(programs.kubectl()), *arguments]
    return subprocess.run(command, input=data, capture_output=True, env=box.environment, timeout=_SECONDS, check=False)


def test_a_volume_and_its_size(box: Cluster) -> None:
    """The walk-through of PMEM-CSI."""
    header, line = box.kubectl("exec", "app", "--", "df", "-h", "/data").splitlines()
    assert header.split()[:2] == ["Filesystem", "Size"]
    size, place = line.split()[1], line.split()[-1]
    assert (size in ("64M", "65M", "66M"), place) == (True, "/data")


def test_output_errors_and_exit_code(box: Cluster) -> None:
    ended = kubectl(box, "exec", "app", "--", "sh", "-c", "echo out $GREETING; echo err >&2; exit 3")
    assert (ended.stdout, ended.returncode) == (b"out a b\n", 3)
    assert ended.stderr == b"err\ncommand terminated with exit code 3\n"


def test_input_ends(box: Cluster) -> None:
    data = os.urandom(2 << 20)
    assert kubectl(box, "exec", "-i", "app", "--", "cat", data=data).stdout == data


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("exec", "app", "--", "nope"), b'exec: "nope": executable file not found in $PATH'),
        (("exec", "app", "-c", "other", "--", "ls"), b"container other is not valid for pod app"),
        (("exec", "nobody", "--", "ls"), b'pods "nobody" not found'),
        (("port-forward", "app", "8080:80"), b"connect to 127.0.0.1:PORT"),
        (("debug", "app", "--image=x", "-c", "main"), b'Duplicate value: "main"'),
    ],
)
def test_rejections(box: Cluster, arguments: tuple[str, ...], said: bytes) -> None:
    ended = kubectl(box, *arguments)
    assert ended.returncode != 0
    assert said in ended.stderr


def test_spdy_is_rejected_with_a_hint(box: Cluster) -> None:
    said = box.kubectl("exec", "app", "--", "ls", fails=True, KUBECTL_REMOTE_COMMAND_WEBSOCKETS="false")
    assert "SPDY is not served; connect by WebSocket" in said


def test_a_terminal(box: Cluster) -> None:
    terminal = Terminal(box, "exec", "-it", "app", "--", "sh")
    terminal.type(b"tty; echo $TERM; echo $((40 + 2))\n")
    terminal.until(b"/dev/pts/0\r\nxterm\r\n42\r\n")
    terminal.type(b"exit 5\n")
    assert terminal.wait() == 5


def test_copy_both_ways(box: Cluster, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "big").write_bytes(data := os.urandom(3 << 20))
    (source / "link").symlink_to("sub/big")
    box.kubectl("cp", str(source), "app:/data/copied")
    assert box.kubectl("exec", "app", "--", "readlink", "/data/copied/link") == "sub/big\n"
    box.kubectl("cp", "app:/data/copied", str(back))
    assert (back / "sub" / "big").read_bytes() == data


def test_copy_does_not_leave_its_folder(box: Cluster, tmp_path: Path) -> None:
    """`..` in either path stays in the container, whose root is all that tar sees there."""
    (tmp_path / "file").write_text("x")
    marker = f"tonnage-{os.getpid()}"
    box.kubectl("cp", str(tmp_path / "file"), f"app:../../../../../../tmp/{marker}")
    assert box.kubectl("exec", "app", "--", "cat", f"/tmp/{marker}") == "x"
    assert not Path("/tmp", marker).exists()
    kubectl(
        box, "cp", f"app:/../../../../{tmp_path}/file", str(tmp_path / "got")
    )  # kubectl may end before tar's message
    assert not (tmp_path / "got").exists()


def test_run_at_a_terminal_and_remove(box: Cluster) -> None:
    terminal = Terminal(
        box, "run", "shell", "-it", "--rm", "--restart=Never", "--image=x", "--pod-running-timeout=60s",
        "--command", "--", "sh",
    )  # fmt: skip
    terminal.type(b"echo $((1 + 1))1\n")
    terminal.until(b"21\r\n")
    terminal.type(b"exit\n")
    assert terminal.wait() == 0
    assert b'pod "shell" deleted' in terminal.shown
    assert "NotFound" in box.kubectl("get", "pod", "shell", fails=True)


def test_run_with_input(box: Cluster) -> None:
    ended = kubectl(
        box, "run", "filter", "-i", "--rm", "--quiet", "--restart=Never", "--image=x",
        "--command", "--", "sh", "-c", "read line; echo got $line; cat", data=b"one\ntwo\n",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert b"got one\ntwo\n" in ended.stdout


def test_attach_shows_output(box: Cluster) -> None:
    said = json.dumps(["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done; echo seen"])
    overrides = '{"apiVersion":"v1","spec":{"containers":[{"name":"talker","image":"x","command":' + said + "}]}}"
    box.kubectl("run", "talker", "--image=x", "--restart=Never", f"--overrides={overrides}")
    box.kubectl("wait", "--for=condition=Ready", "pod/talker", "--timeout=60s")
    attached = Terminal(box, "attach", "talker")
    attached.until(b"If you don't see a command prompt")
    box.kubectl("exec", "talker", "--", "touch", "/tmp/go")
    attached.wait()
    assert b"seen" in attached.shown or "seen" in box.kubectl("logs", "talker")


def running(argument: str) -> list[int]:
    """Processes of the machine with this argument, but kubectl."""
    all_words = {pid: processes.arguments(pid) for pid in processes.pids()}
    return [pid for pid, words in all_words.items() if argument in words and "exec" not in words]


def test_a_client_that_is_killed_ends_its_command(box: Cluster) -> None:
    seconds = f"{3_000_000 + os.getpid()}"
    client = subprocess.Popen([str(programs.kubectl()), "exec", "app", "--", "sleep", seconds], env=box.environment)
    box.until("the command runs", lambda: bool(running(seconds)))
    client.kill()
    client.wait()
    box.until("the command has ended", lambda: not running(seconds))


def test_a_box_that_is_killed_ends_its_commands(box: Cluster) -> None:
    """The container lives on, and the next box runs commands in it."""
    seconds = f"{4_000_000 + os.getpid()}"
    box.kubectl("exec", "app", "--", "touch", "/tmp/mark")
    client = subprocess.Popen([str(programs.kubectl()), "exec", "app", "--", "sleep", seconds], env=box.environment)
    box.until("the command runs", lambda: bool(running(seconds)))
    os.kill(box.pid(), signal.SIGKILL)
    client.wait()
    box.until("the command has ended", lambda: not running(seconds))
    box.up()
    box.kubectl("wait", "--for=condition=Ready", "pod/app", "--timeout=60s")
    assert box.kubectl("exec", "app", "--", "sh", "-c", "ls /tmp/mark; echo $GREETING") == "/tmp/mark\na b\n"


def test_debug_adds_a_container_to_a_running_pod(box: Cluster) -> None:
    """It runs beside the others, which notice nothing, and stays in the pod when it has ended."""
    before = json.loads(box.kubectl("get", "pod", "app", "-o", "json"))
    # The profile, which newer kubectl has by default, adds a capability that no container of the box has.
    terminal = Terminal(box, "debug", "-it", "app", "--profile=general", "--image=x", "-c", "look", "--", "sh")
    terminal.until(b"try pressing enter")
    terminal.type(b"\n")  # the first prompt may have been written before kubectl attached
    terminal.until(b"# ")
    terminal.type(b"hostname; echo $((40 + 2)); exit 3\n")
    terminal.until(b"app\r\n42\r\n")
    assert terminal.wait() == 0
    ended = "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}=3"
    box.kubectl("wait", f"--for={ended}", "pod/app", "--timeout=60s")
    after = json.loads(box.kubectl("get", "pod", "app", "-o", "json"))
    assert [c["name"] for c in after["spec"]["ephemeralContainers"]] == ["look"]
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert "42" in box.kubectl("logs", "app", "-c", "look")
    assert "look:" in box.kubectl("describe", "pod", "app").partition("Ephemeral Containers:")[2]


def test_an_ephemeral_container_sees_the_volumes(box: Cluster) -> None:
    """As Kubernetes' tests of volumes add one; it may not be changed or taken away."""
    box.kubectl("exec", "app", "--", "sh", "-c", "echo kept > /data/file")
    path = "/api/v1/namespaces/default/pods/app/ephemeralcontainers"
    added = {
        "name": "reader",
        "image": "x",
        "command": ["sleep", "1000"],
        "volumeMounts": [{"name": "data", "mountPath": "/there"}],
    }
    patch = json.dumps({"spec": {"ephemeralContainers": [added]}})
    box.kubectl("patch", "pod", "app", "--subresource=ephemeralcontainers", "-p", patch)
    running = "jsonpath={.status.ephemeralContainerStatuses[?(@.name=='reader')].state.running}"
    box.kubectl("wait", f"--for={running}", "pod/app", "--timeout=60s")
    assert box.kubectl("exec", "app", "-c", "reader", "--", "cat", "/there/file") == "kept\n"
    pod = json.loads(box.kubectl("get", "--raw", path))
    pod["spec"]["ephemeralContainers"] = []
    said = box.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(pod), fails=True)
    assert "may not be removed" in said
