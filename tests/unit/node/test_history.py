"""An agent whose API server returned to an older state deletes nothing until a person says so."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.restored import Front
from tests.unit.node.agents import AllEvents

from tonnage.base.errors import ApiNotFoundError, UnavailableError
from tonnage.base.observe import metrics
from tonnage.csi.errors import CsiError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.node.agent import NodeAgent
from tonnage.node.config.agent import AgentConfig
from tonnage.node.history import EVENT, EVERY, FILE
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.node import FakeNode, MakeNode, fake_node
from tonnage_box.testing.objects import MakeClaim, MakePod, Objects
from tonnage_box.testing.wait import Eventually, eventually

pytestmark = pytest.mark.virtual_time


async def _notes(node: FakeNode) -> dict[str, str]:
    return (await node.client.get(kinds.NODES, node.name)).metadata.annotations


async def _annotate(node: FakeNode, **notes: str | None) -> None:
    await node.client.patch(kinds.NODES, node.name, {"metadata": {"annotations": notes}})


async def _marked(node: FakeNode, eventually: Eventually) -> str:
    async def mark() -> str:
        return (await _notes(node)).get(names.HISTORY, "")

    found = str(await eventually(mark))
    await asyncio.sleep(1)  # the look that wrote it ends: it would mark what a test makes at once
    return found


def _went_back(node: FakeNode) -> float:
    return float(metrics.WENT_BACK.labels(node.name)._value.get())


async def _bound(node: FakeNode, claim: str, eventually: Eventually) -> str:
    await node.select(claim)
    await eventually(lambda: node.is_bound(claim))
    return (await node.claim(claim)).spec.volume_name


async def _lose(node: FakeNode, claim: str, volume: str) -> None:
    """Remove a claim and its PersistentVolume at once, as in a state of the API server that is older than both."""
    await node.client.patch(kinds.VOLUMES, volume, {"metadata": {"finalizers": None}})
    await node.client.delete(kinds.VOLUMES, volume)
    await node.remove_claim(claim)


async def _used_and_lost(node: FakeNode, scratch_pod: MakePod, eventually: Eventually, *, after: float) -> str:
    """A volume that a pod had, whose objects go while no agent runs, so many seconds later."""
    await scratch_pod("app", "1Gi")
    volume = await _bound(node, "app-v0", eventually)
    await node.use(volume)
    await asyncio.sleep(after)
    await node.kill_agent()
    await _lose(node, "app-v0", volume)
    return volume


async def _swept(node: FakeNode, eventually: Eventually) -> list[str]:
    """What is left after the agent that runs now has swept."""

    async def attached() -> bool:
        return node.agents[-1].drivers.complete

    await eventually(attached)
    driver = node.agents[-1].drivers.get(names.DRIVER)
    assert driver is not None
    await asyncio.sleep(61)
    await node.agents[-1].sweep.sweep(driver)
    return await node.volumes()


async def test_a_released_volume_stays_in_an_older_state_until_a_person_says_so(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("10Gi")
    before = await _marked(node, eventually)
    await make_claim("data", storageClassName="late")
    volume = await _bound(node, "data", eventually)
    await node.kill_agent()
    await _annotate(node, **{names.HISTORY: "older"})
    await node.release("data")
    await node.start_agent()

    async def told() -> list[str]:
        return [text for about, why, text in await all_events() if (about, why) == (node.name, EVENT)]

    (text,) = await eventually(told)
    assert f"kubectl annotate node {node.name} {names.DELETIONS_STOPPED}-" in text
    assert before in text
    await asyncio.sleep(600)
    assert await node.volumes() == [volume]
    assert _went_back(node) == 1
    assert (await _notes(node))[names.DELETIONS_STOPPED]
    await node.kill_agent()
    await node.start_agent()
    await asyncio.sleep(600)
    assert await node.volumes() == [volume], "nor after a restart"
    await _annotate(node, **{names.DELETIONS_STOPPED: None})
    await asyncio.sleep(600)
    assert await node.volumes() == []
    assert _went_back(node) == 0


async def test_a_mark_that_somebody_made_long_stops_deletions_too(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await _marked(node, eventually)
    await make_claim("data", storageClassName="late")
    volume = await _bound(node, "data", eventually)
    await node.kill_agent()
    await _annotate(node, **{names.HISTORY: "x" * 200_000})
    await node.release("data")
    await node.start_agent()

    async def stopped() -> str:
        return (await _notes(node)).get(names.DELETIONS_STOPPED, "")

    assert len(str(await eventually(stopped))) < 200
    assert await node.volumes() == [volume]


async def test_a_second_older_state_does_not_pass_for_the_word_of_a_person(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    before = await _marked(node, eventually)
    await make_claim("data", storageClassName="late")
    volume = await _bound(node, "data", eventually)
    await node.kill_agent()
    await _annotate(node, **{names.HISTORY: "older"})
    await node.start_agent()

    async def stopped() -> bool:
        return names.DELETIONS_STOPPED in await _notes(node)

    await eventually(stopped)
    for mark in ("older", before):
        await _annotate(node, **{names.HISTORY: mark, names.DELETIONS_STOPPED: None})
    await node.release("data")
    await asyncio.sleep(600)
    assert await node.volumes() == [volume]


@pytest.mark.parametrize("after", [1, 2 * EVERY])
async def test_a_used_ephemeral_volume_stays_without_its_objects(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, *, after: float
) -> None:
    """What their absence does not show: which policy the PersistentVolume had at last."""
    node = await make_node("10Gi")
    await _marked(node, eventually)
    volume = await _used_and_lost(node, scratch_pod, eventually, after=after)
    await node.start_agent()
    assert await _swept(node, eventually) == [volume]


@pytest.mark.parametrize("away", ["the agent is down", "its watch is broken"])
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_the_last_policy_counts_of_a_persistent_volume_that_is_deleted_unseen(
    tmp_path_factory: pytest.TempPathFactory, eventually: Eventually, policy: str, away: str
) -> None:
    """A person sets it, and deletes pod and PersistentVolume before the agent is back."""
    front = Front(LoopClock(), Random(1))
    await front.restore(None)
    line, client = front.line(), Client(front.line())
    await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    async with fake_node(Client(line), tmp_path_factory.mktemp("n"), "10Gi", sweep_every=60) as node:
        objects = Objects(client)
        await objects.storage_class("late", default=True)
        await objects.scratch_pod("app", "1Gi", storage_class="late")
        volume = await _bound(node, "app-v0", eventually)
        await node.use(volume)
        await asyncio.sleep(2 * EVERY)
        if away == "the agent is down":
            await node.kill_agent()
        line.cut()
        await client.patch(kinds.VOLUMES, volume, {"spec": {"persistentVolumeReclaimPolicy": policy}})
        await client.delete(kinds.CLAIMS, "app-v0", "default")
        await client.patch(kinds.CLAIMS, "app-v0", {"metadata": {"finalizers": None}}, "default")
        await client.patch(kinds.VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
        await client.delete(kinds.VOLUMES, volume)
        await _unprotect(client, volume)
        line.mend()
        if away == "the agent is down":
            await node.start_agent(sweep_every=60)
        await eventually(lambda: node.is_gone(kinds.VOLUMES, volume))
        await asyncio.sleep(2 * EVERY)
        assert await node.volumes() == ([volume] if policy == "Retain" else [])
    await front.stop()


async def _unprotect(client: Client, volume: str) -> None:
    """Remove what Kubernetes' own controller removes."""
    found = await client.get(kinds.VOLUMES, volume)
    others = [finalizer for finalizer in found.metadata.finalizers if finalizer != names.PV_PROTECTION]
    await client.patch(kinds.VOLUMES, volume, {"metadata": {"finalizers": others or None}})


