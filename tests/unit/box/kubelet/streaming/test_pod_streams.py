"""Commands in real containers, and attempts to get out of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests import keys
from tests.programs import needs_containers
from tests.unit.box.kubelet.streaming.clients import FakeClient

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import ApiError, PreconditionError
from tonnage.kubernetes.api.kinds import PODS
from tonnage_box.api import pod_security
from tonnage_box.api.remote_command import Session, StreamOptions
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime

pytestmark = [
    pytest.mark.real,
    needs_containers,
    pytest.mark.parametrize(
        "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
    ),
]
EVERY = pod_security.granted({})


async def session(machine: Any, *command: str, name: str = "p", **options: Any) -> Session:
    """Of a pod's only container."""
    pod = await machine.client.get(PODS, name, "default")
    chosen = StreamOptions("", command, stdout=True, stderr=True, **options)
    opened: Session = machine.kubelet.streams.open(pod, chosen)
    return opened


async def run(machine: Any, *command: str, name: str = "p", want: int = 0, **options: Any) -> str:
    """Standard output and error of a command."""
    client = FakeClient()
    async with asyncio.timeout(60):
        code = await (await session(machine, *command, name=name, **options))(client)
    text = b"".join(client.output.values()).decode()
    assert code == want, (code, text)
    return text


async def shell(machine: Any, script: str, **options: Any) -> str:
    return await run(machine, "/bin/sh", "-c", script, **options)


async def made(machine: Any, file: str) -> Path:
    """A file of the container's own root, once it is there."""
    async with asyncio.timeout(60):
        while not (found := list((machine.root / "pods").glob(f"*/containers/main/0/rootfs/{file}"))):
            await asyncio.sleep(0.01)
    return Path(found[0])


async def test_a_command_runs_as_the_containers_own(machine: Any) -> None:
    """Same user, groups, capabilities, namespaces, environment and working directory."""
    look = (
        "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/self/status; pwd; env | sort; umask; cat /proc/self/mounts; "
        "for n in mnt pid ipc uts cgroup net user; do readlink /proc/self/ns/$n; done; cat /proc/self/cgroup"
    )
    await machine.pod(
        "p",
        securityContext={"runAsUser": 1234, "runAsGroup": 55, "fsGroup": 77, "supplementalGroups": [88]},
        volumes=[{"name": "e", "emptyDir": {}}],
        containers=[
            {
                "name": "main",
                "image": "x",
                "command": ["/bin/sh", "-c", f"({look}) > /e/own; echo > /e/done; exec sleep 1000"],
                "workingDir": "/e/here",
                "env": [{"name": "SECRET", "value": "a b\nc=d"}],
                "volumeMounts": [{"name": "e", "mountPath": "/e"}],
            }
        ],
    )
    await machine.phase("p", "Running")
    await shell(machine, "until [ -e /e/done ]; do sleep 0.01; done")
    assert await shell(machine, look) == await run(machine, "cat", "/e/own")


async def test_root_has_the_containers_capabilities_only(machine: Any) -> None:
    await machine.pod("p", containers=[{"name": "main", "image": "x", "command": ["sh", "-c", "exec sleep 1000"]}])
    await machine.phase("p", "Running")
    own = await shell(machine, "grep -E '^(Uid|Cap|NoNewPrivs|Seccomp)' /proc/self/status")
    first = await shell(
        machine,
        "for p in /proc/[0-9]*; do grep -q sleep $p/comm && grep -E '^(Uid|Cap|NoNewPrivs|Seccomp)' $p/status; done; exit 0",
    )
    assert own == first
    assert "CapInh:\t0000000000000000" in own
    assert "NoNewPrivs:\t1" in own


