"""Pods of nodes that are no more."""

from __future__ import annotations

from typing import Any

from tests.unit.fixture_types import Settle

from tonnage.base.errors import ApiNotFoundError
from tonnage.kubernetes.api.kinds import NODES, PODS
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage_box.controllers.pod_gc import QUARANTINE, PodGarbageCollector
from tonnage_box.testing.clock import ManualClock


async def _pod(kube: Client, name: str, node: str, **meta: Any) -> None:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
    await kube.create(PODS, {"metadata": {"name": name, **meta}, "spec": spec}, "default")


async def _exists(kube: Client, name: str) -> bool:
    try:
        await kube.get(PODS, name, "default")
    except ApiNotFoundError:
        return False
    return True


async def test_pods_go_when_their_node_was_gone_for_long_enough(
    kube: Client, informers: Informers, manual_clock: ManualClock, settle: Settle
) -> None:
    collector = PodGarbageCollector(kube, informers, clock=manual_clock)
    await kube.create(NODES, {"metadata": {"name": "a"}})
    await _pod(kube, "on-a", "a")
    await _pod(kube, "on-b", "b", finalizers=["x/y"])
    await settle()
    assert await collector.reconcile("a") is None
    assert await collector.reconcile("b") == QUARANTINE
    manual_clock.now += QUARANTINE - 1
    assert await collector.reconcile("b") == 1
    manual_clock.now += 1
    assert await collector.reconcile("b") is None
    pod = await kube.get(PODS, "on-b", "default")
    assert (pod.status.phase, pod.metadata.deleting) == ("Failed", True)
    (mark,) = [c for c in pod.status.conditions if c.type == "DisruptionTarget"]
    assert (mark.status, mark.reason, mark.message) == ("True", "DeletionByPodGC", "PodGC: node no longer exists")
    await kube.delete(NODES, "a")
    await settle()
    assert await collector.reconcile("a") == QUARANTINE
    manual_clock.now += QUARANTINE
    await collector.reconcile("a")
    assert not await _exists(kube, "on-a")


async def test_a_node_that_comes_back_keeps_its_pods(
    kube: Client, informers: Informers, manual_clock: ManualClock, settle: Settle
) -> None:
    collector = PodGarbageCollector(kube, informers, clock=manual_clock)
    await _pod(kube, "p", "a")
    await settle()
    await collector.reconcile("a")
    manual_clock.now += QUARANTINE
    await kube.create(NODES, {"metadata": {"name": "a"}})  # the watch has not shown it
    await collector.reconcile("a")
    await settle()
    assert await collector.reconcile("a") is None
    await kube.delete(NODES, "a")
    await settle()
    assert await collector.reconcile("a") == QUARANTINE, "the time counts anew"
    assert await _exists(kube, "p")


async def test_only_pods_that_are_being_deleted_go_from_a_node_that_is_out_of_service(
    kube: Client, informers: Informers, manual_clock: ManualClock, settle: Settle
) -> None:
    collector = PodGarbageCollector(kube, informers, clock=manual_clock)
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    await kube.create(NODES, {"metadata": {"name": "a"}, "spec": {"taints": [taint]}})
    for name in ("stays", "goes"):
        await _pod(kube, name, "a")
        await kube.patch(PODS, name, {"status": {"phase": "Running"}}, "default", subresource="status")
    await kube.delete(PODS, "goes", "default", grace_seconds=30)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await kube.patch(NODES, "a", ready, subresource="status")
    await settle()
    await collector.reconcile("a")
    assert await _exists(kube, "goes"), "its kubelet ends it"
    ready["status"]["conditions"][0]["status"] = "Unknown"
    await kube.patch(NODES, "a", ready, subresource="status")
    await settle()
    await collector.reconcile("a")
    assert (await _exists(kube, "goes"), await _exists(kube, "stays")) == (False, True)
