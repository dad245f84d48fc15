"""Probes and hooks of real containers: what they run, and what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import processes
from tests.programs import needs_containers
from tests.unit.box.kubelet.machine import Eventually

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.kinds import EVENTS, PODS
from tonnage.kubernetes.api.pods import Container, ContainerPort, Pod
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.probes.handler import headers_of, port_of, url_of

real = [
    pytest.mark.real,
    needs_containers,
    pytest.mark.parametrize(
        "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
    ),
]


def _marked(test: Any) -> Any:
    for mark in real:
        test = mark(test)
    return test


@pytest.fixture(autouse=True)
def _leaves_nothing(folder: Path) -> Iterator[None]:
    yield
    left = processes.with_text(str(folder))
    processes.kill(left)
    assert left == []


def _shell(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "any", "command": ["/bin/sh", "-c", script], **more}


def _exec(script: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 20, **more}


def _conditions(pod: Pod) -> dict[str, str]:
    return {c.type: c.status for c in pod.status.conditions}


def _is_ready(pod: Pod) -> bool:
    return _conditions(pod).get("Ready") == "True"


def _log(machine: Any, pod: Pod, attempt: int = 0) -> list[str]:
    meta = pod.metadata
    path = machine.root / "pods-logs" / f"{meta.namespace}_{meta.name}_{meta.uid}" / "main" / f"{attempt}.log"
    return [line.split(" ", 3)[3] for line in path.read_text().splitlines()] if path.exists() else []


async def _messages(machine: Any, reason: str) -> list[str]:
    return [event.message for event in (await machine.client.list(EVENTS)).items if event.reason == reason]


SLEEP = "trap 'echo term; exit 0' TERM; while :; do sleep 0.05; done"


@_marked
async def test_a_pod_is_ready_when_its_probe_says_so(machine: Any) -> None:
    probe = _exec('echo "not yet"; test -e /tmp/ready')
    await machine.pod(
        "p", containers=[_shell("until [ -e /tmp/go ]; do sleep 0.05; done; " + SLEEP, readinessProbe=probe)]
    )
    event = await machine.event("Unhealthy")
    assert event.message == "Readiness probe failed: not yet\n"
    pod = await machine.phase("p", "Running")
    assert not _is_ready(pod)
    (ready,) = [c for c in pod.status.conditions if c.type == "ContainersReady"]
    assert (ready.reason, ready.message) == ("ContainersNotReady", "containers with unready status: [main]")
    status = pod.status.container_statuses[0]
    assert (status.ready, status.started) == (False, True)
    root = machine.root / "pods" / pod.metadata.uid / "containers" / "main" / "0" / "rootfs"
    (root / "tmp" / "ready").touch()
    await machine.until("p", _is_ready, what="Ready")
    (root / "tmp" / "ready").unlink()
    await machine.until("p", lambda p: not _is_ready(p), what="not Ready again")


@_marked
async def test_commands_have_no_more_rights_than_the_container(machine: Any) -> None:
    """Its namespaces, root, user, capabilities, filter and cgroup; nothing of ours is open."""
    see = (
        "for n in mnt pid ipc uts cgroup; do readlink /proc/self/ns/$n; done; "
        "grep -E '^(Cap(Eff|Prm|Inh|Amb)|NoNewPrivs|Seccomp:)' /proc/self/status; id; ls /; echo $HELLO; pwd; cat /proc/self/cgroup"
    )
    script = f"({see}) > /tmp/main; mkdir -p /tmp/w; {SLEEP}"
    probe = _exec(
        f"test -e /tmp/main || exit 1; ({see}) > /tmp/probe; ls -l /proc/self/fd > /tmp/fds; diff /tmp/main /tmp/probe"
    )
    for name, context in (("root", {}), ("user", {"runAsUser": 1234, "runAsGroup": 55, "supplementalGroups": [88]})):
        container = _shell(script, readinessProbe=probe, env=[{"name": "HELLO", "value": "hi"}], workingDir="/tmp")
        await machine.pod(name, containers=[container], securityContext=context)
        pod = await machine.until(name, _is_ready, what=f"{name} Ready: {await _messages(machine, 'Unhealthy')}")
        tmp = machine.root / "pods" / pod.metadata.uid / "containers" / "main" / "0" / "rootfs" / "tmp"
        assert "NoNewPrivs:\t1" in (tmp / "probe").read_text()
        opened = [line.split()[8] for line in (tmp / "fds").read_text().splitlines()[1:]]
        assert len(opened) <= 4, opened


@_marked
async def test_a_container_that_is_not_alive_is_restarted(machine: Any) -> None:
    probe = _exec("test ! -e /tmp/dead", failureThreshold=1, terminationGracePeriodSeconds=1)
    await machine.pod(
        "p", containers=[_shell("trap '' TERM; touch /tmp/dead; while :; do sleep 0.05; done", livenessProbe=probe)]
    )
    pod = await machine.until(
        "p", lambda p: p.status.container_statuses[:1] and p.status.container_statuses[0].restart_count
    )
    assert pod.status.container_statuses[0].last_state.terminated["exitCode"] == 137
    event = await machine.event("Killing")
    assert event.message == "Container main failed liveness probe, will be restarted"


@_marked
async def test_the_startup_probe_holds_the_pod_back(machine: Any) -> None:
    startup = _exec("test -e /tmp/up", failureThreshold=1000)
    await machine.pod("p", containers=[_shell(SLEEP, startupProbe=startup, livenessProbe=_exec("test -e /tmp/up"))])
    pod = await machine.phase("p", "Running")
    assert (pod.status.container_statuses[0].started, _is_ready(pod)) == (False, False)
    tmp = machine.root / "pods" / pod.metadata.uid / "containers" / "main" / "0" / "rootfs" / "tmp"
    (tmp / "up").touch()
    pod = await machine.until("p", _is_ready, what="Ready")
    assert pod.status.container_statuses[0].started is True
    assert pod.status.container_statuses[0].restart_count == 0


@_marked
async def test_a_probe_that_hangs_is_killed_with_its_children(machine: Any, eventually: Eventually) -> None:
    probe = _exec("sleep 54321 & sleep 54321", timeoutSeconds=1, periodSeconds=3600)
    await machine.pod("p", containers=[_shell(SLEEP, readinessProbe=probe)])
    event = await machine.event("Unhealthy")
    assert event.message.startswith('Readiness probe failed: command timed out: "sh -c sleep 54321')
    await eventually(
        lambda: not [pid for pid in processes.with_argument("54321") if processes.arguments(pid)[:1] == ["sleep"]]
    )


@_marked
async def test_a_probe_may_print_a_lot(machine: Any) -> None:
    probe = _exec("head -c 200000000 /dev/zero | tr '\\0' x; exit 1", timeoutSeconds=60, periodSeconds=3600)
    await machine.pod("p", containers=[_shell(SLEEP, readinessProbe=probe)])
    event = await machine.event("Unhealthy")
    assert event.message.startswith("Readiness probe failed: xxxx")
    assert len(event.message) <= 10 << 10


@_marked
async def test_ports_are_those_of_the_machine(machine: Any) -> None:
    """Containers share the loopback: a server of this process answers for one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if b" /well " in line else b"HTTP/1.1 500 No\r\n\r\n")
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ports = [{"name": "web", "containerPort": port}]
        well = {"httpGet": {"port": "web", "path": "/well"}}
        await machine.pod("a", containers=[_shell(SLEEP, ports=ports, readinessProbe=well)])
        await machine.pod("b", containers=[_shell(SLEEP, readinessProbe={"tcpSocket": {"port": port}})])
        await machine.pod("c", containers=[_shell(SLEEP, readinessProbe={"httpGet": {"port": port}})])
        for name in ("a", "b"):
            await machine.until(name, _is_ready, what=f"{name} Ready")
        event = await machine.event("Unhealthy", about="c")
        assert event.message == "Readiness probe failed: HTTP probe failed with statuscode: 500"