@pytest.mark.parametrize(
    ("context", "bounding", "effective"),
    [
        ({"capabilities": {"drop": ["ALL"]}}, 0, 0),
        ({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}, 1 << 10, 1 << 10),
        ({"capabilities": {"drop": ["CHOWN"]}}, EVERY & ~1, EVERY & ~1),
        ({"capabilities": {"drop": ["KILL"]}, "runAsUser": 1234}, EVERY & ~(1 << 5), 0),
        ({}, EVERY, EVERY),
    ],
)
async def test_capabilities_are_those_that_the_container_asks_for(
    machine: Any, context: dict[str, Any], bounding: int, effective: int
) -> None:
    """Of its own processes, of its postStart hook, and of further commands."""
    look = "grep ^Cap /proc/self/status"
    await machine.pod(
        "p",
        securityContext={"fsGroup": 77},
        volumes=[{"name": "e", "emptyDir": {}}],
        containers=[
            {
                "name": "main",
                "image": "x",
                "command": ["/bin/sh", "-c", f"{look} > /e/own; exec sleep 1000"],
                "lifecycle": {"postStart": {"exec": {"command": ["/bin/sh", "-c", f"{look} > /e/hook"]}}},
                "securityContext": context,
                "volumeMounts": [{"name": "e", "mountPath": "/e"}],
            }
        ],
    )
    await machine.phase("p", "Running")
    held = {"Inh": 0, "Prm": effective, "Eff": effective, "Bnd": bounding, "Amb": 0}
    said = "".join(f"Cap{word}:\t{mask:016x}\n" for word, mask in held.items())
    await shell(machine, "until [ -s /e/own ]; do sleep 0.01; done")
    assert [await shell(machine, "cat /e/own"), await shell(machine, "cat /e/hook"), await shell(machine, look)] == [
        said
    ] * 3


@pytest.mark.parametrize("profile", ["RuntimeDefault", "Unconfined"])
async def test_no_key_of_root_is_reached(machine: Any, profile: str) -> None:
    """Neither by its own processes nor by further commands, though a process outside reads it."""
    keys.needs_keys()
    with keys.key_of_root("tonnage-test", b"secret") as number:
        arguments = ["/usr/bin/python3", "-c", keys.CONTAINER_TRIES, "tonnage-test", str(number)]
        outside = (await asyncio.to_thread(subprocess.check_output, arguments, text=True)).splitlines()
        assert outside[0] == "done b'secret'"
        await machine.pod(
            "p",
            containers=[
                {
                    "name": "main",
                    "image": "x",
                    "command": ["/bin/sh", "-c", '"$@" > /own; sleep 1000', "sh", *arguments],
                    "securityContext": {"seccompProfile": {"type": profile}},
                }
            ],
        )
        await machine.phase("p", "Running")
        await shell(machine, "until [ $(wc -l < /own) = 7 ]; do sleep 0.01; done")
        for said in (await shell(machine, "cat /own"), await run(machine, *arguments)):
            assert said.splitlines() == ["failed Operation not permitted"] * 7


@pytest.mark.parametrize(("profile", "error"), [(None, "EPERM"), ("RuntimeDefault", "EPERM"), ("Unconfined", "done")])
async def test_calls_that_runtimes_deny(machine: Any, profile: str | None, error: str) -> None:
    """process_madvise(2) of nothing does no harm, and needs no right."""
    call = (
        "import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True); import threading; "
        "thread = threading.Thread(target=print); thread.start(); thread.join(); "
        "print('done' if libc.syscall(443 - 3, -1, 0, 0, 0, 0) < 0 and ctypes.get_errno() != errno.EPERM else 'EPERM')"
    )
    context = {"seccompProfile": {"type": profile}} if profile else {}
    await machine.pod(
        "p",
        securityContext=context,
        containers=[
            {
                "name": "main",
                "image": "x",
                "command": ["/usr/bin/python3", "-c", f"{call}; import time; time.sleep(99)"],
            }
        ],
    )
    await machine.phase("p", "Running")
    assert (await run(machine, "/usr/bin/python3", "-c", call)).split() == [error]
    unshared = await shell(machine, "exec 2>&1; unshare -U true && echo unshared || echo not")
    assert unshared.splitlines()[-1] == ("unshared" if profile == "Unconfined" else "not")


