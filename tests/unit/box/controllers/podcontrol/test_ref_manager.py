"""Controller references: what an owner adopts, releases, and hears of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tonnage.base.errors import InvalidError, PreconditionError
from tonnage.kubernetes.api.kinds import PODS, REPLICA_SETS
from tonnage.kubernetes.api.meta import LabelSelector, ObjectMeta, OwnerReference
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.api.workloads import ReplicaSet, ReplicaSetSpec
from tonnage.kubernetes.client.cache import Cache
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.podcontrol.expectations import Dependents
from tonnage_box.controllers.podcontrol.ref_manager import Adopter, compiled, owner_keys

WEB = LabelSelector(match_labels={"app": "web"})
Settle = Callable[[], Awaitable[None]]


async def make_set(kube: Client) -> ReplicaSet:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    return await kube.create(REPLICA_SETS, {"metadata": {"name": "web"}, "spec": spec}, "default")


async def make_pod(kube: Client, name: str, app: str) -> Pod:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return await kube.create(PODS, {"metadata": {"name": name, "labels": {"app": app}}, "spec": spec}, "default")


async def test_matching_orphans_are_adopted_and_released_when_they_no_longer_match(
    kube: Client, informers: Informers, settle: Settle
) -> None:
    adopter = Adopter(kube, PODS, REPLICA_SETS, Dependents(informers.of(PODS)), finalizer="example.com/f")
    owner = await make_set(kube)
    await make_pod(kube, "mine", "web")
    await make_pod(kube, "other", "db")
    await settle()
    assert [pod.metadata.name for pod in await adopter.claim(owner, WEB)] == ["mine"]
    live = await kube.get(PODS, "mine", "default")
    assert live.metadata.controller_uid() == owner.metadata.uid
    assert live.metadata.finalizers == ["example.com/f"]
    await kube.patch(PODS, "mine", {"metadata": {"labels": {"app": "db"}}}, "default")
    await settle()
    assert await adopter.claim(owner, WEB) == []
    live = await kube.get(PODS, "mine", "default")
    assert (live.metadata.owner_references, live.metadata.finalizers) == ([], [])


async def test_an_owner_that_was_deleted_meanwhile_adopts_nothing(
    kube: Client, informers: Informers, settle: Settle
) -> None:
    adopter = Adopter(kube, PODS, REPLICA_SETS, Dependents(informers.of(PODS)))
    owner = await make_set(kube)
    await make_pod(kube, "a", "web")
    await settle()
    await kube.delete(REPLICA_SETS, "web", "default")
    await make_set(kube)
    with pytest.raises(PreconditionError, match="it adopts nothing"):
        await adopter.claim(owner, WEB)
    assert (await kube.get(PODS, "a", "default")).metadata.owner_references == []


def test_an_empty_selector_takes_nothing() -> None:
    with pytest.raises(InvalidError, match="an empty selector"):
        compiled(LabelSelector())


def test_a_change_concerns_its_controller_before_and_after_and_those_that_would_take_it() -> None:
    owners: Cache[ReplicaSet] = Cache()
    owners.put(ReplicaSet(metadata=ObjectMeta(name="web", namespace="n"), spec=ReplicaSetSpec(selector=WEB)))
    keys = owner_keys(REPLICA_SETS, owners, lambda one: one.spec.selector)

    def pod(*controllers: str) -> Pod:
        references = [
            OwnerReference(api_version="apps/v1", kind="ReplicaSet", name=name, controller=True) for name in controllers
        ]
        return Pod(metadata=ObjectMeta(name="p", namespace="n", labels={"app": "web"}, owner_references=references))

    assert keys(pod("a"), pod("b")) == ["n/a", "n/b"]
    assert keys(pod("a"), None) == ["n/a"]
    assert keys(pod("a"), pod()) == ["n/a", "n/web"]
    assert owner_keys(REPLICA_SETS, owners, None)(None, pod()) == []