@_marked
async def test_a_restart_of_the_kubelet_keeps_pods_ready(machine: Any) -> None:
    await machine.pod("p", containers=[_shell(SLEEP, readinessProbe=_exec("true"), startupProbe=_exec("true"))])
    before = await machine.until("p", _is_ready, what="Ready")
    await machine.restart()
    await machine.pod("q")
    await machine.phase("q", "Running")
    after = await machine.client.get(PODS, "p", "default")
    assert after.metadata.resource_version == before.metadata.resource_version


@_marked
async def test_a_container_runs_when_its_hook_has_ended(machine: Any) -> None:
    hook = {
        "postStart": {"exec": {"command": ["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.05; done; touch /tmp/done"]}}
    }
    await machine.pod("p", containers=[_shell(SLEEP, lifecycle=hook)])
    await machine.event("Started")
    pod = await machine.until("p", lambda p: p.status.container_statuses, what="a status")
    assert (pod.status.phase, pod.status.container_statuses[0].state.waiting) == (
        "Pending",
        {"reason": "ContainerCreating"},
    )
    tmp = machine.root / "pods" / pod.metadata.uid / "containers" / "main" / "0" / "rootfs" / "tmp"
    (tmp / "go").touch()
    await machine.until("p", _is_ready, what="Ready")
    assert (tmp / "done").exists()