async def test_exit_codes(machine: Any) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    await shell(machine, "exit 7", want=7)
    await shell(machine, "kill -9 $$", want=137)
    with pytest.raises(ApiError, match=r'exec: "no-such": executable file not found in \$PATH'):
        await run(machine, "no-such")
    with pytest.raises(ApiError, match=r'exec: "/no/such": stat /no/such: no such file or directory'):
        await run(machine, "/no/such")
    with pytest.raises(ApiError, match=r'exec: "/etc": permission denied'):
        await run(machine, "/etc")


async def test_input_comes_whole_and_ends(machine: Any) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    client, data = FakeClient(), os.urandom(3 << 20)
    running = asyncio.ensure_future((await session(machine, "cat", stdin=True))(client))
    for start in range(0, len(data), 1 << 16):
        client.type(data[start : start + (1 << 16)])
    client.end()
    async with asyncio.timeout(60):
        assert await running == 0
    assert client.output[1] == data


async def test_a_terminal_has_a_size_and_job_control(machine: Any) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    client = FakeClient()
    running = asyncio.ensure_future((await session(machine, "sh", stdin=True, tty=True))(client))
    client.resize(101, 33)
    client.type(b"stty size; tty; echo $TERM\n")
    await client.until(b"33 101\r\n/dev/pts/")
    await client.until(b"xterm\r\n")
    client.type(b"sh -c 'echo sle''eps; exec sleep 1000'\n")
    await client.until(b"sleeps")
    client.type(b"\x03")
    client.type(b"exit 9\n")
    async with asyncio.timeout(60):
        assert await running == 9


async def test_a_client_that_goes_ends_its_command(machine: Any) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    for tty in (False, True):
        client = FakeClient()
        running = asyncio.ensure_future(
            (await session(machine, "sh", "-c", "echo up; trap '' HUP; sleep 7777 & wait", tty=tty))(client)
        )
        await client.until(b"up")
        client.gone()
        with pytest.raises(ConnectionError):
            await running
        assert "sleep\x007777" not in await shell(machine, "cat /proc/[0-9]*/cmdline")


async def test_a_background_process_does_not_hold_the_session(machine: Any) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    assert await shell(machine, "sleep 1000 & echo started") == "started\n"


async def test_the_containers_end_ends_its_sessions(machine: Any) -> None:
    await machine.pod("p", terminationGracePeriodSeconds=0)
    await machine.phase("p", "Running")
    client = FakeClient()
    running = asyncio.ensure_future((await session(machine, "sh", "-c", "echo up; exec sleep 1000"))(client))
    await client.until(b"up")
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    async with asyncio.timeout(60):
        assert await running == 137
    await machine.gone("p")


async def test_what_does_not_run_is_rejected_in_kubernetes_words(machine: Any) -> None:
    await machine.pod("p", restartPolicy="Never", containers=[{"name": "main", "image": "x", "command": ["true"]}])
    await machine.phase("p", "Succeeded")
    with pytest.raises(ApiError, match=r'unable to upgrade connection: container not found \("main"\)'):
        await run(machine, "true")
    pod = await machine.client.get(PODS, "p", "default")
    with pytest.raises(ApiError, match="container other is not valid for pod p"):
        machine.kubelet.streams.open(pod, StreamOptions("other", ("true",)))


async def test_a_container_of_an_earlier_kubelet(machine: Any) -> None:
    await machine.pod(
        "p",
        containers=[{"name": "main", "image": "x", "command": ["sleep", "1000"], "env": [{"name": "A", "value": "b"}]}],
    )
    await machine.phase("p", "Running")
    await machine.restart()
    await machine.until("p", lambda _: machine.kubelet.workers.find("default", "p") is not None)
    assert await shell(machine, "echo $A") == "b\n"


