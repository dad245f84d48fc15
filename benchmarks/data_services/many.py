"""100 VolumeSnapshots at once on one node, and their end, on a real control plane with one agent and our controller.

Writes by the audit log, watch messages by the API server's own count, the agent's memory before and after.
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.box.box import ROOT
from benchmarks.data_services import sidecars
from benchmarks.data_services.writes import counted
from benchmarks.figure import Figure
from benchmarks.kubernetes import audit, stacks
from benchmarks.kubernetes.nodes import kubelets
from benchmarks.kubernetes.plane import Plane, plane
from benchmarks.kubernetes.pods import NAMESPACE, Pods
from benchmarks.kubernetes.stacks import Stack
from benchmarks.placement.messages import sent
from cluster import programs

from tonnage.api.kinds import SNAPSHOT_CONTENTS, SNAPSHOTS
from tonnage.kube.informer import Informers
from tonnage.kube.wait import until_gone

MOST_RUNS = 1
VOLUMES, SNAPSHOTS_EACH = 10, 10
COUNT = VOLUMES * SNAPSHOTS_EACH
CREATED, DELETED, MEMORY = 4, 3, 10.0
"""Goals: writes of a snapshot's creation and of its deletion, and MiB more of the agent."""
KINDS = ("volumesnapshots", "volumesnapshotcontents")
LIMIT = 300.0


async def run() -> list[Figure]:
    """None where there is no Kubernetes."""
    if not ROOT:
        return []
    try:
        async with plane(nodes=1, raised=True, drivers=stacks.DRIVERS) as cluster:
            await sidecars.install(cluster)
            async with (
                kubelets(cluster.client) as informers,
                stacks.tonnage(cluster, informers, room="400Gi") as stack,
                sidecars.started(cluster, "controller") as processes,
            ):
                await sidecars.start_controller(cluster, processes)
                return await _snapshots(cluster, informers, stack)
    except (programs.Missing, FileNotFoundError) as reason:
        print(f"many: {reason}", file=sys.stderr)
        return []


async def _snapshots(cluster: Plane, informers: Informers, stack: Stack) -> list[Figure]:
    """Pods with a volume each, then snapshots of all volumes at once."""
    pods = Pods(cluster.client, informers, stack, "source", VOLUMES)
    await pods.create()
    snapshots = informers.of(SNAPSHOTS)
    await snapshots.wait_synced()
    await _make(cluster, informers, ["first"])  # what is loaded with the first is not of interest
    await _remove(cluster, ["first"])
    names = [f"many-{number}" for number in range(COUNT)]
    await cluster.audit.writes()
    before, messages = stacks.memory(stack.pids[0])[0], await sent(cluster.client, KINDS)
    took = await _make(cluster, informers, names)
    made = await cluster.audit.writes()
    after, heard = stacks.memory(stack.pids[0])[0], await sent(cluster.client, KINDS)
    ended = await _remove(cluster, names)
    gone = await cluster.audit.writes()
    figures = [
        Figure(f"{COUNT} snapshots: until all are ready", took, "s"),
        Figure(f"{COUNT} snapshots: writes of each", counted(made).total() / COUNT, "", at_most=CREATED),
        Figure(f"{COUNT} snapshots: Events of each", audit.events(made) / COUNT),
        Figure(f"{COUNT} snapshots: watch messages of each", (heard - messages) / COUNT),
        Figure(f"{COUNT} snapshots: more memory of the agent", after - before, "MiB", at_most=MEMORY),
        Figure(f"{COUNT} deletions: until all are gone", ended, "s"),
        Figure(f"{COUNT} deletions: writes of each", counted(gone).total() / COUNT, "", at_most=DELETED),
    ]
    await pods.delete()
    return figures


async def _make(cluster: Plane, informers: Informers, names: list[str]) -> float:
    """Seconds until all are ready. Raises TimeoutError."""

    def body(number: int, name: str) -> dict[str, object]:
        source = {"persistentVolumeClaimName": f"source-{number % VOLUMES}-data-0"}
        return {"metadata": {"name": name}, "spec": {"volumeSnapshotClassName": "grows-tonnage", "source": source}}

    changed, cache = asyncio.Event(), informers.of(SNAPSHOTS).cache
    cache.on_change(lambda old, new: changed.set())
    began = time.monotonic()
    await asyncio.gather(*(cluster.client.create(SNAPSHOTS, body(*one), NAMESPACE) for one in enumerate(names)))
    async with asyncio.timeout(LIMIT):
        while not all((found := cache.get(f"{NAMESPACE}/{name}")) and found.status.ready_to_use for name in names):
            changed.clear()
            await changed.wait()
    return time.monotonic() - began


async def _remove(cluster: Plane, names: list[str]) -> float:
    """Seconds until all are gone. Raises TimeoutError."""
    began = time.monotonic()
    await asyncio.gather(*(cluster.client.delete(SNAPSHOTS, name, NAMESPACE) for name in names))
    for kind in (SNAPSHOTS, SNAPSHOT_CONTENTS):
        await until_gone(cluster.client, kind, seconds=LIMIT)  # type: ignore[misc]
    return time.monotonic() - began
