"""StatefulSets on a real API server: names, claims and what becomes of them, revisions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import CLAIMS, CONTROLLER_REVISIONS, PODS, STATEFUL_SETS
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import StatefulSet
from tonnage.kubernetes.client.client import Client
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
Pods = Callable[[], Awaitable[list[Pod]]]
CLAIM = {
    "metadata": {"name": "data", "labels": {"of": "template"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.fixture
def settled(kube: Client, pods: Pods, eventually: Eventually) -> Callable[..., Awaitable[StatefulSet]]:
    """Waits until all pods of `db` are ready and have that image."""

    async def wait(count: int, image: str = "v1") -> StatefulSet:
        async def done() -> StatefulSet | None:
            found = await kube.get(STATEFUL_SETS, "db", "default")
            status = found.status
            counts = {status.replicas, status.ready_replicas, status.updated_replicas, status.available_replicas}
            right = status.observed_generation == found.metadata.generation and counts == {count}
            same = status.current_revision == status.update_revision
            images = {p.spec.containers[0].image for p in await pods()}
            return found if right and same and images <= {image} and len(await pods()) == count else None

        found: StatefulSet = await eventually(done)
        return found

    return wait


async def lose(kube: Client, name: str) -> None:
    """Delete a claim, as it goes where nothing protects it."""
    await kube.delete(CLAIMS, name, "default")
    await kube.patch(CLAIMS, name, {"metadata": {"finalizers": None}}, "default")


async def claims(kube: Client) -> dict[str, Any]:
    return {c.metadata.name: c for c in (await kube.list(CLAIMS)).items}


async def test_pods_come_in_order_with_names_and_claims(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, pods: Pods, settled: Any
) -> None:
    await workload(STATEFUL_SETS, "db", replicas=3, serviceName="svc", volumeClaimTemplates=[CLAIM])
    found = await settled(3)

    order = [(f"db-{n}", what) for n in range(3) for what in ("added", "ready")]
    assert [(name, what) for what, name in kubelet.log] == order
    first = (await pods())[0]
    assert first.metadata.labels == {
        "app": "web",
        names.CONTROLLER_REVISION_HASH: found.status.update_revision,
        names.POD_NAME: "db-0",
        names.POD_INDEX: "0",
    }
    assert first.spec.hostname == "db-0"
    assert [v.persistent_volume_claim.claim_name for v in first.spec.volumes if v.persistent_volume_claim] == [
        "data-db-0"
    ]
    made = await claims(kube)
    assert set(made) == {"data-db-0", "data-db-1", "data-db-2"}
    assert made["data-db-0"].metadata.labels == {"app": "web", "of": "template"}
    assert made["data-db-0"].metadata.owner_references == []


async def test_a_size_with_a_fraction_of_a_byte_gets_its_pod(
    kube: Client, workloads: Any, workload: Make, settled: Any
) -> None:
    size = {"resources": {"requests": {"storage": "0.2Gi"}}}
    await workload(STATEFUL_SETS, "db", replicas=1, volumeClaimTemplates=[CLAIM | {"spec": CLAIM["spec"] | size}])
    await settled(1)
    assert (await claims(kube))["data-db-0"].spec.resources.requests == {"storage": "214748364800m"}


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
async def test_a_pending_pod_gets_a_claim_that_it_has_lost(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, pods: Pods, eventually: Eventually, policy: str
) -> None:
    kubelet.judge = lambda pod: {"phase": "Pending"}
    await workload(STATEFUL_SETS, "db", replicas=2, podManagementPolicy=policy, volumeClaimTemplates=[CLAIM])
    last = "data-db-1" if policy == "Parallel" else "data-db-0"
    for _ in range(2):
        await eventually(lambda: _in(last, claims(kube)))
        before = (await claims(kube))[last]
        uids = [pod.metadata.uid for pod in await pods()]
        await lose(kube, last)

        async def made(before: Any = before) -> bool:
            found = (await claims(kube)).get(last)
            return found is not None and found.metadata.uid != before.metadata.uid

        await eventually(made)
        assert [pod.metadata.uid for pod in await pods()] == uids, "the pod stays"


async def _in(name: str, found: Awaitable[dict[str, Any]]) -> bool:
    return name in await found


async def test_a_running_pod_gets_no_claim_anew(
    kube: Client, workloads: Any, workload: Make, settled: Any, eventually: Eventually
) -> None:
    """As in Kubernetes: it still has its volume."""
    await workload(STATEFUL_SETS, "db", replicas=1, volumeClaimTemplates=[CLAIM])
    await settled(1)
    await lose(kube, "data-db-0")
    await kube.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 2}}, "default")
    await settled(2)
    assert (await claims(kube)).keys() == {"data-db-1"}


async def test_claims_outlive_pods_and_the_set_by_default(
    kube: Client, workloads: Any, workload: Make, pods: Pods, settled: Any, eventually: Eventually
) -> None:
    await workload(STATEFUL_SETS, "db", replicas=2, volumeClaimTemplates=[CLAIM])
    await settled(2)
    uids = {name: c.metadata.uid for name, c in (await claims(kube)).items()}
    await kube.delete(PODS, "db-1", "default")
    await settled(2)
    await kube.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 0}}, "default")
    await settled(0)
    await kube.delete(STATEFUL_SETS, "db", "default")

    async def gone() -> bool:
        return not await pods() and not (await kube.list(CONTROLLER_REVISIONS)).items

    await eventually(gone)
    assert {name: c.metadata.uid for name, c in (await claims(kube)).items()} == uids


async def test_scaled_down_claims_go_and_come_back_empty(
    kube: Client, workloads: Any, workload: Make, settled: Any, eventually: Eventually
) -> None:
    """The finalizer of claims in use is not taken off here, so that the new pod must wait for the old claim."""
    policy = {"whenScaled": "Delete"}
    await workload(
        STATEFUL_SETS,
        "db",
        replicas=2,
        volumeClaimTemplates=[CLAIM],
        persistentVolumeClaimRetentionPolicy=policy,
    )
    await settled(2)
    before = (await claims(kube))["data-db-1"]
    await kube.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}}, "default")
    await settled(1)

    async def leaving() -> bool:
        return bool((await claims(kube))["data-db-1"].metadata.deleting)

    await eventually(leaving)
    assert not (await claims(kube))["data-db-0"].metadata.deleting
    await kube.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 2}}, "default")
    await kube.patch(CLAIMS, "data-db-1", {"metadata": {"finalizers": None}}, "default")
    await settled(2)
    assert (await claims(kube))["data-db-1"].metadata.uid != before.metadata.uid


async def test_deleted_with_the_set_when_asked(
    kube: Client, workloads: Any, workload: Make, settled: Any, eventually: Eventually
) -> None:
    """Also where the policy comes later than the claims, and not when it is taken back."""
    await workload(STATEFUL_SETS, "db", replicas=2, volumeClaimTemplates=[CLAIM])
    found = await settled(2)

    async def owned_by(uids: set[str]) -> bool:
        refs = [{r.uid for r in c.metadata.owner_references} for c in (await claims(kube)).values()]
        return refs == [uids, uids]

    for policy, uids in (("Delete", {found.metadata.uid}), ("Retain", set()), ("Delete", {found.metadata.uid})):
        retention = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy}}
        await kube.patch(STATEFUL_SETS, "db", {"spec": retention}, "default")
        await eventually(lambda uids=uids: owned_by(uids))
    await kube.delete(STATEFUL_SETS, "db", "default")

    async def leaving() -> bool:
        return all(c.metadata.deleting for c in (await claims(kube)).values())

    await eventually(leaving)


async def test_rolled_out_from_the_top_and_back_again(
    kube: Client, workloads: Any, workload: Make, kubelet: Any, settled: Any
) -> None:
    await workload(STATEFUL_SETS, "db", replicas=3)
    first = await settled(3)
    kubelet.log.clear()
    template = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "v2"}]}}}}
    await kube.patch(STATEFUL_SETS, "db", template, "default")
    second = await settled(3, "v2")

    assert [name for what, name in kubelet.log if what == "gone"] == ["db-2", "db-1", "db-0"]
    revisions = {r.revision: r for r in (await kube.list(CONTROLLER_REVISIONS)).items}
    assert {n: r.metadata.name for n, r in revisions.items()} == {
        1: first.status.update_revision,
        2: second.status.update_revision,
    }
    await kube.patch(STATEFUL_SETS, "db", {"spec": {"template": _plain(revisions[1].data)}}, "default")
    third = await settled(3, "v1")
    assert third.status.update_revision == first.status.update_revision
    assert sorted(r.revision for r in (await kube.list(CONTROLLER_REVISIONS)).items) == [2, 3]


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data["spec"]["template"].items() if key != "$patch"}


async def test_only_so_many_revisions_are_kept(
    kube: Client, workloads: Any, workload: Make, settled: Any, eventually: Eventually
) -> None:
    await workload(STATEFUL_SETS, "db", replicas=1, revisionHistoryLimit=1)
    for number in range(1, 5):
        template = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": f"v{number}"}]}}}}
        await kube.patch(STATEFUL_SETS, "db", template, "default")
        await settled(1, f"v{number}")

    async def kept() -> bool:
        return sorted(r.revision for r in (await kube.list(CONTROLLER_REVISIONS)).items) == [3, 4]

    await eventually(kept)
