"""Two hundred pods with two volumes each at once, under the stock scheduler, on nodes that they fill to 95 %: all start.

The scheduler compares each claim alone with numbers that are old already, and sends a pod's claims one by one; whoever
gets one volume where the other does not fit would wait for ever, if nobody took it back. All pods like the same nodes
best, so that each node becomes full while many are on their way to it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from benchmarks import kubernetes_stacks as stacks
from benchmarks.kubernetes_nodes import kubelets
from benchmarks.kubernetes_plane import Plane, plane
from benchmarks.kubernetes_pods import NAMESPACE, pod
from benchmarks.kubernetes_stacks import Stack
from cluster import programs

from tonnage.api import names
from tonnage.api.kinds import CLAIMS, PODS
from tonnage.api.pods import Pod
from tonnage.controllers.sending import withdrawals

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
NODES, PODS_MADE = 4, 200
SIZES = {"64Mi": 64, "32Mi": 32}
ROOM = int(PODS_MADE * sum(SIZES.values()) / 0.95 / NODES)
"""MiB of a node: two pods more would fit on each."""
LIMIT = 1500.0
WRITERS = 16
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture
async def cluster() -> AsyncIterator[tuple[Plane, Stack]]:
    """Nodes without kubelets, an agent each, the scheduler of Kubernetes."""
    if os.geteuid() != 0:
        pytest.skip("needs root: pools of image files")
    try:
        programs.find()
        programs.kubectl()
    except programs.Missing as reason:
        pytest.skip(f"no real Kubernetes: {reason}")
    async with plane(nodes=NODES, raised=True, drivers=stacks.DRIVERS) as made:
        await stacks.install(made)
        async with kubelets(made.client) as informers, stacks.tonnage(made, informers, room=f"{ROOM}Mi") as stack:
            yield made, stack


async def test_none_is_stuck(cluster: tuple[Plane, Stack], tell: Callable[[str], None]) -> None:
    made, stack = cluster
    began = time.monotonic()
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
    again = Counter(c.metadata.controller_uid() for c in claims if names.WITHDRAWN in c.metadata.annotations)
    tell(
        f"storm: {PODS_MADE} pods with two volumes at 95 %, stock scheduler: all run after {took:.0f} s; "
        f"{stack.withdrawn():g} claims sent back, {len(again)} pods rescheduled, "
        f"at most {max(map(withdrawals, claims))} times; {stack.failed():g} failed CreateVolume; on nodes {sorted(placed.values())}"
    )


def _likes(nodes: Sequence[str]) -> list[dict[str, Any]]:
    """The first best, the last least."""
    terms = [{"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": [n]}]} for n in nodes]
    return [{"weight": 100 // (at + 1), "preference": term} for at, term in enumerate(terms)]


async def _all_run(made: Plane) -> list[Pod]:
    """Wait for it. Says of those that do not what their claims look like."""
    deadline = time.monotonic() + LIMIT
    while True:
        pods = (await made.client.list(PODS, NAMESPACE)).items
        waiting = {p.metadata.name for p in pods if p.status.phase != "Running"}
        if not waiting:
            return list(pods)
        if time.monotonic() > deadline:
            claims = (await made.client.list(CLAIMS, NAMESPACE)).items
            theirs = [c for c in claims if any(c.metadata.name.startswith(f"{name}-data") for name in waiting)]
            shown = [(c.metadata.name, c.status.phase, c.metadata.annotations) for c in theirs]
            pytest.fail(f"{len(waiting)} pods do not start: {shown}")
        await asyncio.sleep(1.0)
