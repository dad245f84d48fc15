"""Jobs on a real API server: from the first pod to the last count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.unit.fixture_types import Settle, Told

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import JOBS, PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import Job
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage_box.controllers.podcontrol.context import ControllerContext
from tonnage_box.controllers.workloads.job import JobController
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Pods = Callable[[], Awaitable[list[Pod]]]
NEVER = {"restartPolicy": "Never"}


async def ended(kube: Client, kind: str) -> Job | None:
    found = await kube.get(JOBS, "j", "default")
    return found if any(c.type == kind and c.status == "True" for c in found.status.conditions) else None


def done(kubelet: Any, phase: str) -> None:
    kubelet.judge = lambda pod: {"phase": phase}


async def test_it_ends_when_enough_pods_have_ended_well(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, pods: Pods, eventually: Eventually, told: Told
) -> None:
    done(kubelet, "Succeeded")
    await workload(JOBS, "j", pod=NEVER, completions=5, parallelism=2)
    found = await eventually(lambda: ended(kube, "Complete"))
    assert (found.status.succeeded, found.status.failed, found.status.active) == (5, 0, 0)
    assert found.status.completion_time
    every = await pods()
    assert len(every) == 5
    assert all(p.metadata.finalizers == [] and p.metadata.labels[names.JOB_NAME] == "j" for p in every)
    assert ("j", "Normal", "Completed", "Job completed") in await told()
    await kube.delete(JOBS, "j", "default", propagation="Background")

    async def gone() -> bool:
        return not await pods()

    await eventually(gone)


async def test_indexes_each_once(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, pods: Pods, eventually: Eventually
) -> None:
    done(kubelet, "Succeeded")
    await workload(JOBS, "j", pod=NEVER, completions=4, parallelism=4, completionMode="Indexed")
    found = await eventually(lambda: ended(kube, "Complete"))
    assert found.status.completed_indexes == "0-3"
    every = await pods()
    assert sorted(p.metadata.annotations[names.COMPLETION_INDEX] for p in every) == ["0", "1", "2", "3"]
    assert sorted(p.spec.hostname for p in every) == [f"j-{n}" for n in range(4)]
    assert all(p.metadata.name.startswith(f"{p.spec.hostname}-") for p in every)
    assert {e.name for p in every for e in p.spec.containers[0].env} == {"JOB_COMPLETION_INDEX"}


async def test_it_fails_when_its_pods_do(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, eventually: Eventually
) -> None:
    done(kubelet, "Failed")
    await workload(JOBS, "j", pod=NEVER, backoffLimit=0)
    found = await eventually(lambda: ended(kube, "Failed"))
    assert (found.status.succeeded, found.status.failed) == (0, 1)
    assert {c.reason for c in found.status.conditions} == {"BackoffLimitExceeded"}


async def test_after_its_time_it_is_deleted_with_its_pods(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, pods: Pods, eventually: Eventually
) -> None:
    done(kubelet, "Succeeded")
    await workload(JOBS, "j", pod=NEVER, ttlSecondsAfterFinished=0)

    async def gone() -> bool:
        return bool(kubelet.log) and not (await kube.list(JOBS)).items and not await pods()

    await eventually(gone)


async def test_held_and_let_go_on(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, pods: Pods, eventually: Eventually
) -> None:
    await workload(JOBS, "j", pod=NEVER, suspend=True)
    await eventually(lambda: ended(kube, "Suspended"))
    assert await pods() == []
    await kube.patch(JOBS, "j", {"spec": {"suspend": False}}, "default")

    async def active(count: int) -> bool:
        status = (await kube.get(JOBS, "j", "default")).status
        return status.active == len(await pods()) == count and bool(status.start_time) == bool(count)

    await eventually(lambda: active(1))
    await kube.patch(JOBS, "j", {"spec": {"suspend": True}}, "default")
    await eventually(lambda: active(0))
    assert (await kube.get(JOBS, "j", "default")).status.failed == 0
    done(kubelet, "Succeeded")
    await kube.patch(JOBS, "j", {"spec": {"suspend": False}}, "default")
    await eventually(lambda: ended(kube, "Complete"))


async def test_a_running_one_that_is_deleted_holds_no_pods(
    kube: Client, workloads: Any, workload: Make, pods: Pods, eventually: Eventually
) -> None:
    for propagation in ("Background", "Foreground", "Orphan"):
        await workload(JOBS, "j", pod=NEVER, parallelism=2, completions=2)

        async def running() -> bool:
            return (await kube.get(JOBS, "j", "default")).status.active == 2

        await eventually(running)
        await kube.delete(JOBS, "j", "default", propagation=propagation)

        async def let_go(expected: int = 2 if propagation == "Orphan" else 0) -> bool:
            left = await pods()
            alone = all(not p.metadata.finalizers and not p.metadata.owner_references for p in left)
            return not (await kube.list(JOBS)).items and alone and len(left) == expected

        await eventually(let_go)


async def test_a_watch_that_tells_nothing_counts_nothing_twice(
    kube: Client, informers: Any, events: EventRecorder, workload: Make, settle: Settle, pods: Pods
) -> None:
    controller = JobController(ControllerContext(kube, informers, events))
    await workload(JOBS, "j", pod=NEVER, completions=3, parallelism=1)
    await settle()
    await controller.reconcile("default/j")
    await settle()
    name = (await pods())[0].metadata.name
    await kube.patch(PODS, name, {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    await settle()
    for kind in (PODS, JOBS):
        informers.of(kind)._take = lambda event: None
    for _ in range(6):
        await controller.reconcile("default/j")
    status = (await kube.get(JOBS, "j", "default")).status
    assert (status.succeeded, status.active, len(await pods())) == (1, 1, 2)


async def test_an_index_of_5000_digits_stops_no_reconcile(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, pods: Pods, eventually: Eventually
) -> None:
    await workload(JOBS, "j", pod=NEVER, completions=2, parallelism=2, completionMode="Indexed")

    async def both() -> list[Pod]:
        return found if len(found := await pods()) == 2 else []

    name = (await eventually(both))[0].metadata.name
    for text in ("9" * 5000, "-1", "x"):
        await kube.patch(PODS, name, {"metadata": {"annotations": {names.COMPLETION_INDEX: text}}}, "default")
        odd = {"status": {"completedIndexes": f"{text},0-2147483646,{text}-{text}"}}
        await kube.patch(JOBS, "j", odd, "default", subresource="status")
    done(kubelet, "Succeeded")
    for pod in await pods():
        await kube.patch(PODS, pod.metadata.name, {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    assert (await eventually(lambda: ended(kube, "Complete"))).status.completed_indexes == "0,1"
