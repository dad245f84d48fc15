"""Quota: what counts, what is rejected, and that status says what is used."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.unit.box.apiserver.api import Api

from tonnage.kubernetes.api.quantity import NANO
from tonnage_box.apiserver.admission import quota, quota_controller

Obj = dict[str, Any]
CORE = "/api/v1/namespaces/default"
CLAIMS = f"{CORE}/persistentvolumeclaims"
GIB = 2**30 * NANO


def claim(name: str, size: str = "1Gi", **spec: Any) -> Obj:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}} | spec
    return {"metadata": {"name": name}, "spec": wanted}


def bounds(name: str = "q", **hard: str) -> Obj:
    return {"metadata": {"name": name}, "spec": {"hard": {k.replace("__", "."): v for k, v in hard.items()}}}


async def used(api: Api, name: str = "q") -> Obj:
    """The status of a quota once its keeper has had its turn."""
    for _ in range(5):
        await asyncio.sleep(0)
    status: Obj = (await api.get(f"{CORE}/resourcequotas/{name}"))["status"]
    return status


@pytest.mark.parametrize(
    ("collection", "obj", "counts"),
    [
        pytest.param(
            "persistentvolumeclaims",
            claim("c", storageClassName="fast"),
            {
                "count/persistentvolumeclaims": NANO,
                "persistentvolumeclaims": NANO,
                "requests.storage": GIB,
                "fast.storageclass.storage.k8s.io/persistentvolumeclaims": NANO,
                "fast.storageclass.storage.k8s.io/requests.storage": GIB,
            },
            id="claim of a class",
        ),
        pytest.param(
            "persistentvolumeclaims",
            claim("c", "1Gi") | {"status": {"allocatedResources": {"storage": "2Gi"}}},
            {"count/persistentvolumeclaims": NANO, "persistentvolumeclaims": NANO, "requests.storage": 2 * GIB},
            id="claim whose growth is under way",
        ),
        pytest.param(
            "persistentvolumeclaims",
            claim("c", "100500m"),
            {"count/persistentvolumeclaims": NANO, "persistentvolumeclaims": NANO, "requests.storage": 101 * NANO},
            id="claim of a fraction of a byte",
        ),
        pytest.param("configmaps", {}, {"count/configmaps": NANO, "configmaps": NANO}, id="config map"),
        pytest.param("coordination.k8s.io/leases", {}, {"count/leases.coordination.k8s.io": NANO}, id="of a group"),
        pytest.param("pods", {"status": {"phase": "Failed"}}, {"count/pods": NANO}, id="pod that has ended"),
        pytest.param(
            "pods",
            {
                "spec": {
                    "containers": [{"resources": {"requests": {"cpu": "1"}}}] * 2,
                    "initContainers": [{"resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}}],
                }
            },
            {"count/pods": NANO, "pods": NANO, "requests.cpu": 3 * NANO, "cpu": 3 * NANO, "limits.cpu": 4 * NANO},
            id="pod with an init container that asks for more",
        ),
        pytest.param(
            "pods",
            {"spec": {"containers": [{"resources": {"requests": {"a.b/gpu": "2"}}}]}},
            {"count/pods": NANO, "pods": NANO, "requests.a.b/gpu": 2 * NANO, "a.b/gpu": 2 * NANO},
            id="pod with an extended resource",
        ),
    ],
)
def test_what_counts(collection: str, obj: Obj, counts: Obj) -> None:
    assert quota.usage(collection, obj) == counts


@pytest.mark.parametrize(
    ("amount", "resource", "shown"),
    [
        pytest.param(GIB, "requests.storage", "1Gi", id="bytes"),
        pytest.param(2 * 10**9 * NANO, "requests.storage", "2G", id="decimal bytes"),
        pytest.param(1024 * NANO, "pods", "1024", id="a count has no Ki"),
        pytest.param(NANO // 2, "requests.cpu", "500m", id="half a cpu"),
        pytest.param(0, "requests.storage", "0", id="nothing"),
    ],
)
def test_how_amounts_are_shown(amount: int, resource: str, shown: str) -> None:
    quota_object = {"spec": {"hard": {resource: "1"}}}
    assert quota.status(quota_object, {resource: amount})["used"] == {resource: shown}


async def test_storage_beyond_the_quota_is_rejected_in_the_words_of_kubernetes(api: Api) -> None:
    await api.create(f"{CORE}/resourcequotas", bounds(requests__storage="4Gi"))
    status = await api.create(CLAIMS, claim("c", "5Gi"), want=403)
    assert status["message"] == (
        'persistentvolumeclaims "c" is forbidden: exceeded quota: q, requested: requests.storage=5Gi, '
        "used: requests.storage=0, limited: requests.storage=4Gi"
    )
    assert status["reason"] == "Forbidden"


async def test_status_follows_what_comes_and_goes(api: Api) -> None:
    await api.create(f"{CORE}/resourcequotas", bounds(requests__storage="4Gi", persistentvolumeclaims="2"))
    assert (await used(api))["used"] == {"requests.storage": "0", "persistentvolumeclaims": "0"}
    await api.create(CLAIMS, claim("c", "3Gi"))
    assert await used(api) == {
        "hard": {"requests.storage": "4Gi", "persistentvolumeclaims": "2"},
        "used": {"requests.storage": "3Gi", "persistentvolumeclaims": "1"},
    }
    await api.create(CLAIMS, claim("d", "2Gi"), want=403)
    await api.delete(f"{CLAIMS}/c")
    assert (await used(api))["used"]["requests.storage"] == "3Gi"  # held by its finalizer
    await api.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": None}})
    assert (await used(api))["used"] == {"requests.storage": "0", "persistentvolumeclaims": "0"}
    await api.create(CLAIMS, claim("d", "4Gi"))


async def test_what_was_there_before_the_quota_counts(api: Api) -> None:
    await api.create(CLAIMS, claim("c", "3Gi"))
    await api.create(f"{CORE}/resourcequotas", bounds(requests__storage="4Gi"))
    assert (await used(api))["used"] == {"requests.storage": "3Gi"}
    await api.create(CLAIMS, claim("d", "2Gi"), want=403)


async def test_of_many_that_ask_at_once_only_those_that_fit_get_in(api: Api) -> None:
    await api.create(f"{CORE}/resourcequotas", bounds(requests__storage="3Gi"))
    answers = await asyncio.gather(*(api.send("POST", CLAIMS, claim(f"c{i}")) for i in range(10)))
    assert sorted(a.status for a in answers) == [201] * 3 + [403] * 7


async def test_a_class_has_bounds_of_its_own(api: Api) -> None:
    await api.create(
        f"{CORE}/resourcequotas", bounds(**{"fast.storageclass.storage.k8s.io/persistentvolumeclaims": "0"})
    )
    await api.create(CLAIMS, claim("c", storageClassName="slow"))
    status = await api.create(CLAIMS, claim("d", storageClassName="fast"), want=403)
    resource = "fast.storageclass.storage.k8s.io/persistentvolumeclaims"
    assert f"requested: {resource}=1, used: {resource}=0, limited: {resource}=0" in status["message"]


async def test_growth_is_counted(api: Api) -> None:
    row = {"metadata": {"name": "fast"}, "provisioner": "p", "allowVolumeExpansion": True}
    await api.create("/apis/storage.k8s.io/v1/storageclasses", row)
    await api.create(f"{CORE}/resourcequotas", bounds(requests__storage="4Gi"))
    await api.create(CLAIMS, claim("c", "3Gi", storageClassName="fast"))
    await api.patch(f"{CLAIMS}/c/status", {"status": {"phase": "Bound", "capacity": {"storage": "3Gi"}}})
    status = await api.patch(f"{CLAIMS}/c", {"spec": {"resources": {"requests": {"storage": "5Gi"}}}}, want=403)
    assert (
        "requested: requests.storage=2Gi, used: requests.storage=3Gi, limited: requests.storage=4Gi"
        in status["message"]
    )
    await api.patch(f"{CLAIMS}/c", {"spec": {"resources": {"requests": {"storage": "4Gi"}}}})
    assert (await used(api))["used"] == {"requests.storage": "4Gi"}


async def test_pods_must_say_what_the_quota_bounds(api: Api) -> None:
    await api.create(f"{CORE}/resourcequotas", bounds(requests__cpu="1"))
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    status = await api.create(f"{CORE}/pods", pod, want=403)
    assert status["message"] == 'pods "p" is forbidden: failed quota: q: must specify requests.cpu for: c'


async def test_a_namespace_without_quota_is_not_even_counted(api: Api) -> None:
    await api.create(CLAIMS, claim("c"))
    assert api.server._quota._used == {}


async def reached(api: Api, want: Obj) -> None:
    """Wait until the status of the quota says this."""
    async with asyncio.timeout(60):
        while (await api.get(f"{CORE}/resourcequotas/q")).get("status", {}).get("used") != want:
            await asyncio.sleep(0.001)


async def test_the_many_objects_of_a_namespace_are_counted_in_slices(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(600):
        await api.create(f"{CORE}/configmaps", {"metadata": {"name": f"c{n}"}})
    slices: list[int] = []
    difference = quota_controller._difference

    def counted(changes: Any) -> Any:
        slices.append(len(changes))
        return difference(changes)

    monkeypatch.setattr(quota_controller, "_difference", counted)
    making = asyncio.ensure_future(api.create(f"{CORE}/resourcequotas", bounds(configmaps="601")))
    while not api.server._quota._used:
        await asyncio.sleep(0)
    # Both are made while the others are counted, and wait for that.
    answers = await asyncio.gather(
        *(api.send("POST", f"{CORE}/configmaps", {"metadata": {"name": f"d{n}"}}) for n in range(2)), making
    )
    assert sorted(answer.status for answer in answers[:2]) == [201, 403]
    await reached(api, {"configmaps": "601"})
    assert max(slices) <= quota_controller._SLICE
    assert sum(slices) >= 601


@pytest.mark.parametrize("containers", [1, 2000])  # counted at once, and in a thread
async def test_pods_of_any_size_count(api: Api, containers: int) -> None:
    await api.create(f"{CORE}/resourcequotas", bounds(requests__cpu="2k", pods="2"))
    resources = {"requests": {"cpu": "500m"}}
    spec = {"containers": [{"name": f"c{n}", "image": "i", "resources": resources} for n in range(containers)]}
    for name in "ab":
        await api.create(f"{CORE}/pods", {"metadata": {"name": name}, "spec": spec})
    await reached(api, {"requests.cpu": "1" if containers == 1 else "2k", "pods": "2"})
    assert (await api.create(f"{CORE}/pods", {"metadata": {"name": "c"}, "spec": spec}, want=403))["reason"]
    for name in "ab":
        await api.delete(f"{CORE}/pods/{name}")
    await reached(api, {"requests.cpu": "0", "pods": "0"})


async def test_a_quota_that_goes_while_it_is_counted_leaves_nothing(api: Api) -> None:
    for n in range(300):
        await api.create(f"{CORE}/configmaps", {"metadata": {"name": f"c{n}"}})
    quotas = api.server._quota
    for _ in range(5):
        await api.create(f"{CORE}/resourcequotas", bounds(configmaps="1k"))
        await api.delete(f"{CORE}/resourcequotas/q")
        assert quotas._used == {}
    await api.create(f"{CORE}/resourcequotas", bounds(configmaps="1k"))
    await reached(api, {"configmaps": "300"})


async def test_limits_hold_for_pods_with_many_containers(api: Api) -> None:
    limit = {"type": "Container", "defaultRequest": {"cpu": "1"}, "max": {"cpu": "2"}}
    await api.create(f"{CORE}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [limit]}})
    containers: list[Any] = [{"name": f"c{n}", "image": "i"} for n in range(1000)]
    for container in containers:
        container["resources"] = {"limits": {"cpu": "2"}}
    made = await api.create(f"{CORE}/pods", {"metadata": {"name": "a"}, "spec": {"containers": containers}})
    assert len(made["spec"]["containers"]) == 1000
    containers[-1]["resources"] = {"limits": {"cpu": "3"}}
    answer = await api.create(f"{CORE}/pods", {"metadata": {"name": "b"}, "spec": {"containers": containers}}, want=403)
    assert "maximum cpu usage per Container is 2, but request is 3" in answer["message"]


def _scoped(operator: str, *values: str, name: str = "q", **hard: str) -> Obj:
    requirement = {"scopeName": "VolumeAttributesClass", "operator": operator, "values": list(values)}
    found = bounds(name, **hard)
    found["spec"]["scopeSelector"] = {"matchExpressions": [requirement]}
    return found


@pytest.mark.parametrize(
    ("operator", "values", "counted"),
    [
        ("In", ["gold"], ["gold", "moving"]),
        ("In", ["gold", "silver"], ["gold", "silver", "moving"]),
        ("NotIn", ["gold"], ["plain", "silver", "moving"]),
        ("Exists", [], ["gold", "silver", "moving"]),
        ("DoesNotExist", [], ["plain"]),
    ],
)
def test_a_scope_counts_claims_by_their_attributes_classes(
    operator: str, values: list[str], counted: list[str]
) -> None:
    """moving: from gold to silver; it counts for both, and once for a quota of both."""
    moving = {"currentVolumeAttributesClassName": "gold"}
    claims = {
        "plain": claim("plain", "1Gi"),
        "gold": claim("gold", "2Gi", volumeAttributesClassName="gold"),
        "silver": claim("silver", "4Gi", volumeAttributesClassName="silver"),
        "moving": claim("moving", "8Gi", volumeAttributesClassName="silver") | {"status": moving},
    }
    sizes = {"plain": 1, "gold": 2, "silver": 4, "moving": 8}
    total = Counter[str]()
    for each in claims.values():
        total.update(quota.usage("persistentvolumeclaims", each))
    bound = _scoped(operator, *values, requests__storage="1Ti", persistentvolumeclaims="10")
    used = quota.status(bound, total)["used"]
    assert used == {
        "requests.storage": f"{sum(sizes[name] for name in counted)}Gi",
        "persistentvolumeclaims": str(len(counted)),
    }
    assert quota.status(bounds(requests__storage="1Ti"), total)["used"] == {"requests.storage": "15Gi"}


async def test_a_quota_of_a_class_rejects_claims_that_take_it_at_first_or_later(api: Api) -> None:
    await api.create(f"{CORE}/resourcequotas", _scoped("In", "gold", persistentvolumeclaims="1"))
    await api.create(CLAIMS, claim("plain"))
    await api.create(CLAIMS, claim("a", volumeAttributesClassName="gold"))
    assert (await used(api))["used"] == {"persistentvolumeclaims": "1"}
    rejected = await api.create(CLAIMS, claim("b", volumeAttributesClassName="gold"), want=403)
    assert (
        "exceeded quota: q, requested: persistentvolumeclaims=1, used: persistentvolumeclaims=1" in rejected["message"]
    )
    await api.patch(f"{CLAIMS}/plain/status", {"status": {"phase": "Bound"}})
    to_gold = {"spec": {"volumeAttributesClassName": "gold"}}
    await api.patch(f"{CLAIMS}/plain", to_gold, want=403)
    # From gold to another: it counts until it has that, and a status is never rejected.
    status = {"phase": "Bound", "currentVolumeAttributesClassName": "gold"}
    await api.patch(f"{CLAIMS}/a/status", {"status": status})
    await api.patch(f"{CLAIMS}/a", {"spec": {"volumeAttributesClassName": "silver"}})
    await api.patch(f"{CLAIMS}/plain", to_gold, want=403)
    await api.patch(f"{CLAIMS}/a/status", {"status": {"currentVolumeAttributesClassName": "silver"}})
    assert (await used(api))["used"] == {"persistentvolumeclaims": "0"}
    await api.patch(f"{CLAIMS}/plain", to_gold)
    change = {"status": "InProgress", "targetVolumeAttributesClassName": "gold"}
    await api.patch(f"{CLAIMS}/a/status", {"status": {"modifyVolumeStatus": change}})
