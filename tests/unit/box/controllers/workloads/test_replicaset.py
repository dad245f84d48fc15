"""ReplicaSets: the right number of pods, whoever made them, however slow the watch is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fixture_types import Settle, Told

from tonnage.base.aio.clock import parse_rfc3339
from tonnage.base.errors import ApiConflictError
from tonnage.kubernetes.api.kinds import PODS, REPLICA_SETS, RESOURCE_QUOTAS
from tonnage.kubernetes.api.meta import Condition, ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodSpec, PodStatus
from tonnage.kubernetes.client.events import EventRecorder
from tonnage_box.controllers.podcontrol.context import ControllerContext
from tonnage_box.controllers.podcontrol.pod_status import is_active
from tonnage_box.controllers.workloads.replicaset import ReplicaSetController, plan
from tonnage_box.testing.clock import ManualClock
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]


Pods = Callable[[], Awaitable[list[Pod]]]


def pod(name: str, *, phase: str = "Running", ready: bool = True, node: str = "n", deleting: bool = False) -> Pod:
    conditions = [
        Condition(type="Ready", status="True" if ready else "False", last_transition_time="2026-01-01T00:00:00Z")
    ]
    meta = ObjectMeta(name=name, uid=name, deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None)
    return Pod(metadata=meta, spec=PodSpec(node_name=node), status=PodStatus(phase=phase, conditions=conditions))


_PODS = st.builds(
    pod,
    st.uuids().map(str),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    ready=st.booleans(),
    node=st.sampled_from(["", "a", "b"]),
    deleting=st.booleans(),
)


@given(wanted=st.integers(0, 8), pods=st.lists(_PODS, max_size=10))
def test_a_plan_leads_to_the_wanted_number_and_takes_those_missed_least(wanted: int, pods: list[Pod]) -> None:
    todo = plan(wanted, pods)
    active = [p for p in pods if is_active(p)]
    assert len(active) + todo.create - len(todo.delete) == wanted
    assert not (todo.create and todo.delete)
    assert all(is_active(p) for p in todo.delete)
    kept = [p for p in active if p not in todo.delete]
    if any(p.spec.node_name for p in todo.delete):
        assert all(p.spec.node_name for p in kept)


async def test_pods_come_and_go_with_the_number(
    kube: Any, workloads: Any, workload: Make, pods: Pods, eventually: Eventually
) -> None:
    await workload(REPLICA_SETS, "web", replicas=3)

    async def has(count: int) -> bool:
        live = await kube.get(REPLICA_SETS, "web", "default")
        status = live.status
        settled = status.replicas == status.ready_replicas == status.available_replicas == count
        return settled and status.observed_generation == live.metadata.generation and len(await pods()) == count

    await eventually(lambda: has(3))
    found = (await pods())[0]
    assert found.metadata.labels == {"app": "web"}
    assert found.metadata.name.startswith("web-")
    await kube.delete(PODS, found.metadata.name, "default")
    await eventually(lambda: has(3))
    await kube.patch(REPLICA_SETS, "web", {"spec": {"replicas": 1}}, "default")
    await eventually(lambda: has(1))
    await kube.delete(REPLICA_SETS, "web", "default")
    await eventually(lambda: has_none(pods))


async def has_none(pods: Pods) -> bool:
    return not await pods()


async def test_orphans_are_adopted_and_strangers_let_go(
    kube: Any, workloads: Any, workload: Make, make_pod: Make, pods: Pods, eventually: Eventually
) -> None:
    await make_pod("orphan")
    await kube.patch(PODS, "orphan", {"metadata": {"labels": {"app": "web"}}}, "default")
    owner = await workload(REPLICA_SETS, "web", replicas=2)

    async def adopted() -> bool:
        every = await pods()
        return len(every) == 2 and all(p.metadata.controller_uid() == owner.metadata.uid for p in every)

    await eventually(adopted)
    await kube.patch(PODS, "orphan", {"metadata": {"labels": {"app": "other"}}}, "default")

    async def released() -> bool:
        every = {p.metadata.name: p for p in await pods()}
        return len(every) == 3 and not every["orphan"].metadata.owner_references

    await eventually(released)


async def test_a_watch_that_tells_nothing_makes_no_double_pods(
    kube: Any, informers: Any, events: EventRecorder, workload: Make, pods: Pods, settle: Settle
) -> None:
    """The cache of pods stands still while the controller looks again and again."""
    controller = ReplicaSetController(ControllerContext(kube, informers, events))
    await workload(REPLICA_SETS, "web", replicas=4)
    await settle()
    informer = informers.of(PODS)
    taken = informer._take
    informer._take = lambda event: None
    for _ in range(5):
        with suppress(ApiConflictError):
            await controller.reconcile("default/web")
        await asyncio.sleep(0)
    assert len(await pods()) == 4
    assert len(informer.cache) == 0
    await kube.patch(REPLICA_SETS, "web", {"spec": {"replicas": 1}}, "default")
    while informers.of(REPLICA_SETS).cache.get("default/web").spec.replicas != 1:
        await asyncio.sleep(0.001)
    for _ in range(5):
        with suppress(ApiConflictError):  # its own status, which the cache has yet to show
            await controller.reconcile("default/web")
    assert len([p for p in await pods() if not p.metadata.deleting]) == 1
    informer._take = taken


async def test_what_a_quota_rejects_is_said_and_tried_again(
    kube: Any, workloads: Any, workload: Make, pods: Pods, eventually: Eventually, told: Told
) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    await kube.create(RESOURCE_QUOTAS, quota, "default")
    await workload(REPLICA_SETS, "web", replicas=4)

    async def failed() -> bool:
        live = await kube.get(REPLICA_SETS, "web", "default")
        return live.status.replicas == 2 and any(c.type == "ReplicaFailure" for c in live.status.conditions)

    await eventually(failed)
    said = [message for _, _, reason, message in await told() if reason == "FailedCreate"]
    assert "exceeded quota: few" in said[0]
    await kube.patch(RESOURCE_QUOTAS, "few", {"spec": {"hard": {"pods": "9"}}}, "default")

    async def well() -> bool:
        live = await kube.get(REPLICA_SETS, "web", "default")
        return live.status.ready_replicas == 4 and not live.status.conditions

    await eventually(well)


async def test_pods_that_a_kubelet_does_not_admit_are_replaced_later_and_later(
    kube: Any, informers: Any, events: EventRecorder, kubelet: Any, workload: Make, pods: Pods, eventually: Eventually
) -> None:
    kubelet.judge = lambda pod: {"phase": "Failed", "reason": "SysctlForbidden", "message": "Pod was rejected: x"}
    await workload(REPLICA_SETS, "web", replicas=2)
    await eventually(lambda: _cached(informers, REPLICA_SETS, 1))
    made = parse_rfc3339((await kube.get(REPLICA_SETS, "web", "default")).metadata.creation_timestamp)
    clock = ManualClock(made)
    controller = ReplicaSetController(ControllerContext(kube, informers, events, clock))
    for count in (2, 4, 6):
        for _ in range(5):
            with suppress(ApiConflictError):  # its own status, which the cache has yet to show
                wait = await controller.reconcile("default/web")
            await eventually(lambda count=count: _rejected(informers, count))
        assert len(await pods()) == count
        with suppress(ApiConflictError):
            wait = await controller.reconcile("default/web")
        assert wait is not None
        clock.now += wait


async def _cached(informers: Any, kind: Any, count: int) -> bool:
    return bool(len(informers.of(kind).cache) == count)


async def _rejected(informers: Any, count: int) -> bool:
    return bool(sum(p.status.phase == "Failed" for p in informers.of(PODS).cache) == count)