async def test_the_kubelets_end_ends_sessions(machine: Any) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    client = FakeClient()
    running = asyncio.ensure_future((await session(machine, "sh", "-c", "echo up; exec sleep 1000"))(client))
    await client.until(b"up")
    await machine.kubelet.streams.close()
    with pytest.raises(ApiError, match="node node-1 is shutting down"):
        await running


async def test_nothing_of_the_machine_is_seen(machine: Any) -> None:
    """Descriptors, environment and root of those who start a command stay outside."""
    await machine.pod("p")
    await machine.phase("p", "Running")
    for tty in (False, True):
        for fd in range(3, 12):
            assert await run(machine, "readlink", f"/proc/self/fd/{fd}", want=1, tty=tty) == ""
    assert "PYTEST" not in await shell(machine, "cat /proc/[0-9]*/environ | tr '\\0' '\\n'")
    for path in ("/proc/self/root", "/proc/1/root", "/proc/1/cwd"):
        assert str(machine.folder) not in await shell(machine, f"ls -la {path}/ {path}/.. 2>&1; exit 0")
    assert "join.py" not in await shell(machine, "cat /proc/[0-9]*/cmdline")


@pytest.mark.parametrize(
    "attempt",
    [
        "echo 0 > /proc/sys/kernel/hostname",
        "echo b > /proc/sysrq-trigger",
        "mount -t tmpfs none /mnt",
        "unshare --mount true",
        "mknod /tmp/disk b 8 0",
        "nsenter --mount=/proc/1/ns/mnt true",
        "touch /usr/bin/evil",
        "chroot /proc/1/root/../../.. test -e OUTSIDE",
    ],
)
async def test_ways_out_are_shut(machine: Any, attempt: str) -> None:
    await machine.pod("p")
    await machine.phase("p", "Running")
    assert machine.folder.exists()
    text = await shell(machine, f"{attempt.replace('OUTSIDE', str(machine.folder))} && echo ESCAPED; exit 0")
    assert "ESCAPED" not in text, text


@pytest.mark.parametrize("target", [*(f"/proc/self/fd/{fd}" for fd in range(3, 10)), "/proc/1/root/.."])
async def test_a_working_directory_that_leads_elsewhere(machine: Any, target: str) -> None:
    """A symlink to a descriptor of the process that starts the command (CVE-2024-21626)."""
    command = ["sh", "-c", f"rmdir /w; ln -s {target} /w; echo > /done; exec sleep 1000"]
    await machine.pod("p", containers=[{"name": "main", "image": "x", "command": command, "workingDir": "/w"}])
    await machine.phase("p", "Running")
    await made(machine, "done")
    if target.endswith(".."):
        assert "usr" in await run(machine, "ls", "/proc/self/cwd/")
        assert await run(machine, "readlink", "/proc/self/cwd") == "/\n"
    else:
        with pytest.raises(ApiError, match="chdir to cwd"):
            await run(machine, "ls", "/proc/self/cwd/")


async def test_a_container_that_replaces_the_terminal_multiplexer(machine: Any) -> None:
    script = "rm /dev/ptmx; ln -s /proc/self/fd/3 /dev/ptmx; mkfifo /dev/tty2; echo > /done; exec sleep 1000"
    await machine.pod("p", containers=container(script))
    await machine.phase("p", "Running")
    await made(machine, "done")
    assert await run(machine, "tty", stdin=True, tty=True) == "/dev/pts/0\r\n"


