"""Two hundred pods with two volumes each at once, under the stock scheduler, on nodes that they fill to 95 %: all start.

The scheduler compares each claim alone with numbers that are old already, and sends a pod's claims one by one; a pod
with one volume where the other does not fit would wait for ever, if no agent rescheduled it. All pods like the same nodes
best, so that each node becomes full while many are on their way to it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.kubernetes import stacks
from benchmarks.kubernetes.nodes import kubelets
from benchmarks.kubernetes.plane import Plane, plane
from benchmarks.kubernetes.pods import NAMESPACE, pod
from benchmarks.kubernetes.stacks import Stack
from cluster import programs
from cluster.processes import Processes
from tests.e2e.delays import DelayingProxy
from tests.processes import arguments

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, VOLUMES
from tonnage.kubernetes.api.pods import Pod
from tonnage.provisioning.claims.bind import reschedules_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(14400)]
NODES, PODS_MADE = 4, 200
SIZES = {"64Mi": 64, "32Mi": 32}
ROOM = int(PODS_MADE * sum(SIZES.values()) / 0.95 / NODES)
"""MiB of a node: two pods more would fit on each."""
NO_PROGRESS = 120.0
"""Seconds in which no pod starts: then some never will."""
CLEARED = 600.0
SLOWEST_WRITE = 2.0
WRITERS = 16
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
KINDS = ("default limits", "delayed writes", "raised limits")
BY_DEFAULT = KINDS[:2]


@pytest.fixture(params=KINDS)
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, pytestconfig: pytest.Config
) -> AsyncIterator[tuple[Plane, Stack]]:
    """Nodes without kubelets, an agent each, the scheduler of Kubernetes."""
    kind, storms = request.param, pytestconfig.getoption("storms", 1)
    if kind not in BY_DEFAULT and storms < 2:
        pytest.skip("with --storms 2 or more")
    if os.geteuid() != 0:
        pytest.skip("needs root: pools of image files")
    try:
        programs.find()
        programs.kubectl()
    except programs.Missing as reason:
        pytest.skip(f"no real Kubernetes: {reason}")
    async with AsyncExitStack() as ends:
        made = await ends.enter_async_context(plane(nodes=NODES, raised=kind != KINDS[0], drivers=stacks.DRIVERS))
        await stacks.install(made)
        agents = made
        if kind == "delayed writes":
            agents = await _delayed(made, ends, tmp_path, pytestconfig.getoption("storm_seed", 1))
        informers = await ends.enter_async_context(kubelets(made.client))
        stack = await ends.enter_async_context(stacks.tonnage(agents, informers, room=f"{ROOM}Mi"))
        yield made, stack


async def _delayed(made: Plane, ends: AsyncExitStack, folder: Path, seed: int) -> Plane:
    """Put delaying proxies before the scheduler, which is started anew, and before agents that are to come."""
    pki = made.folder / "pki"
    config = pki / "scheduler.kubeconfig"
    proxy = DelayingProxy(config, folder, as_client=True, most=SLOWEST_WRITE, seed=seed)
    server = await ends.enter_async_context(proxy.serve())
    through = folder / "through.kubeconfig"
    found = yaml.safe_load(config.read_text())
    found["clusters"][0]["cluster"] = {"server": server}
    found["users"][0]["user"] = {}
    through.write_text(yaml.safe_dump(found))
    processes = Processes(made.folder / "processes")
    pid = made.pid("kube-scheduler")
    assert pid is not None
    command = arguments(pid)
    await asyncio.to_thread(processes.end, "kube-scheduler")
    processes.start("kube-scheduler", [*command, f"--kubeconfig={through}"])
    proxy = DelayingProxy(pki / "admin.kubeconfig", folder, as_client=False, most=SLOWEST_WRITE, seed=seed + 1)
    return replace(made, server=await ends.enter_async_context(proxy.serve()))


async def test_none_is_stuck(
    cluster: tuple[Plane, Stack],
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
    tell: Callable[[str], None],
) -> None:
    made, stack = cluster
    for storm in range(pytestconfig.getoption("storms", 1)):
        line = f"storm {storm + 1}, {request.node.callspec.params['cluster']}: {await _storm(made, stack)}"
        tell(line)
        print(line, flush=True)
        await _clear(made)


async def _storm(made: Plane, stack: Stack) -> str:
    """All pods at once, until all run; what it took."""
    began, rescheduled, failed = time.monotonic(), stack.rescheduled(), stack.failed()
    slots = asyncio.Semaphore(WRITERS)

    async def create(name: str) -> None:
        body = pod(name, stack, tuple(SIZES))
        body["spec"]["affinity"] = {"nodeAffinity": {PREFERRED: _likes(made.nodes)}}
        async with slots:
            await made.client.create(PODS, body, NAMESPACE)

    async with asyncio.TaskGroup() as storm:
        for number in range(PODS_MADE):
            storm.create_task(create(f"storm-{number}"))
    pods = await _all_run(made)
    took = time.monotonic() - began

    claims = (await made.client.list(CLAIMS, NAMESPACE)).items
    assert len(claims) == 2 * PODS_MADE
    assert all(c.status.phase == "Bound" for c in claims)
    placed = Counter(p.spec.node_name for p in pods)
    assert all(on_node * sum(SIZES.values()) <= ROOM for on_node in placed.values())
    again = Counter(c.metadata.controller_uid() for c in claims if names.RESCHEDULES in c.metadata.annotations)
    return (
        f"{PODS_MADE} pods with two volumes at 95 %, stock scheduler: all run after {took:.0f} s; "
        f"{stack.rescheduled() - rescheduled:g} claims sent back, {len(again)} pods rescheduled, "
        f"at most {max(map(reschedules_of, claims))} times; {stack.failed() - failed:g} failed CreateVolume; "
        f"on nodes {sorted(placed.values())}"
    )


def _likes(nodes: Sequence[str]) -> list[dict[str, Any]]:
    """The first best, the last least."""
    terms = [{"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": [n]}]} for n in nodes]
    return [{"weight": 100 // (at + 1), "preference": term} for at, term in enumerate(terms)]


async def _all_run(made: Plane) -> list[Pod]:
    """Wait for it. Says of those that do not what their claims look like."""
    fewest, progress = PODS_MADE + 1, time.monotonic()
    while True:
        pods = (await made.client.list(PODS, NAMESPACE)).items
        waiting = {p.metadata.name for p in pods if p.status.phase != "Running"}
        if not waiting:
            return list(pods)
        if len(waiting) < fewest:
            fewest, progress = len(waiting), time.monotonic()
        if time.monotonic() > progress + NO_PROGRESS:
            claims = (await made.client.list(CLAIMS, NAMESPACE)).items
            theirs = [c for c in claims if any(c.metadata.name.startswith(f"{name}-data") for name in waiting)]
            shown = [(c.metadata.name, c.status.phase, c.metadata.annotations) for c in theirs]
            pytest.fail(f"{len(waiting)} pods do not start: {shown}")
        await asyncio.sleep(1.0)


async def _clear(made: Plane) -> None:
    """Remove the pods, and wait for their volumes to go."""
    for found in (await made.client.list(PODS, NAMESPACE)).items:
        await made.client.delete(PODS, found.metadata.name, NAMESPACE, grace_seconds=0)
    deadline = time.monotonic() + CLEARED
    while (await made.client.list(CLAIMS, NAMESPACE)).items or (await made.client.list(VOLUMES)).items:
        assert time.monotonic() < deadline, "volumes of the storm are left"
        await asyncio.sleep(1.0)
