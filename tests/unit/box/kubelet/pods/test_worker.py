"""Pod workers: a pod from its start to its tear-down, also when the kubelet was away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.box.kubelet.machine import NODE, Eventually

from tonnage.base.errors import HostError
from tonnage.kubernetes.api.kinds import NODES, PODS

CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}]


async def test_a_pod_that_never_mounted_goes(machine: Any, eventually: Eventually) -> None:
    await machine.pod("p", volumes=[{"name": "c", "configMap": {"name": "missing"}}])
    event = await machine.event("FailedMount")
    assert event.message == 'MountVolume.SetUp failed for volume "c" : configmap "missing" not found'
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_a_forced_deletion_cleans_up_afterwards(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_a_pod_deleted_while_the_kubelet_is_away_is_taken_down(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    await machine.kill()
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.start()
    await eventually(lambda: machine.left() == [])


async def test_a_restart_keeps_pods_as_they_are(machine: Any, eventually: Eventually) -> None:
    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    before = await machine.phase("p", "Running")
    await machine.restart()
    await eventually(lambda: machine.kubelet.drivers.names() != [])
    await asyncio.sleep(0.1)
    after = await machine.phase("p", "Running")
    assert after.metadata.resource_version == before.metadata.resource_version
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_what_is_left_out_is_said_once(machine: Any) -> None:
    await machine.pod("p", imagePullSecrets=[{"name": "s"}], securityContext={"seLinuxOptions": {"level": "s0"}})
    await machine.phase("p", "Running")
    event = await machine.event("NotSupported")
    label = "spec.securityContext.seLinuxOptions: has no effect: the box sets no SELinux labels"
    secrets = "spec.imagePullSecrets: has no effect: the box pulls no images; use `tonnage images pull`"
    assert event.message == f"not done by this kubelet: {secrets}; {label}"


@pytest.mark.parametrize("fails", [False, True])
async def test_volumes_are_unmounted_before_what_containers_left_is_removed(
    machine: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    runtime, volumes = machine.kubelet.runtime, machine.kubelet.volumes
    unmount, order = volumes.unmount, []

    async def note(what: str) -> None:
        order.append(what)

    async def noted(uid: str, **more: Any) -> None:
        order.append("unmount")
        if fails and order.count("unmount") == 1:
            raise HostError("busy")
        await unmount(uid, **more)

    await machine.volume("a")
    await machine.pod("p", volumes=CLAIM)
    await machine.phase("p", "Running")
    monkeypatch.setattr(runtime, "release", lambda uid: note("release"))
    monkeypatch.setattr(runtime, "clean", lambda uid: note("clean"))
    monkeypatch.setattr(volumes, "unmount", noted)
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])
    rounds = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert all(one == ["release", "unmount", "clean"] for one in rounds), "also where a volume cannot be unmounted"
    assert len(rounds) > fails


async def test_a_pod_that_somebody_put_on_a_node_that_it_does_not_want_is_rejected(machine: Any) -> None:
    await machine.pod("selector", nodeSelector={"disk": "fast"})
    terms = [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    await machine.pod("affinity", affinity={"nodeAffinity": required})
    for name in ("selector", "affinity"):
        pod = await machine.phase(name, "Failed")
        text = "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        assert (pod.status.reason, pod.status.message) == ("NodeAffinity", text)


async def test_a_pod_that_runs_stays_when_its_node_loses_the_label(machine: Any, eventually: Eventually) -> None:
    await machine.client.patch(NODES, NODE, {"metadata": {"labels": {"disk": "fast"}}})
    await eventually(lambda: machine.kubelet._node_labels().get("disk") == "fast")
    await machine.pod("p", nodeSelector={"disk": "fast"})
    before = await machine.phase("p", "Running")
    await machine.client.patch(NODES, NODE, {"metadata": {"labels": {"disk": None}}})
    await machine.kill()
    await machine.start()
    await machine.pod("later")
    await machine.phase("later", "Running")
    after = await machine.client.get(PODS, "p", "default")
    assert (after.status.phase, after.metadata.uid) == ("Running", before.metadata.uid)
