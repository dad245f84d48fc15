"""API writes of each data service, counted from the API server's audit log: ours and upstream's on one control plane.

One node with a real kubelet, since upstream's growth ends there. Counted are writes that were done of claims, volumes,
VolumeSnapshots and VolumeSnapshotContents, but for the user's own. Restore and clone are counted over a plain claim.
Growth is timed too, to the claim's status: the kubelet looks at its pods each 10 s here (by default each minute).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.box.box import ROOT
from benchmarks.data_services import sidecars
from benchmarks.data_services.sidecars import Served
from benchmarks.figure import Figure
from benchmarks.kubernetes.audit import Write
from benchmarks.kubernetes.plane import Plane, plane
from cluster import programs
from cluster.__main__ import BUSYBOX

from tonnage.kubernetes.api.core import PersistentVolumeClaim
from tonnage.kubernetes.api.kinds import CLAIMS, PODS, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES
from tonnage_box.api.wait import until, until_gone
from tonnage_box.cli.workloads import claim_of, pod_of_claim

MOST_RUNS = 1
ROUNDS = 2
NAMESPACE = "default"
USER = "test-admin"
WAIT = 180.0
SERVING = ("csi-", "snapshot-controller", "tonnage-")
"""How the accounts of both stacks begin; other Events are about pods."""
COUNTED = frozenset({"persistentvolumeclaims", "persistentvolumes", "volumesnapshots", "volumesnapshotcontents"})
PLAIN, RESTORE, CLONE = "a plain claim", "restore, over a plain claim", "clone, over a plain claim"
GOALS = {"grow": 2, "snapshot": 4, "delete a snapshot": 3, RESTORE: 0, CLONE: 0}
Kinds = Mapping[tuple[str, str], float]
"""Verb and resource, and the account -> writes of one flow."""


@dataclass
class Counted:
    """What the flows of one stack cost. writes: flow -> those of each round. events: the same for Events."""

    writes: dict[str, list[Counter[tuple[str, str]]]] = field(default_factory=dict)
    events: dict[str, list[int]] = field(default_factory=dict)
    growths: list[float] = field(default_factory=list)

    def add(self, flow: str, found: Iterable[Write]) -> None:
        """The audit log of one flow."""
        listed = list(found)
        self.writes.setdefault(flow, []).append(counted(listed))
        told = [w for w in listed if w.object_ref.resource == "events" and _account(w).startswith(SERVING)]
        self.events.setdefault(flow, []).append(len(told))

    def total(self, flow: str) -> float:
        """Median of the rounds; of restore and clone, what they cost beyond a plain claim."""
        return self._median(flow, lambda name, number: self.writes[name][number].total())

    def total_events(self, flow: str) -> float:
        """The same of Events."""
        return self._median(flow, lambda name, number: self.events[name][number])

    def _median(self, flow: str, value: Callable[[str, int], float]) -> float:
        plain = PLAIN if flow in (RESTORE, CLONE) else ""
        rounds = range(len(self.writes[flow]))
        return statistics.median(value(flow, n) - (value(plain, n) if plain else 0) for n in rounds)

    def kinds(self, flow: str) -> Kinds:
        """Writes of a round by kind and account, on the average."""
        rounds = self.writes[flow]
        return {key: sum(one[key] for one in rounds) / len(rounds) for key in sorted(set().union(*rounds))}


def counted(writes: Iterable[Write]) -> Counter[tuple[str, str]]:
    """How many writes of storage were done, by what and by whom, but for the user's own."""
    chosen = (w for w in writes if w.done and w.object_ref.resource in COUNTED and w.user.username != USER)
    return Counter((w.what, _account(w)) for w in chosen)


def _account(write: Write) -> str:
    return write.user.username.rpartition(":")[2]


async def run() -> list[Figure]:
    """Both stacks, one after the other; none where Kubernetes or the Go programs are missing."""
    if not ROOT:
        return []
    try:
        async with plane(nodes=1, raised=True, drivers={}, not_run=(), real=True) as cluster:
            await sidecars.install(cluster)
            found = {}
            for opened in (sidecars.upstream, sidecars.tonnage):
                async with opened(cluster) as served:
                    found[served.name] = await Flows(cluster, served).run()
    except (programs.Missing, FileNotFoundError) as reason:
        print(f"writes: {reason}", file=sys.stderr)
        return []
    return figures(found)


