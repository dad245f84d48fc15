"""Termination messages: read as the kubelet reads them, and no way to fill the node's disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.programs import needs_containers

from tonnage.base.aio.clock import RealClock
from tonnage.host import mount
from tonnage_box.kubelet.containers import termination
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.pods.usage import disk_usage

pytestmark = [
    pytest.mark.real,
    needs_containers,
    pytest.mark.parametrize(
        "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
    ),
]


def _shell(script: str, name: str = "main") -> dict[str, Any]:
    return {"name": name, "image": "any", "command": ["/bin/sh", "-c", script]}


def _mounts(root: Path) -> list[str]:
    return [found.target for found in mount.mounts() if found.target.startswith(f"{root}/")]


def _message(pod: Any, index: int = 0) -> str:
    terminated = pod.status.container_statuses[index].state.terminated
    assert terminated is not None
    return str(terminated.get("message", ""))


async def test_the_file_cannot_fill_the_disk(machine: Any) -> None:
    script = "head -c 5000000 /dev/zero | tr '\\0' a > /dev/termination-log || echo full; sleep 1000"
    await machine.pod("p", containers=[_shell(script)])
    pod = await machine.phase("p", "Running")
    log = machine.root / "pods-logs" / f"default_p_{pod.metadata.uid}" / "main" / "0.log"
    # Not the last line: what tr says of it comes by another stream.
    await machine.until("p", lambda _: " full\n" in log.read_text())
    (place,) = _mounts(machine.root)
    assert (Path(place) / "log").stat().st_size == termination.SIZE
    assert disk_usage(str(machine.root / "pods"), limit=1 << 60) < 1 << 20


async def test_a_pods_messages_share_what_there_is(machine: Any) -> None:
    script = "head -c 100000 /dev/zero | tr '\\0' a > /dev/termination-log"
    await machine.pod("p", restartPolicy="Never", containers=[_shell(script, f"c{n}") for n in range(4)])
    pod = await machine.phase("p", "Succeeded")
    assert [_message(pod, index) for index in range(4)] == ["a" * 3072] * 4
    await machine.until("p", lambda _: _mounts(machine.root) == [])


async def test_one_container_has_4096_bytes(machine: Any) -> None:
    script = "echo first > /dev/termination-log; head -c 5000 /dev/zero | tr '\\0' b > /dev/termination-log; exit 3"
    await machine.pod("p", restartPolicy="Never", containers=[_shell(script)])
    assert _message(await machine.phase("p", "Failed")) == "b" * 4096


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_message_survives_the_kubelet(machine: Any, end: str) -> None:
    """Its container ends while no kubelet runs, or because the kubelet ends."""
    script = "echo bye > /dev/termination-log; trap 'exit 4' TERM; echo up; while test ! -e /e/go; do sleep 0.05; done"
    container = {**_shell(f"{script}; exit 4"), "volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    await machine.pod("p", restartPolicy="Never", volumes=[{"name": "e", "emptyDir": {}}], containers=[container])
    pod = await machine.phase("p", "Running")
    uid = pod.metadata.uid
    log = machine.root / "pods-logs" / f"default_p_{uid}" / "main" / "0.log"
    await machine.until("p", lambda _: log.exists() and "up" in log.read_text())
    if end == "stop":
        await machine.stop()
        assert _mounts(machine.root) == []
    else:
        await machine.kill()
        (machine.root / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "e" / "go").touch()
        status = machine.root / "pods" / uid / "containers" / "main" / "0" / "status"
        async with asyncio.timeout(60):
            while b"exit-code" not in status.read_bytes():
                await asyncio.sleep(0.01)
    await machine.start()
    pod = await machine.phase("p", "Failed")
    assert _message(pod) == "bye\n"
    await machine.until("p", lambda _: _mounts(machine.root) == [])


async def test_a_container_that_restarts_leaves_one_mount(machine: Any) -> None:
    await machine.pod(
        "p", containers=[_shell("echo again > /dev/termination-log; head -c 200000 /dev/zero > /big; exit 1")]
    )
    pod = await machine.until(
        "p", lambda p: p.status.container_statuses[:1] and p.status.container_statuses[0].restart_count == 1
    )
    pod = await machine.until("p", lambda p: p.status.container_statuses[0].state.waiting is not None)
    assert pod.status.container_statuses[0].last_state.terminated["message"] == "again\n"
    assert len(_mounts(machine.root)) == 1
    roots = machine.root / "pods" / pod.metadata.uid / "containers" / "main"
    assert not (roots / "0" / "rootfs").exists()
