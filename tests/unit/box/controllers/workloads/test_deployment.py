"""Deployments: templates replace one another, and can be gone back to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import DEPLOYMENTS, REPLICA_SETS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import Deployment
from tonnage.kubernetes.client.client import Client
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Pods = Callable[[], Awaitable[list[Pod]]]


def image(version: str) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": version}]}}}}


async def live(kube: Client) -> Deployment:
    return await kube.get(DEPLOYMENTS, "web", "default")


@pytest.fixture
def rolled_out(kube: Client, pods: Pods, eventually: Eventually) -> Callable[[str], Awaitable[Deployment]]:
    """Waits until all pods have that image and the Deployment says that it is done (as kubectl rollout status)."""

    async def wait(version: str) -> Deployment:
        async def done() -> Deployment | None:
            found = await live(kube)
            status, wanted = found.status, found.spec.replicas
            counts = {status.replicas, status.updated_replicas, status.available_replicas, status.ready_replicas}
            progress = next((c.reason for c in status.conditions if c.type == "Progressing"), "")
            images = {p.spec.containers[0].image for p in await pods()}
            settled = status.observed_generation == found.metadata.generation and counts == {wanted}
            return found if settled and progress == "NewReplicaSetAvailable" and images == {version} else None

        found: Deployment = await eventually(done)
        return found

    return wait


async def test_a_rollout_stays_within_its_bounds(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, rolled_out: Any
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=5, strategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    first = await rolled_out("v1")
    assert first.metadata.annotations[names.REVISION] == "1"
    kubelet.log.clear()
    await kube.patch(DEPLOYMENTS, "web", image("v2"), "default")
    second = await rolled_out("v2")

    assert second.metadata.annotations[names.REVISION] == "2"
    ready = 5
    for what, _ in kubelet.log:
        ready += {"ready": 1, "gone": -1, "added": 0}[what]
        assert ready >= 5  # none may be missing, so none goes before another one is there
    assert [what for what, _ in kubelet.log].count("added") == 5
    sets = {s.metadata.annotations[names.REVISION]: s for s in (await kube.list(REPLICA_SETS)).items}
    assert {r: s.spec.replicas for r, s in sets.items()} == {"1": 0, "2": 5}
    hashes = {s.metadata.labels[names.POD_TEMPLATE_HASH] for s in sets.values()}
    assert len(hashes) == 2
    assert all(s.metadata.name == f"web-{s.metadata.labels[names.POD_TEMPLATE_HASH]}" for s in sets.values())


async def test_back_to_an_old_template_is_its_old_set_with_a_new_revision(
    kube: Client, workloads: Any, workload: Make, rolled_out: Any
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=2)
    await rolled_out("v1")
    for version in ("v2", "v1"):
        await kube.patch(DEPLOYMENTS, "web", image(version), "default")
        await rolled_out(version)

    sets = {s.spec.template["spec"]["containers"][0]["image"]: s for s in (await kube.list(REPLICA_SETS)).items}
    notes = {version: s.metadata.annotations for version, s in sets.items()}
    assert (notes["v1"][names.REVISION], notes["v2"][names.REVISION]) == ("3", "2")
    assert notes["v1"][names.REVISION_HISTORY] == "1"


async def test_of_the_history_as_much_is_kept_as_is_asked(
    kube: Client, workloads: Any, workload: Make, rolled_out: Any, eventually: Eventually
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=1, revisionHistoryLimit=1)
    await rolled_out("v1")
    for version in ("v2", "v3", "v4"):
        await kube.patch(DEPLOYMENTS, "web", image(version), "default")
        await rolled_out(version)

    async def kept() -> bool:
        sets = (await kube.list(REPLICA_SETS)).items
        return {s.metadata.annotations[names.REVISION] for s in sets} == {"3", "4"}

    await eventually(kept)


async def test_recreate_lets_all_old_pods_go_before_the_first_new_one(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, rolled_out: Any
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=3, strategy={"type": "Recreate"})
    await rolled_out("v1")
    kubelet.log.clear()
    await kube.patch(DEPLOYMENTS, "web", image("v2"), "default")
    await rolled_out("v2")
    assert [what for what, _ in kubelet.log if what != "ready"] == ["gone"] * 3 + ["added"] * 3


async def test_a_pause_holds_templates_but_not_numbers(
    kube: Client, workloads: Any, workload: Make, pods: Pods, rolled_out: Any, eventually: Eventually
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=2)
    await rolled_out("v1")
    await kube.patch(DEPLOYMENTS, "web", {"spec": {"paused": True, "replicas": 4, **image("v2")["spec"]}}, "default")

    async def paused() -> bool:
        found = (await live(kube)).status
        return found.available_replicas == 4 and any(c.reason == "DeploymentPaused" for c in found.conditions)

    await eventually(paused)
    assert {p.spec.containers[0].image for p in await pods()} == {"v1"}
    await kube.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}}, "default")
    await rolled_out("v2")


async def test_what_never_gets_ready_stops_the_rollout_and_is_said(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, pods: Pods, rolled_out: Any, eventually: Eventually
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=4, progressDeadlineSeconds=1)
    await rolled_out("v1")
    kubelet.judge = lambda pod: {"phase": "Running"} if pod.spec.containers[0].image == "bad" else None
    await kube.patch(DEPLOYMENTS, "web", image("bad"), "default")

    async def late() -> bool:
        return any(c.reason == "ProgressDeadlineExceeded" for c in (await live(kube)).status.conditions)

    await eventually(late)
    found = await live(kube)
    assert found.status.available_replicas >= 3
    assert len(await pods()) <= 5
    await kube.patch(DEPLOYMENTS, "web", image("v1"), "default")
    await rolled_out("v1")


async def test_a_name_that_is_taken_is_counted_and_another_one_found(
    kube: Client, workloads: Any, workload: Make, rolled_out: Any, eventually: Eventually
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=1)
    await rolled_out("v1")
    taken = (await kube.list(REPLICA_SETS)).items[0].metadata.name
    await kube.delete(DEPLOYMENTS, "web", "default", propagation="Foreground")

    async def gone() -> bool:
        return not (await kube.list(REPLICA_SETS)).items + (await kube.list(DEPLOYMENTS)).items

    await eventually(gone)
    await workload(
        REPLICA_SETS, taken, replicas=0, selector={"matchLabels": {"x": "y"}}, template=_template({"x": "y"})
    )
    await workload(DEPLOYMENTS, "web", replicas=1)
    found = await rolled_out("v1")
    assert found.status.collision_count == 1


def _template(labels: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "v1"}]}}


async def test_deleted_it_takes_all_with_it(
    kube: Client, workloads: Any, workload: Make, pods: Pods, rolled_out: Any, eventually: Eventually
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=2)
    await rolled_out("v1")
    await kube.delete(DEPLOYMENTS, "web", "default")

    async def gone() -> bool:
        return not await pods() and not (await kube.list(REPLICA_SETS)).items

    await eventually(gone)


async def test_deleted_without_its_sets_and_made_again_it_takes_them_back(
    kube: Client, workloads: Any, workload: Make, pods: Pods, rolled_out: Any, eventually: Eventually
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=2)
    await rolled_out("v1")
    before = {p.metadata.uid for p in await pods()}
    await kube.delete(DEPLOYMENTS, "web", "default", propagation="Orphan")

    async def orphaned() -> bool:
        sets = (await kube.list(REPLICA_SETS)).items
        return not (await kube.list(DEPLOYMENTS)).items and not sets[0].metadata.owner_references

    await eventually(orphaned)
    made = await workload(DEPLOYMENTS, "web", replicas=2)
    await rolled_out("v1")
    sets = (await kube.list(REPLICA_SETS)).items
    assert [s.metadata.controller_uid() for s in sets] == [made.metadata.uid]
    assert {p.metadata.uid for p in await pods()} == before


async def test_scaled_in_the_middle_of_a_rollout_both_sets_grow(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, rolled_out: Any, eventually: Eventually
) -> None:
    """The example of Kubernetes' documentation: 10 with a surge of 3 and 2 that may be missing, 8 + 5, scaled to 15."""
    await workload(DEPLOYMENTS, "web", replicas=10, strategy={"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}})
    await rolled_out("v1")
    kubelet.judge = lambda pod: {"phase": "Running"} if pod.spec.containers[0].image == "bad" else None
    await kube.patch(DEPLOYMENTS, "web", image("bad"), "default")

    async def sizes(old: int, new: int) -> bool:
        found = {s.metadata.annotations[names.REVISION]: s.spec.replicas for s in (await kube.list(REPLICA_SETS)).items}
        return found == {"1": old, "2": new}

    await eventually(lambda: sizes(8, 5))
    await kube.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 15}}, "default")
    await eventually(lambda: sizes(11, 7))
    kubelet.judge = lambda pod: None
    await kube.patch(DEPLOYMENTS, "web", image("v3"), "default")
    await rolled_out("v3")


async def test_annotations_of_5000_digits_stop_no_reconcile(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, rolled_out: Any
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=2)
    await rolled_out("v1")
    (old,) = (await kube.list(REPLICA_SETS, "default")).items
    digits = dict.fromkeys((names.REVISION, names.MAX_REPLICAS, names.DESIRED_REPLICAS), "9" * 5000)
    await kube.patch(REPLICA_SETS, old.metadata.name, {"metadata": {"annotations": digits}}, "default")
    await kube.patch(DEPLOYMENTS, "web", {"metadata": {"annotations": digits}}, "default")
    await kube.patch(DEPLOYMENTS, "web", image("v2"), "default")
    await rolled_out("v2")
