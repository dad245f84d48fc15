"""1,000 and 5,000 nodes that are only objects: what schedulers do with late-binding pods and a capacity object a node.

The provisioner costs nothing, and does not even run: the write that sends a claim to its node also binds it, by an
admission policy, to a volume that was made before. Claims and pods are all there before the scheduler may begin, so
that its rate is measured and no other part's: from the first pod that has a node to the last.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import yaml
from benchmarks.kubernetes.plane import NOT_RUN, Plane, plane
from benchmarks.kubernetes.pods import NAMESPACE, claim_spec
from benchmarks.kubernetes.stacks import FREE_CLASS, FREE_DRIVER, FREE_TOPOLOGY
from benchmarks.placement.turns import our_scheduler
from cluster.processes import Failed

from tonnage.base.errors import UnavailableError
from tonnage.controller import tier_objects
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CAPACITIES, CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES, Kind
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.quantity import to_bytes
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import MERGE_PATCH, Request
from tonnage.provisioning.capacity import tier

LIMIT = 1800.0
_READY = 60.0
_WRITERS = 16
_ROOM, _ASKED = "100Gi", "1Gi"
_AT_ONCE = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
_NODE = "object.metadata.?annotations[?'volume.kubernetes.io/selected-node'].orValue('')"
_BOUND = """[
  JSONPatch{op: "add", path: "/spec/volumeName", value: "pvc-" + string(object.metadata.uid)},
  JSONPatch{op: "add", path: "/metadata/annotations/pv.kubernetes.io~1bind-completed", value: "yes"}
]"""


@asynccontextmanager
async def field(nodes: int) -> AsyncIterator[Plane]:
    """A control plane with so many nodes, the class and its free provisioner, and no capacity object."""
    chosen = {FREE_DRIVER: FREE_TOPOLOGY}
    not_run = (*NOT_RUN, "persistentvolume-binder-controller")
    async with plane(nodes=nodes, raised=True, drivers=chosen, not_run=not_run) as cluster:
        await cluster.apply(yaml.safe_dump_all(_provisioner()))
        await _until_bound(cluster.client)
        yield cluster


def _provisioner() -> Sequence[Mapping[str, Any]]:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
              "resources": ["persistentvolumeclaims"]}]  # fmt: skip
    unbound = "object.spec.?volumeName.orValue('') == ''"
    of_class = f"object.spec.?storageClassName.orValue('') == '{FREE_CLASS}'"
    policy, admission = "free-provisioner", "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": FREE_DRIVER},
            "spec": {"attachRequired": False, "storageCapacity": True},
        },
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": FREE_CLASS},
            "provisioner": FREE_DRIVER, "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
        },
        {
            "apiVersion": admission, "kind": "MutatingAdmissionPolicy", "metadata": {"name": policy},
            "spec": {
                "failurePolicy": "Fail", "reinvocationPolicy": "Never",
                "matchConstraints": {"resourceRules": rules},
                "matchConditions": [{"name": "sent", "expression": f"{of_class} && {unbound} && {_NODE} != ''"}],
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _BOUND}}],
            },
        },
        {
            "apiVersion": admission, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": policy},
            "spec": {"policyName": policy},
        },
    ]  # fmt: skip


async def _until_bound(client: Client) -> None:
    """The API server takes a new policy into use a little later. Raises Failed."""
    note = {"metadata": {"annotations": {names.SELECTED_NODE: "n"}}}
    body = {"metadata": {"name": "probe"}, "spec": claim_spec(FREE_CLASS, _ASKED)}
    await client.create(CLAIMS, body, NAMESPACE)
    dry = Request("PATCH", CLAIMS.path(NAMESPACE, "probe"), {"dryRun": "All"}, msgspec.json.encode(note), MERGE_PATCH)
    deadline = time.monotonic() + _READY
    while b"bind-completed" not in (answer := await client.transport.request(dry)).body:
        if time.monotonic() > deadline:
            raise Failed(f"claims are not bound: {answer.body[:1000]!r}")
        await asyncio.sleep(0.5)
    await client.delete(CLAIMS, "probe", NAMESPACE)


class Field:
    """Pods, claims and capacity objects on such a control plane. informers: started by whoever makes them."""

    def __init__(self, cluster: Plane, informers: Informers) -> None:
        self._cluster, self._client = cluster, cluster.client
        self._placed: dict[str, float] = {}
        self._changed = asyncio.Event()
        informers.of(PODS).cache.on_change(self._pod)

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name:
            self._placed.setdefault(new.metadata.uid, time.monotonic())
            self._changed.set()

    async def publish_exact(self) -> None:
        """One capacity object for each node."""
        await self._each([self._capacity(node, {FREE_TOPOLOGY: node}) for node in self._cluster.nodes])

    async def publish_tiers(self) -> None:
        """What agents and controller would: nodes say their tier by label, one object for all of them, and a notice."""
        value = tier.as_label(tier.choose(to_bytes(_ROOM), have=0, usual=to_bytes(_ASKED)))
        label = {"metadata": {"labels": {names.tier_label(FREE_CLASS): value}}}
        await self._each([self._client.patch(NODES, node, label) for node in self._cluster.nodes])
        await self._clear(CAPACITIES)
        storage_class = await self._client.get(STORAGE_CLASSES, FREE_CLASS)
        for promised in (value, names.TIER_NOTICE):
            body = tier_objects.body(storage_class, promised)
            body["metadata"]["name"] = tier.object_name(FREE_CLASS, promised)
            await self._client.create(CAPACITIES, body, NAMESPACE)

    async def _capacity(self, name: str, selected: Mapping[str, str]) -> None:
        body = {"metadata": {"name": name}, "storageClassName": FREE_CLASS, "capacity": _ROOM}
        await self._client.create(CAPACITIES, {**body, "nodeTopology": {"matchLabels": selected}}, NAMESPACE)

    async def rate(self, count: int, *, ours: bool, volumes: bool) -> float:
        """Pods a second that a scheduler places, each with a claim or with none; nothing is left of them."""
        self._placed.clear()
        async with _held_back(self._cluster):
            bodies = [_pod(f"pod-{n}", ours=ours, volumes=volumes) for n in range(count)]
            if volumes:
                await self._each([self._claim(f"pod-{n}") for n in range(count)])
            await self._each([self._client.create(PODS, body, NAMESPACE) for body in bodies])
        async with _scheduler(self._cluster, ours=ours), asyncio.timeout(LIMIT):
            while len(self._placed) < count:
                self._changed.clear()
                await self._changed.wait()
        for kind in (PODS, CLAIMS, VOLUMES):
            await self._clear(kind)
        times = self._placed.values()
        return (count - 1) / (max(times) - min(times))

    async def _claim(self, name: str) -> None:
        """A claim, and the volume that the policy will give it: of no class, so that nobody gives it before."""
        body = {"metadata": {"name": name}, "spec": claim_spec(FREE_CLASS, _ASKED)}
        claim = await self._client.create(CLAIMS, body, NAMESPACE)
        volume = names.volume_name(claim.metadata.uid)
        spec = {
            "capacity": {"storage": _ASKED},
            "accessModes": [names.READ_WRITE_ONCE],
            "csi": {"driver": FREE_DRIVER, "volumeHandle": volume},
        }
        await self._client.create(VOLUMES, {"metadata": {"name": volume}, "spec": spec})

    async def _clear(self, kind: Kind[Any]) -> None:
        """Delete all of a kind and wait until they are gone."""
        namespace = NAMESPACE if kind.namespaced else ""
        everything = Request("DELETE", kind.path(namespace), {}, _AT_ONCE)
        async with asyncio.timeout(LIMIT):
            while (await self._client.list(kind, namespace)).items:
                with suppress(UnavailableError):  # it takes longer than an answer may
                    await self._client.transport.request(everything)
                await asyncio.sleep(1)

    async def _each(self, work: Sequence[Coroutine[Any, Any, object]]) -> None:
        slots = asyncio.Semaphore(_WRITERS)

        async def one(step: Coroutine[Any, Any, object]) -> None:
            async with slots:
                await step

        async with asyncio.TaskGroup() as tasks:
            for step in work:
                tasks.create_task(one(step))


@asynccontextmanager
async def _held_back(cluster: Plane) -> AsyncIterator[None]:
    """kube-scheduler stands still meanwhile."""
    pid = cluster.pid("kube-scheduler")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def _scheduler(cluster: Plane, *, ours: bool) -> AsyncIterator[None]:
    if not ours:
        yield
        return
    async with our_scheduler(cluster, "kube-system"):
        yield


def _pod(name: str, *, ours: bool, volumes: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "none.invalid/none"}]}
    if volumes:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    if ours:
        spec["schedulerName"] = names.SCHEDULER
    return {"metadata": {"name": name}, "spec": {**spec, "automountServiceAccountToken": False}}