async def test_a_volume_without_its_objects_stays_in_an_older_state(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    before = await _marked(node, eventually)
    volume = await _used_and_lost(node, scratch_pod, eventually, after=2 * EVERY)
    await _annotate(node, **{names.HISTORY: before})
    await node.start_agent()
    assert await _swept(node, eventually) == [volume]


@pytest.mark.parametrize("after", [0.0, 1.0, 2 * EVERY])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_volume_that_a_person_retained_stays(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually, *, after: float, is_killed: bool
) -> None:
    node = await make_node("10Gi")
    await _marked(node, eventually)
    await scratch_pod("app", "1Gi")
    volume = await _bound(node, "app-v0", eventually)
    await node.use(volume)
    await asyncio.sleep(2 * EVERY)
    await node.client.patch(kinds.VOLUMES, volume, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    await asyncio.sleep(after)
    if is_killed and after:
        await node.kill_agent()
    await _lose(node, "app-v0", volume)
    if is_killed and after:
        await node.start_agent()
    assert await _swept(node, eventually) == [volume]


async def test_another_node_object_gets_a_mark_and_proves_nothing(
    make_node: MakeNode, scratch_pod: MakePod, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    before = await _marked(node, eventually)
    volume = await _used_and_lost(node, scratch_pod, eventually, after=2 * EVERY)
    await node.client.delete(kinds.NODES, node.name)
    await node.client.create(kinds.NODES, {"metadata": {"name": node.name}})
    await node.start_agent()
    assert await _swept(node, eventually) == [volume]
    assert await _marked(node, eventually) != before
    assert names.DELETIONS_STOPPED not in await _notes(node)


async def test_a_volume_that_gets_another_claim_is_marked_at_once(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """In an older state it is Released with policy Delete, and has the other claim's data."""
    node = await make_node()
    await make_claim("data", storageClassName="late")
    volume = await _bound(node, "data", eventually)
    await asyncio.sleep(3600)
    marked = await _marked(node, eventually)
    await asyncio.sleep(3600)
    assert await _marked(node, eventually) == marked
    other = await make_claim("other", storageClassName="late", volumeName=volume)
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "other", "uid": other.metadata.uid}
    await node.client.patch(kinds.VOLUMES, volume, {"spec": {"claimRef": ref}})
    await asyncio.sleep(1)
    assert await _marked(node, eventually) != marked


@pytest.mark.slow
async def test_agents_that_wait_for_a_person_read_persistent_volumes_once(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore stops all agents of a cluster at once: what each does every minute is done by all."""
    node = await make_node()
    await make_claim("data", storageClassName="late")
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))
    await asyncio.sleep(3600)
    await _annotate(node, **{names.HISTORY: "older"})
    agent, lists = node.agents[-1], 0
    sweep = agent.sweep.sweep

    async def counted(driver: Any) -> Any:
        nonlocal lists
        lists += 1
        return await sweep(driver)

    monkeypatch.setattr(agent.sweep, "sweep", counted)
    agent.sweep.want()
    await asyncio.sleep(8 * 86400)
    assert lists == 1
    agent.sweep.want()
    await asyncio.sleep(600)
    assert lists == 2, "somebody asks for it"
    await _annotate(node, **{names.DELETIONS_STOPPED: None})
    await asyncio.sleep(600)
    assert lists == 3, "a person has said that it goes on"


async def test_a_damaged_file_stops_deletions_and_is_left_alone(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, all_events: AllEvents
) -> None:
    node = await make_node("10Gi")
    await _marked(node, eventually)
    await make_claim("data", storageClassName="late")
    volume = await _bound(node, "data", eventually)
    await node.kill_agent()
    file = node.folder / FILE
    text = file.read_bytes()
    file.write_bytes(text.replace(b"true", b"trve"))
    await node.start_agent()
    await node.release("data")

    async def told() -> list[str]:
        return [text for about, _, text in await all_events() if about == volume and f"{file} is damaged" in text]

    await eventually(told)
    assert await node.volumes() == [volume]
    assert file.read_bytes() != text
    file.unlink()
    await asyncio.sleep(600)
    assert await node.volumes() == []


async def test_a_node_without_changes_costs_one_write(make_node: MakeNode, eventually: Eventually) -> None:
    node = await make_node("10Gi")
    await _marked(node, eventually)
    await asyncio.sleep(EVERY)
    before = await node.client.get(kinds.NODES, node.name)
    await node.kill_agent()
    await node.start_agent()
    await asyncio.sleep(3 * EVERY)
    assert await node.client.get(kinds.NODES, node.name) == before


OTHER = {"uid": "2f7a3c1e-0000-4000-8000-000000000001", "name": "other"}


async def _given_away(node: FakeNode, make_claim: MakeClaim, eventually: Eventually) -> str:
    """A volume that a person gives to another claim while no agent runs; returns its PersistentVolume."""
    await make_claim("data", storageClassName="late")
    volume = await _bound(node, "data", eventually)
    await node.use(volume)
    await node.kill_agent()
    await node.client.patch(kinds.VOLUMES, volume, {"spec": {"claimRef": OTHER}})
    return volume


async def _write_another(node: FakeNode, volume: str, *, label: bool, first: bool) -> None:
    """A person writes another PersistentVolume for the volume, and keeps the first one, Released, or not."""
    made = await node.client.get(kinds.VOLUMES, volume)
    assert made.spec.csi is not None
    await node.client.patch(kinds.VOLUMES, volume, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    await node.client.patch(kinds.VOLUMES, volume, {"metadata": {"finalizers": None}})
    if first:
        ref = {"uid": volume.removeprefix("pvc-"), "name": "data"}
        await node.client.patch(kinds.VOLUMES, volume, {"spec": {"claimRef": ref}})
        await node.client.patch(kinds.VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
    else:
        await node.client.delete(kinds.VOLUMES, volume)
    meta = {"name": "mine", "labels": dict(made.metadata.labels) if label else {}}
    spec = {
        "capacity": made.spec.capacity, "accessModes": made.spec.access_modes, "claimRef": OTHER,
        "storageClassName": "late", "csi": {"driver": names.DRIVER, "volumeHandle": made.spec.csi.volume_handle},
    }  # fmt: skip
    await node.client.create(kinds.VOLUMES, {"metadata": meta, "spec": spec})
    await node.client.patch(kinds.VOLUMES, "mine", {"status": {"phase": "Bound"}}, subresource="status")


@pytest.mark.parametrize("first", [True, False], ids=["first kept", "first deleted"])
@pytest.mark.parametrize("label", [True, False], ids=["label", "no label"])
@pytest.mark.parametrize("watched", [True, False], ids=["watched", "not watched"])
async def test_a_volume_with_a_persistent_volume_of_another_name_is_marked_before_a_pod_gets_it(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, *, first: bool, label: bool, watched: bool
) -> None:
    """In an older state the first one is Released, with policy Delete; also where the Node is one without a mark."""
    node = await make_node("10Gi")
    before = await _marked(node, eventually)
    volume = await _given_away(node, make_claim, eventually)
    old = json.loads(await node.client.read(f"/api/v1/persistentvolumes/{volume}"))
    await _write_another(node, volume, label=label, first=first)
    agent = await node.start_agent()
    if watched:
        await asyncio.sleep(1)
    await node.use(volume)
    assert agent.history._seen is not None
    assert agent.history._seen.given == [f"{volume} {OTHER['uid']}"]
    assert (await _notes(node))[names.HISTORY] != before
    await node.kill_agent()
    for name in ("mine", volume):
        with suppress(ApiNotFoundError):
            await node.client.delete(kinds.VOLUMES, name)
            await node.client.patch(kinds.VOLUMES, name, {"metadata": {"finalizers": None}})
    for part in ("uid", "resourceVersion"):
        del old["metadata"][part]
    old["spec"]["claimRef"] = {"uid": volume.removeprefix("pvc-"), "name": "data"}
    await node.client.create(kinds.VOLUMES, old)
    await node.client.patch(kinds.VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
    await node.remove_claim("data")
    await node.client.delete(kinds.NODES, node.name)
    await node.client.create(kinds.NODES, {"metadata": {"name": node.name}})
    await node.start_agent()
    await asyncio.sleep(600)
    assert await node.volumes() == [volume]
    assert names.DELETIONS_STOPPED in await _notes(node)


async def test_a_persistent_volume_of_another_name_is_no_older_state(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await _marked(node, eventually)
    volume = await _given_away(node, make_claim, eventually)
    await _write_another(node, volume, label=False, first=True)
    await node.start_agent()
    await node.use(volume)
    await node.kill_agent()
    await node.client.delete(kinds.NODES, node.name)
    await node.client.create(kinds.NODES, {"metadata": {"name": node.name}})
    await node.start_agent()
    await _marked(node, eventually)
    assert names.DELETIONS_STOPPED not in await _notes(node)


@pytest.mark.parametrize("seen", [True, False])
async def test_a_volume_of_the_claim_that_it_was_made_for_costs_one_read(
    make_node: MakeNode,
    make_claim: MakeClaim,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seen: bool,
) -> None:
    node = await make_node("10Gi")
    await _marked(node, eventually)
    await make_claim("data", storageClassName="late")
    volume = await _bound(node, "data", eventually)
    agent, send = node.agents[-1], Client._send
    asked: list[Any] = []
    if not seen:
        await node.kill_agent()
        config = AgentConfig(node.name, cluster_uid="cluster-1", state=node.folder)
        agent = NodeAgent(node.client, config, clock=LoopClock())

    async def counted(*args: Any, **options: Any) -> Any:
        asked.append(args[1:3])
        return await send(*args, **options)

    monkeypatch.setattr(Client, "_send", counted)
    await agent.before_stage(f"{node.pool.name}/{volume}")
    assert len(asked) == 1, asked


async def test_a_volume_that_has_another_claim_is_marked_before_a_pod_gets_it(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    """The agent's watch has not even begun: what the pod writes next is safe in a state of before."""
    node = await make_node("10Gi")
    before = await _marked(node, eventually)
    volume = await _given_away(node, make_claim, eventually)
    agent = NodeAgent(
        node.client, AgentConfig(node.name, cluster_uid="cluster-1", state=node.folder), clock=LoopClock()
    )
    node.driver.hooks.to = agent
    await node.use(volume)
    marked = (await _notes(node))[names.HISTORY]
    assert marked != before
    await node.use(volume)
    assert (await _notes(node))[names.HISTORY] == marked, "once"
    await _annotate(node, **{names.HISTORY: before})
    await node.client.patch(kinds.VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
    await node.remove_claim("data")
    await node.start_agent()
    await asyncio.sleep(600)
    assert await node.volumes() == [volume]
    assert names.DELETIONS_STOPPED in await _notes(node)


@pytest.mark.parametrize("is_older", [True, False])
async def test_a_state_without_the_node_is_older_where_a_volume_has_its_former_claim(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, *, is_older: bool
) -> None:
    """The node registers again, so there is no mark to compare."""
    node = await make_node("10Gi")
    await _marked(node, eventually)
    volume = await _given_away(node, make_claim, eventually)
    await node.start_agent()
    await asyncio.sleep(60)
    await node.kill_agent()
    await node.client.delete(kinds.NODES, node.name)
    if is_older:
        claim = await node.claim("data")
        ref = {"uid": claim.metadata.uid, "name": "data"}
        await node.client.patch(kinds.VOLUMES, volume, {"spec": {"claimRef": ref}})
        await node.client.patch(kinds.VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
    await node.remove_claim("data")
    await node.client.create(kinds.NODES, {"metadata": {"name": node.name}})
    await node.start_agent()
    await asyncio.sleep(600)
    assert await node.volumes() == [volume]
    assert (names.DELETIONS_STOPPED in await _notes(node)) is is_older
    if is_older:
        await _annotate(node, **{names.DELETIONS_STOPPED: None})
        await asyncio.sleep(600)
        assert await node.volumes() == [], "a person has looked at it"


async def test_a_pod_gets_no_volume_with_another_claim_while_that_cannot_be_marked(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await make_node("10Gi")
    await _marked(node, eventually)
    volume = await _given_away(node, make_claim, eventually)
    agent = NodeAgent(
        node.client, AgentConfig(node.name, cluster_uid="cluster-1", state=node.folder), clock=LoopClock()
    )
    node.driver.hooks.to = agent
    patch = node.client.patch

    async def fail(*_: Any, **__: Any) -> Any:
        raise UnavailableError("the API server is away")

    monkeypatch.setattr(node.client, "patch", fail)
    with pytest.raises(CsiError, match="the API server is away"):
        await node.use(volume)
    monkeypatch.setattr(node.client, "patch", patch)
    await node.use(volume)


async def test_a_volume_of_the_claim_that_it_was_made_for_costs_no_write(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually
) -> None:
    node = await make_node("10Gi")
    await _marked(node, eventually)
    await make_claim("data", storageClassName="late")
    volume = await _bound(node, "data", eventually)
    version = (await node.client.get(kinds.NODES, node.name)).metadata.resource_version
    await node.use(volume)
    assert (await node.client.get(kinds.NODES, node.name)).metadata.resource_version == version


@pytest.mark.parametrize("restored", ["older", "without the Node", "with another Node", "not at all"])
async def test_an_agent_ends_where_a_restored_server_has_passed_the_version_it_saw(
    tmp_path_factory: pytest.TempPathFactory, eventually: Eventually, restored: str
) -> None:
    """It would go on watching from there, and keep what it saw of the other history."""
    front = Front(LoopClock(), Random(1))
    await front.restore(None)
    line, client = front.line(), Client(front.line())
    await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    empty = front.back_up()
    async with fake_node(Client(line), tmp_path_factory.mktemp("n")) as node:
        await _marked(node, eventually)
        backup = front.back_up()
        objects = Objects(client)
        await objects.storage_class("late", default=True)
        await objects.claim("data", storageClassName="late")
        await _bound(node, "data", eventually)
        await asyncio.sleep(2 * EVERY)
        line.cut()
        if restored != "not at all":
            await front.restore(backup if restored == "older" else empty)
        if restored == "with another Node":
            await client.create(kinds.NODES, {"metadata": {"name": node.name}})
        for number in range(100):
            await client.create(kinds.CONFIG_MAPS, {"metadata": {"name": f"new-{number}"}}, "default")
        line.mend()
        await asyncio.sleep(60)
        assert node.tasks[-1].done() is (restored != "not at all")
    await front.stop()


@pytest.mark.parametrize("since", [0, 1000])
@pytest.mark.parametrize("is_older", [True, False])
async def test_an_agent_ends_where_its_watches_end_and_lead_to_a_restored_server(
    tmp_path_factory: pytest.TempPathFactory, *, is_older: bool, since: int
) -> None:
    """As of a server that stops with grace, behind a load balancer: no request fails."""
    front = Front(LoopClock(), Random(1))
    await front.restore(None)
    client = Client(front.line())
    await client.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    async with fake_node(Client(front.line()), tmp_path_factory.mktemp("n")) as node:
        await asyncio.sleep(60)
        backup = front.back_up()
        objects = Objects(client)
        await objects.storage_class("late", default=True)
        await objects.claim("data", storageClassName="late")
        await _bound(node, "data", eventually)
        await asyncio.sleep(2 * EVERY)
        await front.restore(backup if is_older else front.back_up(), since=since, gently=True)
        await asyncio.sleep(60)
        assert node.tasks[-1].done() is is_older
    await front.stop()
