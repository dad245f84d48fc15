"""100 VolumeSnapshots at once on one node, and their end: in the box, and on a real control plane with one agent.

In the box each write is one message of a watch, so these are counted. On Kubernetes, where our controller is the
snapshot controller: writes by the audit log, watch messages by the API server's own count, the agent's memory.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from benchmarks.box.box import ROOT, in_process
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

from tonnage.kubernetes.api import names as api_names
from tonnage.kubernetes.api.kinds import CLAIMS, SNAPSHOT_CONTENTS, SNAPSHOTS
from tonnage.kubernetes.api.kinds import VOLUMES as VOLUMES_KIND
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.api.wait import until, until_gone
from tonnage_box.cli.workloads import claim_of

MOST_RUNS = 1
VOLUMES, SNAPSHOTS_EACH = 10, 10
COUNT = VOLUMES * SNAPSHOTS_EACH
CREATED, BOX_CREATED, DELETED, MEMORY = 4, 3, 3, 10.0
"""Goals: writes of a creation (also in the box) and of a deletion, and MiB more of the agent."""
KINDS = ("volumesnapshots", "volumesnapshotcontents")
LIMIT = 300.0
CLASS = "grows-tonnage"
_SETTLED = 1.0


async def run() -> list[Figure]:
    """None where there is no Kubernetes."""
    if not ROOT:
        return []
    figures = await _box()
    try:
        async with plane(nodes=1, raised=True, drivers=stacks.DRIVERS) as cluster:
            await sidecars.install(cluster)
            async with (
                kubelets(cluster.client) as informers,
                stacks.tonnage(cluster, informers, room="400Gi") as stack,
                sidecars.started(cluster, "controller") as processes,
            ):
                await sidecars.start_controller(cluster, processes)
                return figures + await _snapshots(cluster, informers, stack)
    except (programs.Missing, FileNotFoundError) as reason:
        print(f"many: {reason}", file=sys.stderr)
        return figures


async def _box() -> list[Figure]:
    """Of claims without pods: what a driver does for them is the same."""
    async with in_process(nodes=1, pool="image,size=400Gi,sparse=yes,overcommit=yes") as box:
        claims = [f"source-{number}-data-0" for number in range(VOLUMES)]
        for name in claims:
            await box.client.create(CLAIMS, claim_of(name, "1Gi", api_names.IMMEDIATE_CLASS), NAMESPACE)
        for name in claims:
            await until(box.client, CLAIMS, name, lambda c: c.status.phase == "Bound", namespace=NAMESPACE)
        informers = Informers(box.client)
        messages = Messages(informers)
        informers.start()
        await informers.wait_synced()
        names = [f"many-{number}" for number in range(COUNT)]
        messages.count = 0
        took = await _make(box.client, informers, names, api_names.SNAPSHOT_CLASS)
        await asyncio.sleep(_SETTLED)
        made, messages.count = messages.count - COUNT, 0
        ended = await _remove(box.client, names)
        await asyncio.sleep(_SETTLED)
        gone = messages.count - COUNT
        await informers.close()
    return [
        Figure(f"box, {COUNT} snapshots: until all are ready", took, "s"),
        Figure(f"box, {COUNT} snapshots: writes of each", made / COUNT, "", at_most=BOX_CREATED),
        Figure(f"box, {COUNT} deletions: until all are gone", ended, "s"),
        Figure(f"box, {COUNT} deletions: writes of each", gone / COUNT, "", at_most=DELETED),
    ]


class Messages:
    """Counts changes of claims, volumes, VolumeSnapshots and VolumeSnapshotContents."""

    def __init__(self, informers: Informers) -> None:
        self.count = 0
        for kind in (CLAIMS, VOLUMES_KIND, SNAPSHOTS, SNAPSHOT_CONTENTS):
            informers.of(kind).cache.on_change(self._changed)  # type: ignore[misc]

    def _changed(self, old: object, new: object) -> None:
        self.count += 1


async def _snapshots(cluster: Plane, informers: Informers, stack: Stack) -> list[Figure]:
    """Pods with a volume each, then snapshots of all volumes at once."""
    pods = Pods(cluster.client, informers, stack, "source", VOLUMES)
    await pods.create()
    snapshots = informers.of(SNAPSHOTS)
    await snapshots.wait_synced()
    await _make(cluster.client, informers, ["first"], CLASS)  # what is loaded with the first is not of interest
    await _remove(cluster.client, ["first"])
    names = [f"many-{number}" for number in range(COUNT)]
    await cluster.audit.writes()
    before, messages = stacks.memory(stack.pids[0])[0], await sent(cluster.client, KINDS)
    took = await _make(cluster.client, informers, names, CLASS)
    made = await cluster.audit.writes()
    after, heard = stacks.memory(stack.pids[0])[0], await sent(cluster.client, KINDS)
    ended = await _remove(cluster.client, names)
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


async def _make(client: Client, informers: Informers, names: Sequence[str], snapshot_class: str) -> float:
    """Seconds until all are ready. Raises TimeoutError."""

    def body(number: int, name: str) -> dict[str, object]:
        source = {"persistentVolumeClaimName": f"source-{number % VOLUMES}-data-0"}
        return {"metadata": {"name": name}, "spec": {"volumeSnapshotClassName": snapshot_class, "source": source}}

    changed, cache = asyncio.Event(), informers.of(SNAPSHOTS).cache
    cache.on_change(lambda old, new: changed.set())
    began = time.monotonic()
    await asyncio.gather(*(client.create(SNAPSHOTS, body(*one), NAMESPACE) for one in enumerate(names)))
    async with asyncio.timeout(LIMIT):
        while not all((found := cache.get(f"{NAMESPACE}/{name}")) and found.status.ready_to_use for name in names):
            changed.clear()
            await changed.wait()
    return time.monotonic() - began


async def _remove(client: Client, names: Sequence[str]) -> float:
    """Seconds until all are gone. Raises TimeoutError."""
    began = time.monotonic()
    await asyncio.gather(*(client.delete(SNAPSHOTS, name, NAMESPACE) for name in names))
    for kind in (SNAPSHOTS, SNAPSHOT_CONTENTS):
        await until_gone(client, kind, seconds=LIMIT)  # type: ignore[misc]
    return time.monotonic() - began