def figures(found: Mapping[str, Counted]) -> list[Figure]:
    """For each flow ours and upstream's; then what they consist of, and how long growth took."""
    made = []
    for flow, goal in GOALS.items():
        made.append(Figure(f"{flow}: writes, tonnage", found["tonnage"].total(flow), "", at_most=goal))
        made.append(Figure(f"{flow}: writes, upstream", found["upstream"].total(flow)))
        made += [Figure(f"{flow}: Events, {name}", one.total_events(flow)) for name, one in found.items()]
    made += [
        Figure(f"{flow}, {name}: {what} by {who}", count)
        for flow in (PLAIN, *GOALS)
        for name, one in found.items()
        for (what, who), count in one.kinds(flow).items()
    ]
    for name, one in found.items():
        made.append(
            Figure(f"grow: patch until the claim's status, {name}, median", statistics.median(one.growths), "s")
        )
    return made


class Flows:
    """All flows of one stack, each on its own, the audit log read after each."""

    def __init__(self, cluster: Plane, served: Served) -> None:
        self._cluster, self._served, self._client = cluster, served, cluster.client
        self._found = Counted()

    async def run(self) -> Counted:
        """Every flow so many times."""
        for number in range(ROUNDS):
            await self._round(f"{self._served.name}-{number}")
        return self._found

    async def _round(self, name: str) -> None:
        restored, cloned = f"{name}-restored", f"{name}-cloned"
        await self._cluster.audit.writes()
        await self._flow(PLAIN, self._run(name))
        began = time.monotonic()
        await self._flow("grow", self._grow(name, began))
        await self._flow("snapshot", self._snapshot(name))
        source = {"apiGroup": SNAPSHOTS.group, "kind": SNAPSHOTS.kind, "name": name}
        await self._flow(RESTORE, self._run(restored, size="2Gi", dataSource=source))
        source = {"kind": CLAIMS.kind, "name": name}
        await self._flow(CLONE, self._run(cloned, size="2Gi", dataSource=source))
        await self._flow("delete a snapshot", self._delete_snapshot(name))
        for one in (restored, cloned, name):
            await self._client.delete(PODS, one, NAMESPACE, grace_seconds=0)
            await self._client.delete(CLAIMS, one, NAMESPACE)
        await until_gone(self._client, VOLUMES, seconds=WAIT)

    async def _flow(self, name: str, work: Awaitable[None]) -> None:
        await work
        self._found.add(name, await self._cluster.audit.writes())

    async def _run(self, name: str, *, size: str = "1Gi", **spec: Any) -> None:
        """A claim and its pod, until that runs."""
        claim, pod = claim_of(name, size, self._served.storage_class), pod_of_claim(name, name)
        claim["spec"].update(spec)
        pod["spec"]["containers"][0]["image"] = BUSYBOX
        pod["spec"]["automountServiceAccountToken"] = False
        await self._client.create(CLAIMS, claim, NAMESPACE)
        await self._client.create(PODS, pod, NAMESPACE)
        await until(self._client, PODS, name, lambda p: p.status.phase == "Running", namespace=NAMESPACE, seconds=WAIT)

    async def _grow(self, name: str, began: float) -> None:
        body = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        await self._client.patch(CLAIMS, name, body, NAMESPACE)
        await until(self._client, CLAIMS, name, has_grown, namespace=NAMESPACE, seconds=WAIT)
        self._found.growths.append(time.monotonic() - began)

    async def _snapshot(self, name: str) -> None:
        source = {"persistentVolumeClaimName": name}
        spec = {"volumeSnapshotClassName": self._served.snapshot_class, "source": source}
        await self._client.create(SNAPSHOTS, {"metadata": {"name": name}, "spec": spec}, NAMESPACE)
        await until(
            self._client, SNAPSHOTS, name, lambda s: bool(s.status.ready_to_use), namespace=NAMESPACE, seconds=WAIT
        )

    async def _delete_snapshot(self, name: str) -> None:
        await self._client.delete(SNAPSHOTS, name, NAMESPACE)
        for kind in (SNAPSHOTS, SNAPSHOT_CONTENTS):
            await until_gone(self._client, kind, seconds=WAIT)  # type: ignore[misc]


def has_grown(claim: PersistentVolumeClaim) -> bool:
    """Whether the claim shows 2Gi, and nothing of the growth is left to do."""
    status = claim.status
    return status.capacity.get("storage") == "2Gi" and not status.conditions and not status.allocated_resource_statuses
