"""The scheduler against a real API server; the binder's and the agent's part is played by hand."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tonnage.scheduler
from tonnage.base.aio.clock import RealClock
from tonnage.base.observe import metrics
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import (
    CAPACITIES,
    CLAIMS,
    CSI_DRIVERS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
)
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.scheduler.scheduler import Scheduler

Eventually = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
Start = Callable[[], AbstractAsyncContextManager[Scheduler]]
NODE = "node-1"


class Stage:
    """Puts objects into the API server, and plays the parts of others."""

    def __init__(self, kube: Client, eventually: Eventually) -> None:
        self.kube, self.eventually = kube, eventually

    async def set_up(self) -> None:
        """One node with a driver, a late class and 10Gi published."""
        await self.kube.create(NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
        await self.node(NODE)
        await self.kube.create(CSI_DRIVERS, {"metadata": {"name": names.DRIVER}, "spec": {"storageCapacity": True}})
        await self.kube.create(
            STORAGE_CLASSES,
            {
                "metadata": {"name": "late"},
                "provisioner": names.DRIVER,
                "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER,
            },
        )
        await self.capacity("10Gi")

    async def node(self, name: str) -> None:
        """A node."""
        labels = {names.TOPOLOGY_NODE: name, names.HOSTNAME_LABEL: name}
        status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
        await self.kube.create(NODES, {"metadata": {"name": name, "labels": labels}})
        await self.kube.patch(NODES, name, {"status": status}, subresource="status")

    async def capacity(self, free: str, *, counted: int | None = None) -> None:
        """Publish the node's room: make the object, or change it."""
        notes = {} if counted is None else {names.OBSERVED_CLAIM_VERSION: str(counted)}
        if counted is not None or (await self.kube.list(CAPACITIES)).items:
            body: dict[str, Any] = {"capacity": free, "metadata": {"annotations": notes}}
            await self.kube.patch(CAPACITIES, "late", body, names.SYSTEM_NAMESPACE)
            return
        body = {"metadata": {"name": "late"}, "storageClassName": "late", "capacity": free}
        body["nodeTopology"] = {"matchLabels": {names.TOPOLOGY_NODE: NODE}}
        await self.kube.create(CAPACITIES, body, names.SYSTEM_NAMESPACE)

    async def pod(self, name: str, *volumes: str, size: str = "1Gi", **spec: Any) -> Any:
        """A pod with ephemeral volumes."""
        template = {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
        template["resources"] = {"requests": {"storage": size}}  # type: ignore[assignment]
        wanted = [{"name": v, "ephemeral": {"volumeClaimTemplate": {"spec": template}}} for v in volumes]
        body = {"containers": [{"name": "main", "image": "none"}], "volumes": wanted, **spec}
        return await self.kube.create(PODS, {"metadata": {"name": name}, "spec": body}, "default")

    async def claim(self, pod: Any, volume: str, size: str = "1Gi") -> Any:
        """What the ephemeral controller makes."""
        name = pod.metadata.name
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid, "controller": True}
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
        spec["resources"] = {"requests": {"storage": size}}  # type: ignore[assignment]
        meta = {"name": f"{name}-{volume}", "ownerReferences": [owner]}
        return await self.kube.create(CLAIMS, {"metadata": meta, "spec": spec}, "default")

    async def sent(self, claim: str) -> Any:
        """Wait until the scheduler has sent a claim somewhere."""

        async def look() -> Any:
            found = await self.kube.get(CLAIMS, claim, "default")
            return found if names.SELECTED_NODE in found.metadata.annotations else None

        return await self.eventually(look)

    async def bind(self, claim: Any, node: str = NODE) -> None:
        """What the agent does: make a volume and complete the binding."""
        meta = claim.metadata
        terms = [{"matchExpressions": [{"key": names.TOPOLOGY_NODE, "operator": "In", "values": [node]}]}]
        ref = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default"}
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": claim.spec.resources.requests,
            "storageClassName": "late",
            "csi": {"driver": names.DRIVER, "volumeHandle": meta.name},
            "claimRef": {**ref, "name": meta.name, "uid": meta.uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        }
        await self.kube.create(VOLUMES, {"metadata": {"name": f"pv-{meta.name}"}, "spec": spec})
        await self.complete(meta.name, f"pv-{meta.name}")

    async def complete(self, claim: str, volume: str) -> None:
        """The claim's part of a binding."""
        done = {"metadata": {"annotations": {names.BIND_COMPLETED: "yes"}}, "spec": {"volumeName": volume}}
        await self.kube.patch(CLAIMS, claim, done, "default")
        await self.kube.patch(CLAIMS, claim, {"status": {"phase": "Bound"}}, "default", subresource="status")

    async def withdraw(self, claim: str) -> None:
        """What the agent does when it has no room."""
        notes = {names.SELECTED_NODE: None, names.RESCHEDULES: "1"}
        meta = {"annotations": notes, "labels": {names.NODE_LABEL: None}}
        await self.kube.patch(CLAIMS, claim, {"metadata": meta}, "default")

    async def bound_to(self, pod: str) -> str:
        """Wait until a pod has a node."""

        async def look() -> str:
            return (await self.kube.get(PODS, pod, "default")).spec.node_name

        return str(await self.eventually(look))

    async def rejected(self, pod: str) -> str:
        """Wait until a pod is told why it has no node."""

        async def look() -> str:
            return await self.condition(pod)

        return str(await self.eventually(look))

    async def condition(self, pod: str) -> str:
        """`reason: message` of PodScheduled=False, "" when there is none."""
        found = (await self.kube.get(PODS, pod, "default")).status.conditions
        return next((f"{c.reason}: {c.message}" for c in found if c.type == "PodScheduled" and c.status == "False"), "")

    async def events(self, pod: str) -> list[tuple[str, str]]:
        """(reason, message) of a pod's Events."""
        found = (await self.kube.list(EVENTS, "default")).items
        return [(e.reason, e.message) for e in found if e.involved_object.name == pod]


