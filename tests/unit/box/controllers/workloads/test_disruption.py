"""PodDisruptionBudgets: counted from pods and their owners, kept up to date, and used by evictions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.fixture_types import Told

from tonnage.base.errors import ApiError
from tonnage.kubernetes.api.kinds import CONFIG_MAPS, DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, REPLICA_SETS
from tonnage.kubernetes.api.meta import Condition, LabelSelector, ObjectMeta
from tonnage.kubernetes.api.pods import Pod, PodStatus
from tonnage.kubernetes.api.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from tonnage.kubernetes.api.selectors import Selector, from_label_selector
from tonnage.kubernetes.client.client import Client
from tonnage_box.controllers.podcontrol.pod_template import owner_reference
from tonnage_box.controllers.workloads import disruption
from tonnage_box.controllers.workloads.disruption import BudgetCount, count
from tonnage_box.testing.wait import Eventually

Make = Callable[..., Awaitable[Any]]
LABELS = {"app": "web"}


def pod(name: str, *, ready: bool = True, deleting: bool = False) -> Pod:
    meta = ObjectMeta(name=name, namespace="default", deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None)
    return Pod(
        metadata=meta, status=PodStatus(conditions=[Condition(type="Ready", status="True" if ready else "False")])
    )


@pytest.mark.parametrize(
    ("spec", "expected", "desired"),
    [
        ({"min_available": 2}, 3, 2),
        ({"min_available": "50%"}, 10, 5),
        ({"min_available": "51%"}, 10, 6),
        ({"max_unavailable": 1}, 10, 9),
        ({"max_unavailable": "25%"}, 10, 7),
        ({"max_unavailable": 20}, 10, 0),
        ({}, 3, 0),
    ],
)
def test_what_must_stay(spec: dict[str, Any], expected: int, desired: int) -> None:
    budget = PodDisruptionBudget(spec=PodDisruptionBudgetSpec(**spec))
    found = count(budget, [pod("a"), pod("b"), pod("c", ready=False)], lambda pods: 10, 0.0)
    assert (found.expected, found.desired, found.healthy) == (expected, desired, 2)
    assert found.allowed == max(0, 2 - desired)


def test_no_pods_allow_nothing() -> None:
    assert BudgetCount(expected=0, desired=0, healthy=0, disrupted={}).allowed == 0


def test_the_evicted_are_remembered_until_they_are_seen_to_go() -> None:
    since = dict.fromkeys(("going", "gone", "still"), "1970-01-01T00:00:00Z")
    budget = PodDisruptionBudget(
        spec=PodDisruptionBudgetSpec(min_available=1), status=PodDisruptionBudgetStatus(disrupted_pods=since)
    )
    pods = [pod("going", deleting=True), pod("still"), pod("other")]
    found = count(budget, pods, len, 119.0)
    assert (list(found.disrupted), found.healthy, found.allowed) == (["still"], 1, 0)
    assert count(budget, pods, len, 120.0).disrupted == {}


async def status(kube: Client) -> Any:
    return (await kube.get(DISRUPTION_BUDGETS, "web", "default")).status


async def make_pod(kube: Client, name: str, **meta: Any) -> None:
    containers = [{"name": "main", "image": "none"}]
    body = {"metadata": {"name": name, "labels": LABELS, **meta}, "spec": {"containers": containers}}
    await kube.create(PODS, body, "default")


async def make_budget(kube: Client, **spec: Any) -> None:
    body = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": LABELS}, **spec}}
    await kube.create(DISRUPTION_BUDGETS, body, "default")


async def test_a_deployment_keeps_as_many_as_it_must(
    kube: Client, workloads: Any, workload: Make, pods: Any, eventually: Eventually
) -> None:
    await workload(DEPLOYMENTS, "web", replicas=3)
    await make_budget(kube, maxUnavailable=1)

    async def settled() -> bool:
        found = await status(kube)
        return (found.expected_pods, found.current_healthy, found.disruptions_allowed) == (3, 3, 1)

    await eventually(settled)
    for _ in range(3):  # never more than one at once; each is made anew
        await eventually(settled)
        victim = (await pods())[0].metadata.name
        await evict(kube, victim)
        found = await status(kube)
        assert found.desired_healthy == 2

    await eventually(settled)


async def evict(kube: Client, name: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    await kube.post(PODS.path("default", name, "eviction"), body)


async def test_pods_without_owner(kube: Client, workloads: Any, eventually: Eventually) -> None:
    for name in ("one", "two"):
        await make_pod(kube, name)
    await make_budget(kube, minAvailable=2)

    async def settled() -> bool:
        return bool((await status(kube)).current_healthy == 2)

    await eventually(settled)
    with pytest.raises(ApiError) as rejected:
        await evict(kube, "one")
    assert rejected.value.code == 429

    await kube.patch(DISRUPTION_BUDGETS, "web", {"spec": {"minAvailable": 1}}, "default")

    async def allowed() -> bool:
        return bool((await status(kube)).disruptions_allowed == 1)

    await eventually(allowed)
    await evict(kube, "one")


async def test_owners_without_a_number_of_pods_allow_nothing(
    kube: Client, workloads: Any, told: Told, eventually: Eventually
) -> None:
    thing = await kube.create(CONFIG_MAPS, {"metadata": {"name": "thing"}}, "default")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "thing", "uid": thing.metadata.uid, "controller": True}
    await make_pod(kube, "one", ownerReferences=[owner])
    await make_budget(kube, maxUnavailable=1)

    async def failed() -> bool:
        found = await status(kube)
        return any(c.reason == "SyncFailed" for c in found.conditions) and found.disruptions_allowed == 0

    await eventually(failed)
    assert "CalculateExpectedPodCountFailed" in [reason for _, _, reason, _ in await told()]


@pytest.mark.parametrize("chain", [("one",), ("one", "two"), ("one", "two", "three")])
async def test_owners_in_a_cycle_count_as_the_replica_sets_that_they_are(
    kube: Client, workloads: Any, workload: Make, eventually: Eventually, chain: tuple[str, ...]
) -> None:
    made = [await workload(REPLICA_SETS, name, replicas=2) for name in chain]
    for one, above in zip(made, [*made[1:], made[0]], strict=True):
        owner = owner_reference(REPLICA_SETS, above)
        await kube.patch(REPLICA_SETS, one.metadata.name, {"metadata": {"ownerReferences": [owner]}}, "default")
    await make_budget(kube, maxUnavailable=1)

    async def settled() -> bool:
        found = await status(kube)
        return (found.expected_pods, found.current_healthy) == (2 * len(chain), 2 * len(chain))

    await eventually(settled)


async def test_a_replica_set_of_an_unknown_kind_counts_itself(
    kube: Client, workloads: Any, workload: Make, eventually: Eventually
) -> None:
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web", "uid": "u", "controller": True}
    made = await workload(REPLICA_SETS, "web", replicas=2)
    await kube.patch(REPLICA_SETS, made.metadata.name, {"metadata": {"ownerReferences": [owner]}}, "default")
    await make_budget(kube, maxUnavailable=1)

    async def settled() -> bool:
        return bool((await status(kube)).expected_pods == 2)

    await eventually(settled)


async def test_a_selector_is_compiled_once_for_all_pods(
    kube: Client, workloads: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await make_pod(kube, f"p{number}")
    await make_budget(kube, minAvailable=2)

    async def settled(desired: int) -> bool:
        found = await status(kube)
        return (found.current_healthy, found.desired_healthy) == (20, desired)

    await eventually(lambda: settled(2))
    compiled = 0

    def counted(selector: LabelSelector) -> Selector:
        nonlocal compiled
        compiled += 1
        return from_label_selector(selector)

    monkeypatch.setattr(disruption, "from_label_selector", counted)
    await kube.patch(DISRUPTION_BUDGETS, "web", {"spec": {"minAvailable": 3}}, "default")
    await eventually(lambda: settled(3))
    assert 0 < compiled < 10
