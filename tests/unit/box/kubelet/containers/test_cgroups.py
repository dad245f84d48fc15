"""A pod's cgroup in the box: there before its volumes are mounted, around all of its processes, gone with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests import processes
from tests.programs import needs_containers

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import UnsupportedError
from tonnage.kubernetes.api.kinds import PODS
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.containers.start import keeper
from tonnage_box.kubelet.pod_cgroups import PodCgroups

pytestmark = [pytest.mark.real, needs_containers]


@pytest.fixture(autouse=True)
def _cgroups_can_be_made() -> None:
    uid = str(uuid4())
    try:
        PodCgroups().make_pod(uid)
    except (UnsupportedError, OSError) as failure:
        pytest.skip(f"no cgroup that limits IO can be made: {failure}")
    PodCgroups().remove_pod(uid)


def _groups(pid: int) -> list[str]:
    return [line.rpartition(":")[2] for line in processes.read(pid, "cgroup").decode().splitlines()]


@pytest.mark.parametrize("machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"])
async def test_every_process_of_a_pod_is_in_its_cgroup_from_the_start(machine: Any) -> None:
    await machine.volume("a")
    await machine.pod(
        "p",
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}],
        containers=[
            {
                "name": "main",
                "image": "any",
                "command": ["/bin/sh", "-c", "sleep 1000 & exec sleep 1000"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
    )
    pod = await machine.phase("p", "Running")
    uid = pod.metadata.uid
    group = PodCgroups().own_pod(uid)
    assert group is not None
    mine: list[int] = []
    async with asyncio.timeout(60):
        while len(mine) < 2:  # bwrap outside, and the first process of its namespace
            mine = [pid for pid in processes.with_text(uid) if processes.arguments(pid)[:1] != [keeper.NAME]]
            await asyncio.sleep(0.01)
    inside = [int(pid) for pid in (group.path / "cgroup.procs").read_text().split()]  # no earlier: more may have come
    assert set(mine) <= set(inside)
    assert all(any(path.endswith(f"/tonnage/pod{uid}") for path in _groups(pid)) for pid in inside)

    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.gone("p")
    async with asyncio.timeout(60):
        while PodCgroups().own_pod(uid) is not None:  # the object goes first
            await asyncio.sleep(0.01)


_FORKS = """
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except OSError as failure:
    print(failure.strerror, made, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(
    "machine", [lambda root: BubblewrapRuntime(root, RealClock(), pids_limit=40)], indirect=True, ids=["limited"]
)
async def test_a_fork_bomb_stays_in_its_pod(machine: Any) -> None:
    for name in ("p", "other"):
        script = _FORKS if name == "p" else "import os; print('forked' if os.fork() else '', flush=True)"
        await machine.pod(
            name,
            restartPolicy="Never",
            containers=[{"name": "main", "image": "any", "command": ["/usr/bin/python3", "-c", script]}],
        )
    pod = await machine.phase("p", "Running")
    other = await machine.phase("other", "Succeeded")  # the limit is of each pod
    assert "forked" in _log(machine, other).read_text()
    async with asyncio.timeout(60):
        while not (said := _log(machine, pod).read_text()):
            await asyncio.sleep(0.01)
    _, _, what = said.partition(" stdout F ")
    words = what.split()
    assert words[:-1] == ["Resource", "temporarily", "unavailable"]
    assert 30 < int(words[-1]) < 40  # bwrap's own processes count
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.gone("p")
    async with asyncio.timeout(60):
        while PodCgroups().own_pod(pod.metadata.uid) is not None:
            await asyncio.sleep(0.01)


def _log(machine: Any, pod: Any) -> Path:
    meta = pod.metadata
    return Path(machine.root) / "pods-logs" / f"{meta.namespace}_{meta.name}_{meta.uid}" / "main" / "0.log"
