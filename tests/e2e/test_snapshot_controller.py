"""`tonnage controller --snapshot-controller` on a real control plane, with nothing but its own account's token.

The agents are those of the tests in process: what a driver does is not of interest here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replicas import Replicas
from tests.e2e.test_snapshot_crds import define
from tests.unit.controller.snapshots.groupworld import GroupWorld
from tests.unit.controller.snapshots.world import OTHER, World

from tonnage.base.aio.clock import RealClock, rfc3339
from tonnage.controller.snapshots.role import LEASE, LEASE_NAMESPACE
from tonnage.kubernetes.api.kinds import GROUP_CLASSES, GROUP_SNAPSHOTS, LEASES, SNAPSHOT_CLASSES, SNAPSHOTS
from tonnage.kubernetes.api.snapshot import AS_SOURCE, BOUND, content_name
from tonnage.kubernetes.client import kubeconfig
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.tools.ops.install import manifests
from tonnage.tools.ops.install.options import Installation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    """With the definitions, and the rights of the role."""
    rights = manifests.render_part("rbac-snapshots.yaml", Installation(snapshot_controller=True))
    define(installed)
    installed.kubectl("apply", "-f", "-", stdin=rights)
    yield installed
    installed.kubectl("delete", "-f", "-", stdin=rights)


@pytest.fixture
def replicas(plane: ControlPlane, tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(plane, tmp_path, "controller", "--snapshot-controller")
    try:
        yield made
    finally:
        made.end()


@asynccontextmanager
async def _world(plane: ControlPlane) -> AsyncIterator[GroupWorld]:
    """The cluster, with agents that act all the time."""
    client = Client(HttpTransport(kubeconfig.load(plane.kubeconfig)))
    world = GroupWorld(client)

    async def act() -> None:
        while True:
            await world.act()
            await asyncio.sleep(0.1)

    agents = asyncio.ensure_future(act())
    try:
        yield world
    finally:
        agents.cancel()
        await asyncio.gather(agents, return_exceptions=True)
        await client.close()


async def _ready(world: World, name: str) -> bool:
    found = await world.get(name)
    return found is not None and bool(found.status.ready_to_use)


async def _until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(600):
        if await holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not so after 60 s: {what}")


async def test_a_snapshots_life(plane: ControlPlane, replicas: Replicas) -> None:
    replicas.start("one")
    async with _world(plane) as world:
        for name, driver in (("snap-ours", "csi.tonnage.dev"), ("snap-other", OTHER)):
            await world.classed(name, default=True, driver=driver)
            await world.bound(name, driver=driver)
            made = await world.snapshot(name, source={"persistentVolumeClaimName": name})
            assert not made.metadata.finalizers, "a custom resource begins without"
            await _until(f"{name} is ready", partial(_ready, world, name))
            shown, content = await world.get(name), await world.content(content_name(made.metadata.uid))
            assert shown is not None
            assert content is not None
            assert shown.spec.volume_snapshot_class_name == name
            assert set(shown.metadata.finalizers) == {AS_SOURCE, BOUND}
            assert content.spec.volume_snapshot_ref.uid == made.metadata.uid
            rows = plane.kubectl("get", "vs", name, "--no-headers").split()
            assert rows[:4] == [name, "true", name, "1Gi"]
            await world.kube.delete(SNAPSHOTS, name, "default")
            await _until(f"{name} is gone", partial(_gone, world, name))
            assert await world.content(content.metadata.name) is None
            await world.kube.delete(SNAPSHOT_CLASSES, name)
        said = plane.kubectl("get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}").split()
        assert {"CreatingSnapshot", "SnapshotCreated", "SnapshotReady"} <= set(said)


async def _gone(world: World, name: str) -> bool:
    return await world.get(name) is None


async def test_a_groups_life(plane: ControlPlane, replicas: Replicas) -> None:
    replicas.start("groups")
    async with _world(plane) as world:
        await world.group_classed("group-class", default=True)
        await world.db("group-data", "group-log", label="group-db")
        selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["group-db"]}]}
        made = await world.group("pair", of_class="", source={"selector": selector})
        assert not made.metadata.finalizers, "a custom resource begins without"

        async def ready() -> bool:
            found = await world.get_group("pair")
            return found is not None and bool(found.status.ready_to_use)

        await _until("the group is ready", ready)
        assert sorted(one.spec.source.persistent_volume_claim_name for one in await world.members()) == [
            "group-data", "group-log",
        ]  # fmt: skip
        rows = plane.kubectl("get", "vgs", "pair", "--no-headers").split()
        assert rows[:3] == ["pair", "true", "group-class"]
        member = (await world.members())[0].metadata.name
        await world.kube.delete(SNAPSHOTS, member, "default")
        await world.kube.delete(GROUP_SNAPSHOTS, "pair", "default")

        async def gone() -> bool:
            left = [*await world.members(), *await world.contents(), *await world.group_contents()]
            return await world.get_group("pair") is None and not left

        await _until("the group is gone", gone)
        assert world.storage == {}
        await world.kube.delete(GROUP_CLASSES, "group-class")


async def test_it_stays_off_beside_another(plane: ControlPlane, replicas: Replicas) -> None:
    async with _world(plane) as world:
        spec = {
            "holderIdentity": "upstream",
            "leaseDurationSeconds": 15,
            "renewTime": rfc3339(RealClock().time(), micro=True),
        }
        await world.kube.create(LEASES, {"metadata": {"name": LEASE}, "spec": spec}, LEASE_NAMESPACE)
        try:
            replicas.start("two")
            await _until("it warns", lambda: _warned(replicas))
        finally:
            await world.kube.delete(LEASES, LEASE, LEASE_NAMESPACE)


async def _warned(replicas: Replicas) -> bool:
    return "snapshot controller is off: another one has the Lease" in replicas.log("two").read_text()
