"""Snapshots of another vendor's driver that the agent serves: secrets, parameters, and what its calls may answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tests.unit.node.agents import agent_config
from tests.unit.node.snapshotworld import SnapshotWorld

from tonnage.csi.client import types
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ListedSnapshot, PluginInfo
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.api.snapshot import SECRET_NAME, SECRET_NAMESPACE, snapshot_name
from tonnage.kubernetes.client.client import Client
from tonnage.node.agent import NodeAgent
from tonnage_box.simulate.virtual_time import LoopClock
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

pytestmark = pytest.mark.virtual_time
DRIVER = "csi.example.com"
HOUR = 3600.0


class Foreign(CsiClient):
    """A driver without pools, capacity and lists. unready: answers until a snapshot is ready."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.capabilities = {types.CREATE_DELETE_VOLUME, types.CREATE_DELETE_SNAPSHOT}
        self.calls: list[tuple[str, str, dict[str, str], dict[str, str]]] = []
        self.unready = 0
        self.why: CsiError | None = None

    async def probe(self) -> bool:
        return True

    async def plugin_info(self) -> PluginInfo:
        return PluginInfo(DRIVER, "1")

    async def plugin_capabilities(self) -> frozenset[str]:
        return frozenset({types.CONTROLLER_SERVICE})

    async def controller_capabilities(self) -> frozenset[str]:
        return frozenset(self.capabilities)

    async def create_snapshot(
        self,
        name: str,
        volume_id: str,
        *,
        parameters: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> ListedSnapshot:
        self.calls.append(("create", name, dict(parameters or {}), dict(secrets or {})))
        if self.why is not None:
            raise self.why
        self.unready -= 1
        return ListedSnapshot(f"id-of-{name}", volume_id, 0, 5.0, ready=self.unready < 0)

    async def delete_snapshot(self, snapshot_id: str, *, secrets: Mapping[str, str] | None = None) -> None:
        self.calls.append(("delete", snapshot_id, {}, dict(secrets or {})))


@pytest.fixture
async def foreign(kube: Client) -> AsyncIterator[Foreign]:
    """Served by the agent of node-1."""
    await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
    await kube.create(kinds.NODES, {"metadata": {"name": "node-1"}})
    driver = Foreign()
    agent = NodeAgent(kube, agent_config("node-1", "c"), clients=[driver], clock=LoopClock())
    task = asyncio.ensure_future(agent.run())
    yield driver
    await agent.stop()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def world(kube: Client, make_claim: MakeClaim) -> SnapshotWorld:
    """Contents by hand."""
    return SnapshotWorld(kube, make_claim)


async def test_parameters_and_secrets_are_passed_and_a_snapshot_is_asked_for_until_it_is_ready(
    foreign: Foreign, world: SnapshotWorld, eventually: Eventually
) -> None:
    secret = {"metadata": {"name": "key"}, "data": {"password": "eA=="}}
    await world.kube.create(kinds.SECRETS, secret, "default")
    keys = {
        f"{names.CSI_PREFIX}snapshotter-secret-{part}": value for part, value in (("name", "key"), ("namespace", "x"))
    }
    body = {"driver": DRIVER, "deletionPolicy": "Delete", "parameters": {"tier": "gold", **keys}}
    await world.kube.create(kinds.SNAPSHOT_CLASSES, {"metadata": {"name": "daily"}, **body})
    foreign.unready = 2
    snapshot = await world.snapshot("s")
    notes = {SECRET_NAME: "key", SECRET_NAMESPACE: "default"}
    name = await world.content(
        snapshot, volume="vol-1", driver=DRIVER, volumeSnapshotClassName="daily", annotations=notes
    )

    async def is_known() -> bool:
        return bool((await world.read(name)).status.snapshot_handle)

    await eventually(is_known)
    assert (await world.read(name)).status.ready_to_use is False
    content = await world.ready(name)
    uid = snapshot.metadata.uid
    asked = ("create", snapshot_name(uid), {"tier": "gold"}, {"password": "x"})
    assert foreign.calls == [asked] * 3
    assert content.status.restore_size is None, "unknown: any size may be restored"
    assert content.status.creation_time == 5 * 10**9
    await world.delete("s")

    async def is_gone() -> bool:
        return await world.is_gone(name)

    await eventually(is_gone)
    assert foreign.calls[3:] == [("delete", f"id-of-{snapshot_name(uid)}", {}, {"password": "x"})]


async def test_a_class_that_is_gone_is_awaited(foreign: Foreign, world: SnapshotWorld) -> None:
    name = await world.content(
        await world.snapshot("s"), volume="vol-1", driver=DRIVER, volumeSnapshotClassName="daily"
    )
    assert "there is no VolumeSnapshotClass 'daily'" in await world.failure(name)
    assert foreign.calls == [], "its parameters are not known"
    body = {"driver": DRIVER, "deletionPolicy": "Delete"}
    await world.kube.create(kinds.SNAPSHOT_CLASSES, {"metadata": {"name": "daily"}, **body})
    await world.ready(name)


@pytest.mark.slow
async def test_a_driver_that_does_not_tell_its_capacity_is_asked_again_seldom(
    foreign: Foreign, world: SnapshotWorld
) -> None:
    foreign.why = CsiError(Code.RESOURCE_EXHAUSTED, "full")
    name = await world.content(await world.snapshot("s"), volume="vol-1", driver=DRIVER)
    await world.failure(name, "full")
    await asyncio.sleep(HOUR)
    assert 10 <= len(foreign.calls) <= 14
    foreign.why = None
    await world.ready(name)


@pytest.mark.parametrize(("why", "deleted"), [(None, True), (CsiError(Code.RESOURCE_EXHAUSTED, "full"), False)])
async def test_whether_a_snapshot_was_made_is_asked_by_its_name(
    foreign: Foreign, world: SnapshotWorld, eventually: Eventually, why: CsiError | None, deleted: bool
) -> None:
    """The driver alone knows the id of what an agent made before it died."""
    foreign.why = CsiError(Code.UNAVAILABLE, "down")
    snapshot = await world.snapshot("s")
    name = await world.content(snapshot, volume="vol-1", driver=DRIVER)
    await world.failure(name, "down")
    await world.delete("s")
    await asyncio.sleep(HOUR)
    assert not await world.is_gone(name), "it may have made it"
    foreign.why = why

    async def is_gone() -> bool:
        return await world.is_gone(name)

    for _ in range(10):
        await asyncio.sleep(60)
    await eventually(is_gone)
    assert (foreign.calls[-1][0] == "delete") == deleted


async def test_without_lists_an_imported_snapshot_is_taken_as_it_is(foreign: Foreign, world: SnapshotWorld) -> None:
    snapshot = await world.snapshot("s", content="imported")
    name = await world.content(snapshot, name="imported", handle="anything", driver=DRIVER)
    content = await world.ready(name)
    assert (content.status.snapshot_handle, content.status.restore_size) == ("anything", None)
    assert content.status.creation_time
    assert foreign.calls == []