HUNT = """
import ctypes, os
libc = ctypes.CDLL(None)
seen = open('/tmp/seen', 'ab', 0)
while True:
    for pid in [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) > os.getpid()]:
        try:
            exe = os.readlink(f'/proc/{pid}/exe')
            if 'python' in exe or '/tonnage' in os.readlink(f'/proc/{pid}/cwd'):
                seen.write(f'read {exe}\\n'.encode())
            if libc.ptrace(0x4206, pid, 0, 0) == 0 and 'python' in open(f'/proc/{pid}/comm').read():
                seen.write(b'traced\\n')
            if not (exe := os.readlink(f'/proc/{pid}/fd/3')).startswith(('/usr/', '/etc/')):  # the command's libraries
                seen.write(f'descriptor {exe}\\n'.encode())
        except OSError:
            pass
        try:
            os.waitpid(-1, os.WNOHANG | 0x40000000)
        except OSError:
            pass
"""


async def test_a_container_that_hunts_the_process_that_joins(machine: Any) -> None:
    """Each new process is traced, its files opened and its memory read, as soon as it shows up."""
    await machine.pod("p", containers=[{"name": "main", "image": "x", "command": ["python3", "-c", HUNT]}])
    await machine.phase("p", "Running")
    seen = await made(machine, "tmp/seen")
    for _ in range(20):
        await run(machine, "true")
    assert seen.read_text() == ""


async def attached(machine: Any, client: FakeClient, **options: Any) -> asyncio.Future[int]:
    """A client at the container's own streams."""
    await machine.phase("p", "Running")
    return asyncio.ensure_future((await session(machine, **options))(client))


def container(script: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "image": "x", "command": ["sh", "-c", script], **more}]


async def test_attach_with_input_that_ends_once(machine: Any) -> None:
    await machine.pod("p", restartPolicy="Never", containers=container("cat; echo over", stdin=True, stdinOnce=True))
    client = FakeClient()
    running = await attached(machine, client, stdin=True)
    client.type(b"hello\n")
    await client.until(b"hello\n")
    client.end()
    async with asyncio.timeout(60):
        assert await running == 0
    assert client.output[1] == b"hello\nover\n"
    await machine.phase("p", "Succeeded")


async def test_attach_again_where_input_stays_open(machine: Any) -> None:
    await machine.pod("p", containers=container("while read line; do echo got $line; done", stdin=True))
    for text in (b"one", b"two"):
        client = FakeClient()
        running = await attached(machine, client, stdin=True)
        client.type(text + b"\n")
        await client.until(b"got " + text)
        client.end()
        async with asyncio.timeout(60):
            assert await running == 0


async def test_attach_to_a_terminal(machine: Any) -> None:
    await machine.pod("p", restartPolicy="Never", containers=container("exec sh", stdin=True, tty=True))
    client = FakeClient()
    running = await attached(machine, client, stdin=True, tty=True)
    client.resize(77, 22)
    client.type(b"stty size; echo $TERM; sh -c 'echo sle''eps; exec sleep 1000'\n")
    await client.until(b"sleeps")
    client.type(b"\x03")
    client.type(b"exit 3\n")
    async with asyncio.timeout(60):
        assert await running == 0
    assert b"22 77\r\nxterm\r\nsleeps" in client.output[1]
    pod = await machine.phase("p", "Failed")
    assert pod.status.container_statuses[0].state.terminated["exitCode"] == 3


async def test_attached_output_comes_whole_and_is_logged(machine: Any) -> None:
    """Much more than may wait for a client."""
    script = "read go; head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; echo end"
    await machine.pod("p", restartPolicy="Never", containers=container(script, stdin=True))
    client = FakeClient()
    running = await attached(machine, client, stdin=True)
    client.type(b"go\n")
    async with asyncio.timeout(60):
        assert await running == 0
    assert client.output[1] == b"x" * 3000000 + b"\nend\n"


async def test_input_of_an_adopted_container_is_rejected(machine: Any) -> None:
    await machine.pod("p", containers=container("sleep 1000", stdin=True))
    await machine.phase("p", "Running")
    await machine.restart()
    await machine.until("p", lambda _: machine.kubelet.workers.find("default", "p") is not None)
    with pytest.raises(PreconditionError, match="its input was closed"):
        await (await session(machine, stdin=True))(FakeClient())