@_marked
async def test_a_failed_first_hook_ends_the_container(machine: Any) -> None:
    hook = {"postStart": {"exec": {"command": ["false"]}}}
    await machine.pod("p", restartPolicy="Never", containers=[_shell(SLEEP, lifecycle=hook)])
    await machine.until("p", lambda p: p.status.phase in ("Failed", "Succeeded"), what="the end")
    assert await _messages(machine, "FailedPostStartHook") == ["PostStartHook failed"]
    assert await _messages(machine, "Killing") == ["FailedPostStartHook"]


@_marked
async def test_the_last_hook_comes_before_the_signal(machine: Any) -> None:
    path = machine.folder / "shared"
    path.mkdir()
    mounts = [{"name": "data", "mountPath": "/data"}]
    script = "trap 'ls /data > /data/seen; exit 0' TERM; while :; do sleep 0.05; done"
    hook = {"preStop": {"exec": {"command": ["touch", "/data/hook"]}}}
    await machine.pod(
        "p",
        terminationGracePeriodSeconds=60,
        volumes=[{"name": "data", "hostPath": {"path": str(path)}}],
        containers=[_shell(script, lifecycle=hook, volumeMounts=mounts)],
    )
    await machine.phase("p", "Running")
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    assert "hook" in (path / "seen").read_text().split()


@_marked
async def test_a_last_hook_that_fails_or_hangs_keeps_nothing(machine: Any) -> None:
    await machine.pod("a", containers=[_shell(SLEEP, lifecycle={"preStop": {"exec": {"command": ["nothing"]}}})])
    await machine.pod("b", containers=[_shell(SLEEP, lifecycle={"preStop": {"sleep": {"seconds": 3600}}})])
    for name in ("a", "b"):
        await machine.phase(name, "Running")
        await machine.client.delete(PODS, name, "default")
    for name in ("a", "b"):
        await machine.gone(name)
    assert await _messages(machine, "FailedPreStopHook") == ["PreStopHook failed"]


@_marked
async def test_a_shorter_grace_cuts_the_last_hook_short(machine: Any) -> None:
    hook = {"preStop": {"sleep": {"seconds": 3600}}}
    await machine.pod("p", terminationGracePeriodSeconds=3600, containers=[_shell(SLEEP, lifecycle=hook)])
    await machine.phase("p", "Running")
    await machine.client.delete(PODS, "p", "default")
    await machine.event("Killing")
    await machine.client.delete(PODS, "p", "default", grace_seconds=1)
    await machine.gone("p")


async def test_probes_without_processes_succeed(machine: Any) -> None:
    probe = {"exec": {"command": ["false"]}}
    hooks = {"postStart": probe, "preStop": probe}
    await machine.pod("p", containers=[_shell("x", readinessProbe=probe, startupProbe=probe, lifecycle=hooks)])
    await machine.until("p", _is_ready, what="Ready")
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")


def test_urls_headers_and_ports() -> None:
    container = Container(ports=[ContainerPort(name="web", container_port=81)])
    assert url_of(container, {"port": "web", "path": "x?y"}) == "http://127.0.0.1:81/x?y"
    assert url_of(container, {"port": 5, "host": "::1", "scheme": "HTTPS"}) == "https://[::1]:5/"
    assert headers_of({"httpHeaders": [{"name": "a", "value": "b"}]}) == [("a", "b")]
    for bad in ("none", 0, "0", 65536, None):
        with pytest.raises(InvalidError):
            port_of(container, bad)
