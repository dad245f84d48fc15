"""What a container that is root in its pod tries in order to reach the machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.programs import needs_containers

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.containers.runtime import ContainerSpec, Ended, Mounted

BIND = "x\0--bind\0/\0/hostroot"
"""An option of bwrap behind a NUL."""
needs_bwrap = needs_containers
real = [
    pytest.mark.real,
    needs_containers,
    pytest.mark.parametrize(
        "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
    ),
]


def _apply(test: Any) -> Any:
    for mark in real:
        test = mark(test)
    return test


def _shell(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "any", "command": ["/bin/sh", "-c", script], **more}


@_apply
async def test_sysctls_are_read_only_also_in_a_user_namespace(machine: Any) -> None:
    value = Path("/proc/sys/kernel/core_pattern").read_text().strip()  # should it ever work, nothing changes
    write = f"echo '{value}' > /proc/sys/kernel/core_pattern && echo WRITTEN"
    tries = f"{write}; unshare -Urpf --mount-proc sh -c '{write.replace(chr(39), '')}'; cat /proc/kcore && echo READ"
    await machine.pod("p", restartPolicy="Never", containers=[_shell(f"exec 2>&1; {tries}; echo end")])
    pod = await machine.phase("p", "Succeeded")
    meta = pod.metadata
    log = machine.root / "pods-logs" / f"{meta.namespace}_{meta.name}_{meta.uid}" / "main" / "0.log"
    assert log.read_text().endswith(" end\n")
    assert "WRITTEN" not in log.read_text()
    assert "READ" not in log.read_text()


@_apply
async def test_a_working_dir_is_never_made_outside_of_its_volume(machine: Any, folder: Path) -> None:
    outside = folder / "outside"
    outside.mkdir()
    script = f"pwd > /dev/termination-log; cd /; rm -r /data/x; ln -s /oldroot{outside} /data/x; exit 1"
    await machine.pod(
        "p",
        volumes=[{"name": "data", "emptyDir": {}}],
        containers=[
            _shell(script, workingDir="/data/x/made", volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        ],
    )
    pod = await machine.until("p", lambda p: any(s.restart_count for s in p.status.container_statuses))
    inside = ("/data/x/made\n", f"/oldroot{outside}/made\n")  # of the first start, and of the second: in its own root
    assert pod.status.container_statuses[0].last_state.terminated["message"] in inside
    assert list(outside.iterdir()) == []


def _rejected(status: Any) -> bool:
    return bool((status.state.waiting or {}).get("reason") == "CreateContainerConfigError")


async def _run(
    folder: Path,
    container: dict[str, Any],
    *,
    environment: dict[str, str] | None = None,
    volumes: dict[str, Mounted] | None = None,
) -> tuple[Ended, str]:
    """Run a container of a pod that no API server has looked at; how it ended, and its log."""
    body = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "main", "command": ["/bin/ls", "/"], **container}]},
    }
    pod = msgspec.convert(body, Pod)
    runtime = BubblewrapRuntime(folder, RealClock())
    ended = asyncio.Event()
    spec = ContainerSpec(pod, pod.spec.containers[0], 0, volumes or {}, environment or {})
    try:
        process = await runtime.start(spec, ended.set)
        async with asyncio.timeout(60):
            await ended.wait()
        assert process.ended is not None
        return process.ended, (folder / "pods-logs" / "default_p_u" / "main" / "0.log").read_text()
    finally:
        await runtime.release("u")
        await runtime.clean("u")
        await runtime.close()


@pytest.mark.real
@needs_bwrap
@pytest.mark.parametrize(
    ("container", "environment", "named"),
    [
        ({}, {"A": BIND}, "value of variable A"),
        ({}, {"A": "x\0--cap-add\0ALL"}, "value of variable A"),
        ({}, {"LD_PRELOAD": BIND}, "value of variable LD_PRELOAD"),
        ({}, {BIND: "v"}, "name of variable"),
        ({"command": ["/bin/ls\0"]}, {}, "command contains a NUL"),
        ({"command": ["/bin/ls", "$(A)"]}, {"A": BIND}, "value of variable A"),
        ({"args": ["a\0b"]}, {}, "argument 2 of the command"),
        ({"workingDir": f"/w{BIND}"}, {}, "workingDir"),
        ({"volumeDevices": [{"name": "v", "devicePath": f"/dev/{BIND}"}]}, {}, "devicePath"),
        ({"volumeMounts": [{"name": "v", "mountPath": f"/{BIND}"}]}, {}, "mountPath"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/m", "subPath": BIND}]}, {}, "subPath"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/m", "subPathExpr": "$(A)"}]}, {"A": BIND}, "variable A"),
        ({"name": BIND}, {}, "name"),
        ({}, {"A": "\ud800"}, "value of variable A is not valid Unicode"),
    ],
)
async def test_a_nul_begins_no_option(
    folder: Path, container: dict[str, Any], environment: dict[str, str], named: str
) -> None:
    volume = folder / "volume"
    volume.mkdir()
    with pytest.raises(InvalidError, match=named) as caught:
        await _run(folder, container, environment=environment, volumes={"v": Mounted(str(volume))})
    msgspec.json.encode(str(caught.value))  # it goes into the pod's status
    if environment.get("A") == BIND:  # values may be secret
        assert "hostroot" not in str(caught.value)


@pytest.mark.real
@needs_bwrap
@pytest.mark.parametrize("through", ["/proc/self/fd", "/dev/fd", "symlink"])
async def test_a_working_dir_never_reaches_what_bwrap_holds_open(folder: Path, through: str) -> None:
    volume = folder / "volume"
    volume.mkdir()
    more: dict[str, Any] = {"command": ["/bin/sh", "-c", "ls -d sys/kernel && echo OUT; test -e 1 && echo OUT; true"]}
    for number in range(3, 9):
        at = folder / str(number)
        os.symlink(f"/proc/self/fd/{number}", volume / str(number))
        if through == "symlink":  # read-only: another container has put the symlink there
            more["volumeMounts"] = [{"name": "v", "mountPath": "/data", "readOnly": True}]
        working_dir = f"/data/{number}" if through == "symlink" else f"{through}/{number}"
        ended, log = await _run(at, {**more, "workingDir": working_dir}, volumes={"v": Mounted(str(volume))})
        assert "OUT" not in log
        assert "cannot change directory" in log
        assert ended.code == 125


@pytest.mark.real
@needs_bwrap
@pytest.mark.parametrize("word", ["volumeDevices", "volumeMounts"])
async def test_nothing_is_mounted_through_proc(folder: Path, word: str) -> None:
    made = folder / "made"
    path = {"volumeDevices": "devicePath", "volumeMounts": "mountPath"}[word]
    mount = {"name": "v", path: f"{Path('/proc/self/root', 'oldroot')}{made}"}
    with pytest.raises(InvalidError, match=path):
        await _run(folder, {word: [mount]}, volumes={"v": Mounted("/dev/null", block=True)})
    assert not made.exists()


_SPY = """#!/bin/sh
echo "SPY $(/bin/id -u)"
"""


@pytest.mark.real
@needs_bwrap
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("path", ["/usr/bin/setpriv", "/bin/setpriv", "/usr/bin/env", "/bin/env", "/usr/bin/setsid"])
async def test_no_program_of_a_volume_runs_before_the_user_is_dropped(folder: Path, path: str, *, tty: bool) -> None:
    spy = folder / "spy"
    spy.write_text(_SPY)
    spy.chmod(0o755)
    container = {
        "command": ["/bin/sh", "-c", "id -u; echo $LD_BIND_NOW"],
        "workingDir": "/tmp",
        "tty": tty,
        "securityContext": {"runAsUser": 1234, "runAsNonRoot": True},
        "volumeMounts": [{"name": "v", "mountPath": path}],
    }
    environment = {"LD_BIND_NOW": "1"}  # such variables came through env
    _, log = await _run(folder / "k", container, environment=environment, volumes={"v": Mounted(str(spy))})
    assert [line.split(" ", 3)[3].strip() for line in log.splitlines()] == ["1234", "1"]


@pytest.mark.real
@needs_bwrap
@pytest.mark.parametrize("whole", [False, True])
async def test_no_library_of_a_volume_is_loaded_before_the_user_is_dropped(folder: Path, *, whole: bool) -> None:
    """The linker says so of each program that loads it, of which there is one."""
    etc = folder / "etc"
    etc.mkdir()
    (etc / "ld.so.preload").write_text("/v/evil.so\n")
    mount = {"mountPath": "/etc"} if whole else {"mountPath": "/etc/ld.so.preload", "subPath": "ld.so.preload"}
    container = {"command": ["/bin/true"], "volumeMounts": [{"name": "v", **mount}]}
    ended, log = await _run(folder / "k", container, volumes={"v": Mounted(str(etc))})
    assert ended.code == 0
    assert log.count("object '/v/evil.so' from /etc/ld.so.preload cannot be preloaded") == 1


@pytest.mark.real
@needs_bwrap
async def test_containers_have_no_raw_sockets(folder: Path) -> None:
    _, log = await _run(folder, {"command": ["/bin/grep", "Cap[PE]", "/proc/self/status"]})
    held = [int(line.split()[-1], 16) for line in log.splitlines()]
    raw = 1 << 13  # CAP_NET_RAW
    assert len(held) == 2
    assert [bits & raw for bits in held] == [0, 0]


@_apply
@pytest.mark.parametrize(
    "container",
    [
        {},
        {"command": ["/bin/sh", "-c", "ls /hostroot; exit 0", "$(A)"]},
        {"env": [{"name": "LD_PRELOAD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}}]},
    ],
    ids=["value", "command", "LD"],
)
async def test_a_nul_from_an_annotation_gives_the_pod_a_reason(machine: Any, container: dict[str, Any]) -> None:
    source = {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}
    body = _shell("ls /hostroot; exit 0", env=[{"name": "A", "valueFrom": source}]) | container
    spec = {"nodeName": "node-1", "restartPolicy": "Never", "containers": [body]}
    pod = {"metadata": {"name": "p", "annotations": {"a": BIND}}, "spec": spec}
    await machine.client.create(PODS, pod, "default")
    found = await machine.until("p", lambda p: p.terminated or any(_rejected(s) for s in p.status.container_statuses))
    waiting = found.status.container_statuses[0].state.waiting
    assert waiting is not None
    assert "contains a NUL byte" in waiting["message"]
    assert "contains a NUL byte" in (await machine.event("Failed", about="p")).message
