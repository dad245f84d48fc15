"""Evictions and the budgets that stand against them. The budgets' status is written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

Obj = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LABELS = {"app": "web"}


async def pod(api: Api, name: str = "p", *, phase: str = "Running", ready: bool = True) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 0}
    await api.create(PODS, {"metadata": {"name": name, "labels": LABELS}, "spec": spec})
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    await api.patch(f"{PODS}/{name}/status", {"status": {"phase": phase, "conditions": conditions}})


async def budget(api: Api, allowed: int, name: str = "b", *, status: Obj | None = None, **spec: Any) -> None:
    wanted = {"minAvailable": 1, "selector": {"matchLabels": LABELS}} | spec
    made = await api.create(BUDGETS, {"metadata": {"name": name}, "spec": wanted})
    counted = {"observedGeneration": made["metadata"]["generation"], "disruptionsAllowed": allowed}
    counted |= {"currentHealthy": 1 + allowed, "desiredHealthy": 1, "expectedPods": 2} | (status or {})
    await api.patch(f"{BUDGETS}/{name}/status", {"status": counted})


async def evict(api: Api, name: str = "p", want: int = 201, **more: Any) -> Obj:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **more}
    answer: Obj = await api.create(f"{PODS}/{name}/eviction", body, want=want)
    return answer


async def test_without_a_budget_it_is_a_deletion(api: Api) -> None:
    await pod(api)
    await evict(api)
    await api.get(f"{PODS}/p", want=404)


async def test_a_budget_is_used_up(api: Api) -> None:
    await pod(api, "one")
    await pod(api, "two")
    await budget(api, 1)
    await evict(api, "one")
    status = (await api.get(f"{BUDGETS}/b"))["status"]
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["one"])

    told = await evict(api, "two", want=429)
    assert told["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    (cause,) = told["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"] == "The disruption budget b needs 1 healthy pods and has 2 currently"
    await api.get(f"{PODS}/two")


async def test_a_budget_that_is_not_counted_yet(api: Api) -> None:
    await pod(api)
    await budget(api, 1, status={"observedGeneration": 0})
    told = await evict(api, want=429)
    assert told["details"]["retryAfterSeconds"] == 10
    assert "still being processed" in told["details"]["causes"][0]["message"]


async def test_two_budgets_are_one_too_many(api: Api) -> None:
    await pod(api)
    await budget(api, 1, "one")
    await budget(api, 1, "two")
    assert "more than one PodDisruptionBudget" in (await evict(api, want=500))["message"]


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
async def test_what_does_not_run_is_not_counted(api: Api, phase: str) -> None:
    await pod(api, phase=phase)
    await budget(api, 0)
    await evict(api)
    await api.get(f"{PODS}/p", want=404)


@pytest.mark.parametrize(
    ("policy", "healthy", "want"),
    [("AlwaysAllow", 0, 201), ("IfHealthyBudget", 0, 429), ("IfHealthyBudget", 1, 201), (None, 1, 201)],
)
async def test_pods_that_are_not_ready(api: Api, policy: str | None, healthy: int, want: int) -> None:
    await pod(api, ready=False)
    more = {"unhealthyPodEvictionPolicy": policy} if policy else {}
    await budget(api, 0, status={"currentHealthy": healthy}, **more)
    await evict(api, want=want)


async def test_the_pod_is_told_why(api: Api) -> None:
    await pod(api)
    await api.patch(f"{PODS}/p", {"metadata": {"finalizers": ["a.b/c"]}})
    await evict(api)
    found = await api.get(f"{PODS}/p")
    (told,) = [c for c in found["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (told["status"], told["reason"]) == ("True", "EvictionByEvictionAPI")
    assert found["metadata"]["deletionTimestamp"]


async def test_only_trying_changes_nothing(api: Api) -> None:
    await pod(api)
    await budget(api, 1)
    await evict(api, deleteOptions={"dryRun": ["All"]})
    assert (await api.get(f"{BUDGETS}/b"))["status"]["disruptionsAllowed"] == 1
    await api.get(f"{PODS}/p")


async def test_of_another_pod_of_that_name(api: Api) -> None:
    await pod(api)
    await evict(api, want=409, deleteOptions={"preconditions": {"uid": "another"}})
    await evict(api, "nobody", want=404)
