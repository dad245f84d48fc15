"""Processes of containers: watched, stopped, and found again after a kill of the kubelet."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

import pytest
from tests import processes
from tests.programs import needs_containers
from tests.unit.box.kubelet.machine import Eventually

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.pods import ContainerState
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime

pytestmark = [
    pytest.mark.real,
    needs_containers,
    pytest.mark.parametrize(
        "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
    ),
]


def _shell(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "any", "command": ["/bin/sh", "-c", script], **more}


def _log(machine: Any, pod: Any, *, attempt: int = 0, container: str = "main") -> list[str]:
    meta = pod.metadata
    path = machine.root / "pods-logs" / f"{meta.namespace}_{meta.name}_{meta.uid}" / container / f"{attempt}.log"
    return [line.split(" ", 3)[3] for line in path.read_text().splitlines()]


def _is_read(uid: str) -> bool:
    """Whether this process reads the output of a pod's container."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return any(uid in name and name.endswith("/out") for name in found)


def _state(pod: Any, index: int = 0) -> ContainerState:
    state: ContainerState = pod.status.container_statuses[index].state
    return state


async def test_deletion_asks_then_kills(machine: Any, eventually: Eventually) -> None:
    stubborn = "trap 'echo asked' TERM; echo ready; while true; do sleep 0.05; done"
    await machine.pod("p", terminationGracePeriodSeconds=1, containers=[_shell(stubborn)])
    pod = await machine.phase("p", "Running")
    await machine.until("p", lambda _: "ready" in _log(machine, pod))
    log = machine.root / "pods-logs" / f"default_p_{pod.metadata.uid}" / "main" / "0.log"
    with log.open() as kept:
        await machine.client.delete(PODS, "p", "default")
        await machine.gone("p")
        assert "asked" in kept.read()
    await machine.event("Killing")
    await eventually(lambda: machine.left() == [])


async def test_containers_survive_a_kill_of_the_kubelet(machine: Any, eventually: Eventually) -> None:
    script = "trap 'echo bye; exit 7' TERM; echo up; while true; do sleep 0.05; done"
    await machine.pod("p", containers=[_shell(script)], restartPolicy="Never")
    before = await machine.phase("p", "Running")
    await eventually(lambda: "up" in _log(machine, before))

    await machine.restart()
    after = await machine.phase("p", "Running")
    assert after.status.container_statuses[0] == before.status.container_statuses[0]
    name = before.metadata.uid
    await eventually(lambda: _is_read(name))  # the phase is of the first kubelet
    pids = processes.with_text(name)
    assert len(pids) == 3  # the keeper of its output, bwrap, and the first process of the namespace
    os.kill(processes.children(max(pids))[0], signal.SIGTERM)
    pod = await machine.phase("p", "Failed")
    assert _state(pod).terminated["exitCode"] == 7  # type: ignore[index]
    assert _log(machine, pod) == ["up", "bye"]


async def test_what_it_wrote_while_no_kubelet_ran_is_in_its_log(machine: Any, eventually: Eventually) -> None:
    """Also of a line that the first kubelet has read in part, and as its message; and whoever kept it ends."""
    script = (
        "printf begun; echo err >&2; printf ' and ' ; while [ ! -e /e/go ]; do sleep 0.02; done;"
        " echo ended; seq 9000; printf last >&2; exit 3"
    )
    main = _shell(
        script, terminationMessagePolicy="FallbackToLogsOnError", volumeMounts=[{"name": "e", "mountPath": "/e"}]
    )
    await machine.pod("p", containers=[main], restartPolicy="Never", volumes=[{"name": "e", "emptyDir": {}}])
    pod = await machine.phase("p", "Running")
    folder = machine.root / f"pods/{pod.metadata.uid}"
    unfinished = folder / "containers/main/0/out.line"
    await eventually(lambda: unfinished.exists() and unfinished.read_bytes() == b"begun and ")
    await machine.kill()
    (*_, bwrap, first) = sorted(processes.with_text(pod.metadata.uid))
    next(folder.glob("volumes/*empty-dir/e")).joinpath("go").touch()
    await eventually(lambda: not processes.is_running(bwrap) and not processes.is_running(first))
    await machine.start()
    pod = await machine.phase("p", "Failed")
    log = _log(machine, pod)
    assert sorted(log, key=len)[-1] == "begun and ended"
    assert [line for line in log if line.isdigit()] == [str(number) for number in range(1, 9001)]
    assert log.count("err") == log.count("last") == 1
    assert _state(pod).terminated["message"].endswith("9000\nlast")  # type: ignore[index]
    assert unfinished.read_bytes() == b""
    await eventually(lambda: processes.with_text(pod.metadata.uid) == [])
    await machine.restart()
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")


async def test_what_ended_while_no_kubelet_ran_is_known(machine: Any) -> None:
    await machine.pod("p", containers=[_shell("sleep 0.4; exit 5")], restartPolicy="Never")
    await machine.phase("p", "Running")
    await machine.kill()
    await asyncio.sleep(0.6)
    await machine.start()
    pod = await machine.phase("p", "Failed")
    assert _state(pod).terminated["exitCode"] == 5  # type: ignore[index]