@pytest.fixture
async def stage(kube: Client, eventually: Eventually) -> Stage:
    """A cluster of one node."""
    stage = Stage(kube, eventually)
    await stage.set_up()
    return stage


async def test_ephemeral_pod_from_claim_to_node(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler():
        pod = await stage.pod("web", "data")
        await stage.claim(pod, "data")
        claim = await stage.sent("web-data")

        notes, labels = claim.metadata.annotations, claim.metadata.labels
        assert (notes[names.SELECTED_NODE], labels[names.NODE_LABEL]) == (NODE, NODE)
        assert notes[names.STORAGE_PROVISIONER] == notes[names.BETA_STORAGE_PROVISIONER] == names.DRIVER
        assert (await stage.kube.get(PODS, "web", "default")).spec.node_name == ""

        await stage.bind(claim)

        assert await stage.bound_to("web") == NODE

        async def told() -> bool:
            return ("Scheduled", f"Successfully assigned default/web to {NODE}") in await stage.events("web")

        assert await stage.eventually(told)
        # the claim came in time: nobody was told that it was awaited
        assert [reason for reason, _ in await stage.events("web")] == ["Scheduled"]


async def test_too_large_is_told_then_helped_by_more_room(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler() as scheduler:
        pod = await stage.pod("big", "data", size="40Gi")
        await stage.claim(pod, "data", "40Gi")

        expected = "Unschedulable: 0/1 nodes are available: 1 node(s) did not have enough free storage."
        assert await stage.rejected("big") == expected
        before = (await stage.kube.get(PODS, "big", "default")).metadata.resource_version

        await stage.capacity("20Gi")

        async def seen() -> bool:
            return scheduler.cluster.published.on(NODE)["late"][0].capacity == 20 << 30

        await stage.eventually(seen)
        assert (await stage.kube.get(PODS, "big", "default")).metadata.resource_version == before

        await stage.capacity("50Gi")

        await stage.bind(await stage.sent("big-data"))
        assert await stage.bound_to("big") == NODE


async def test_pod_of_another_scheduler_is_left_alone(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler():
        await stage.pod("other", schedulerName="somebody-else")
        await stage.pod("mine")

        assert await stage.bound_to("mine") == NODE
        assert (await stage.kube.get(PODS, "other", "default")).spec.node_name == ""


async def test_missing_claim_is_told_after_a_moment(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler():
        await stage.pod("web", "data")

        text = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-data"'
        assert await stage.rejected("web") == f"Unschedulable: 0/1 nodes are available: {text}."


async def test_withdrawn_claim_goes_round_again(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler() as scheduler:
        pod = await stage.pod("web", "a", "b")
        await stage.claim(pod, "a")
        await stage.claim(pod, "b")
        await stage.sent("web-a")
        await stage.sent("web-b")
        await stage.withdraw("web-a")
        await stage.withdraw("web-b")

        # the first time at once: both are sent again
        first, second = await stage.sent("web-a"), await stage.sent("web-b")

        assert first.metadata.annotations[names.RESCHEDULES] == "1"
        await stage.bind(first)
        await stage.bind(second)
        assert await stage.bound_to("web") == NODE
        assert scheduler.cluster.published.outstanding() == 0


async def test_restart_rebuilds_what_was_promised(stage: Stage, start_scheduler: Start) -> None:
    pod = await stage.pod("one", "data", size="6Gi")
    await stage.claim(pod, "data", "6Gi")
    async with start_scheduler():
        claim = await stage.sent("one-data")

    async with start_scheduler() as scheduler:
        second = await stage.pod("two", "data", size="6Gi")
        await stage.claim(second, "data", "6Gi")

        assert "did not have enough free storage" in await stage.rejected("two")
        offer = scheduler.cluster.published.on(NODE)["late"][0]
        assert offer.outstanding == 6 << 30

        await stage.capacity("4Gi", counted=int(claim.metadata.resource_version))
        await stage.bind(claim)

        assert await stage.bound_to("one") == NODE
        assert (offer.left, offer.outstanding) == (4 << 30, 0)


async def test_two_pods_share_a_claim(stage: Stage, start_scheduler: Start) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}
    spec["resources"] = {"requests": {"storage": "6Gi"}}  # type: ignore[assignment]
    await stage.node("node-2")
    await stage.kube.create(CLAIMS, {"metadata": {"name": "shared"}, "spec": spec}, "default")
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}]
    async with start_scheduler() as scheduler:
        for name in ("first", "second"):
            await stage.pod(name, volumes=volumes)
        claim = await stage.sent("shared")

        async def both_wait() -> bool:
            return len(scheduler._volume_binder.waits._by_pod) == 2

        await stage.eventually(both_wait)
        assert scheduler.cluster.published.on(NODE)["late"][0].outstanding == 6 << 30
        await stage.bind(claim)

        assert [await stage.bound_to(name) for name in ("first", "second")] == [NODE, NODE]


async def test_run_that_ends_in_the_middle_begins_again(stage: Stage, kube: Client) -> None:
    """A leader that lost its lease, and has it again."""
    informers, events = Informers(kube), EventRecorder(kube, "default-scheduler")
    scheduler = Scheduler(kube, informers, events, clock=RealClock())
    informers.start()
    first = asyncio.ensure_future(scheduler.run())
    pod = await stage.pod("web", "data")
    await stage.claim(pod, "data")
    claim = await stage.sent("web-data")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    second = asyncio.ensure_future(scheduler.run())
    await stage.bind(claim)

    assert await stage.bound_to("web") == NODE
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await informers.close()


async def test_pod_deleted_while_its_volumes_are_made(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler() as scheduler:
        pod = await stage.pod("web", "data", size="6Gi")
        await stage.claim(pod, "data", "6Gi")
        await stage.sent("web-data")
        await stage.kube.delete(PODS, "web", "default", grace_seconds=0)
        await stage.kube.delete(CLAIMS, "web-data", "default")
        await stage.kube.patch(CLAIMS, "web-data", {"metadata": {"finalizers": None}}, "default")

        async def nothing_left() -> bool:
            cluster = scheduler.cluster
            return not (cluster.columns.placed or cluster.published.outstanding() or scheduler._assumed)

        assert await stage.eventually(nothing_left)
        assert scheduler.queue.get(pod.metadata.uid) is None


async def test_pod_bound_by_another_hand_is_given_up(stage: Stage, start_scheduler: Start) -> None:
    await stage.node("node-2")
    async with start_scheduler() as scheduler:
        pod = await stage.pod("web", "data", nodeSelector={names.HOSTNAME_LABEL: NODE})
        await stage.claim(pod, "data")
        claim = await stage.sent("web-data")
        target = {"metadata": {"name": "web"}, "target": {"name": "node-2"}}
        await stage.kube.post(PODS.path("default", "web", "binding"), target)
        await stage.bind(claim)

        async def settled() -> bool:
            return not scheduler._tasks._tasks and not scheduler._assumed

        assert await stage.eventually(settled)
        columns = scheduler.cluster.columns
        assert columns.names[columns.placed[pod.metadata.uid].slot] == "node-2"
        assert scheduler.queue.get(pod.metadata.uid) is None


async def test_lost_requests_are_repeated(stage: Stage, start_scheduler: Start, trouble: Any) -> None:
    """The second claim's patch gets lost twice, the pod's binding once."""
    lost: list[str] = []

    def fails(request: Any) -> bool:
        last = request.path.rpartition("/")[2]
        if (last == "web-b" and lost.count(last) < 2) or (last == "binding" and last not in lost):
            lost.append(last)
            return True
        return False

    trouble.fails = fails
    async with start_scheduler() as scheduler:
        pod = await stage.pod("web", "a", "b", size="4Gi")
        for volume in ("a", "b"):
            await stage.claim(pod, volume, "4Gi")
        for volume in ("a", "b"):
            await stage.bind(await stage.sent(f"web-{volume}"))

        assert await stage.rejected("web") == "SchedulerError: connection lost"
        assert await stage.bound_to("web") == NODE
        assert lost == ["web-b", "web-b", "binding"]
        assert scheduler.cluster.columns.placed.keys() == {pod.metadata.uid}


async def test_static_volume_is_claimed_and_awaited(stage: Stage, start_scheduler: Start) -> None:
    kube = stage.kube
    mode = {"volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER, "provisioner": names.NO_PROVISIONER}
    await kube.create(STORAGE_CLASSES, {"metadata": {"name": "disks"}, **mode})
    terms = [{"matchExpressions": [{"key": names.HOSTNAME_LABEL, "operator": "In", "values": [NODE]}]}]
    for name, size in (("large", "20Gi"), ("small", "5Gi"), ("tiny", "1Gi")):
        spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "storageClassName": "disks"}
        spec |= {"local": {"path": f"/disks/{name}"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
        await kube.create(VOLUMES, {"metadata": {"name": name}, "spec": spec})
        await kube.patch(VOLUMES, name, {"status": {"phase": "Available"}}, subresource="status")
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "disks"}
    spec["resources"] = {"requests": {"storage": "2Gi"}}
    claim = await kube.create(CLAIMS, {"metadata": {"name": "mine"}, "spec": spec}, "default")
    async with start_scheduler():
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}]
        await stage.pod("db", volumes=volumes)

        async def given() -> Any:
            found = await kube.get(VOLUMES, "small")
            return found if found.spec.claim_ref is not None else None

        volume = await stage.eventually(given)
        assert volume.spec.claim_ref.uid == claim.metadata.uid
        assert volume.metadata.annotations[names.BOUND_BY_CONTROLLER] == "yes"
        assert (await kube.get(PODS, "db", "default")).spec.node_name == ""

        await stage.complete("mine", "small")

        assert await stage.bound_to("db") == NODE


async def test_gated_pod_waits_until_its_gates_are_gone(stage: Stage, start_scheduler: Start) -> None:
    async with start_scheduler():
        await stage.pod("gated", schedulingGates=[{"name": "example.org/wait"}])
        expected = "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates"
        assert await stage.rejected("gated") == expected

        await stage.kube.patch(PODS, "gated", {"spec": {"schedulingGates": None}}, "default")

        assert await stage.bound_to("gated") == NODE


async def test_burst_never_promises_more_than_there_is(stage: Stage, start_scheduler: Start) -> None:
    """10Gi published, never updated: ten of fifteen claims are sent, however fast they come."""
    async with start_scheduler() as scheduler:
        for number in range(15):
            pod = await stage.pod(f"p{number}", "data")
            await stage.claim(pod, "data")

        async def all_decided() -> bool:
            decided = [p for p in range(15) if await stage.condition(f"p{p}")]
            return len(decided) == 5 and scheduler.cluster.published.outstanding() == 10

        assert await stage.eventually(all_decided)
        claims = (await stage.kube.list(CLAIMS, "default")).items
        assert sum(names.SELECTED_NODE in c.metadata.annotations for c in claims) == 10


@pytest.mark.slow
async def test_many_that_wait_alike_are_placed_with_few_attempts(stage: Stage, start_scheduler: Start) -> None:
    """Each GiB that becomes free costs an attempt for the pod that gets it, and one for the next that does not."""
    await stage.capacity("0")
    count = 40
    async with start_scheduler():
        for number in range(count):
            await stage.claim(await stage.pod(f"p{number}", "v"), "v")

        async def rejected() -> bool:
            found = (await stage.kube.list(PODS, "default")).items
            return all("did not have enough free storage" in str(pod.status.conditions) for pod in found)

        async def sent(number: int) -> bool:
            claims = (await stage.kube.list(CLAIMS, "default")).items
            return sum(names.SELECTED_NODE in claim.metadata.annotations for claim in claims) == number

        await stage.eventually(rejected)
        before = _attempts()
        for free in range(1, count + 1):
            await stage.capacity(f"{free}Gi")
            await stage.eventually(partial(sent, free))
    assert _attempts() - before <= 3 * count


def _attempts() -> float:
    results = ("unschedulable", "awaited", "scheduled", "error")
    return float(sum(metrics.SCHEDULED.labels(result)._value.get() for result in results))


async def test_a_provisioner_that_nobody_knows_is_named_while_the_pod_waits(
    stage: Stage, start_scheduler: Start
) -> None:
    late = {"provisioner": "example.com/theirs", "volumeBindingMode": names.WAIT_FOR_FIRST_CONSUMER}
    await stage.kube.create(STORAGE_CLASSES, {"metadata": {"name": "theirs"}, **late})
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "theirs", "resources": {"requests": {"storage": "1"}}}
    await stage.kube.create(CLAIMS, {"metadata": {"name": "data"}, "spec": spec}, "default")
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    body = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes}
    await stage.kube.create(PODS, {"metadata": {"name": "app"}, "spec": body}, "default")

    async def told() -> list[str]:
        events = (await stage.kube.list(EVENTS, "default")).items
        return [e.message for e in events if e.reason == "WaitingForProvisioner"]

    async with start_scheduler() as scheduler:
        scheduler._volume_binder.patience = 0.01
        (message,) = await stage.eventually(told)
    assert message.startswith(
        'waiting for provisioner "example.com/theirs" of StorageClass "theirs" to make the volume'
    )
    assert 'claim data: no node has a CSI driver "example.com/theirs"' in message


async def test_a_pod_passes_few_files_and_no_preemption(stage: Stage, start_scheduler: Start) -> None:
    """From the watch event to the binding, for one pod with one claim."""
    folder, passed = str(Path(tonnage.scheduler.__file__).parent), set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            passed.add(frame.f_code.co_filename.removeprefix(f"{folder}/"))

    async with start_scheduler() as scheduler:
        other = await stage.pod("other", schedulerName="nobody's")
        await stage.claim(other, "v")

        async def seen() -> bool:
            return scheduler.cluster.objects.claims.get("default/other-v") is not None

        await stage.eventually(seen)
        sys.setprofile(note)
        try:
            await stage.pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "other-v"}}])
            await stage.bind(await stage.sent("other-v"))
            assert await stage.bound_to("p") == NODE
        finally:
            sys.setprofile(None)
    assert {"scheduler.py", "core/binding.py"} <= passed
    assert len(passed) <= 12, sorted(passed)
    assert not [file for file in passed if file.startswith("preemption/")]
