"""Group snapshots through a real socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.base.errors import UnavailableError
from tonnage.csi.client.types import CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT, GROUP_CONTROLLER_SERVICE, VolumeCapability
from tonnage.csi.driver.driver import OWNER_DRIVER, Driver, id_of
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.group_members import member_name, member_owner
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api.names import DRIVER
from tonnage.storage.pools.base.contract import INLINE, Snapshot, VolumeRequest
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fake.backend import FEATURES, FakeBackend, FakePool

GIB = 1 << 30
MOUNT = [VolumeCapability()]
A, B, F = "default/a", "default/b", "fast/f"
Rejected = Callable[..., Awaitable[CsiError]]


@pytest.fixture
async def volumes(client: FullCsiClient) -> None:
    """Two volumes in one pool and one in the other."""
    await client.create_volume("a", GIB, MOUNT)
    await client.create_volume("b", GIB, MOUNT)
    await client.create_volume("f", GIB, MOUNT, parameters={"pool": "fast"})


async def test_a_group_is_made_once_and_deleted_any_number_of_times(
    client: FullCsiClient, pool: FakePool, fast: FakePool, volumes: None
) -> None:
    given = {"csi.storage.k8s.io/volumegroupsnapshot/name": "x"}
    group = await client.create_group_snapshot("g", [F, A, B], parameters=given)
    assert (group.id, group.ready) == ("g", True)
    assert {member.volume_id: member.group for member in group.snapshots} == dict.fromkeys([A, B, F], "g")
    assert all(member.ready and member.size == GIB for member in group.snapshots)
    assert group.created == min(member.created for member in group.snapshots)
    assert [member.id for member in group.snapshots] == sorted(
        id_of(vid.split("/")[0], member_name("g", vid)) for vid in (A, B, F)
    )
    for _ in range(2):
        assert await client.create_group_snapshot("g", [B, A, F]) == group, "the order of the sources has no meaning"
    ids = [member.id for member in group.snapshots]
    assert await client.get_group_snapshot("g") == await client.get_group_snapshot("g", ids) == group
    assert await client.list_snapshots() == list(group.snapshots)
    assert await client.get_snapshot(ids[0]) == group.snapshots[0]
    for _ in range(2):
        await client.delete_group_snapshot("g", ids)
    assert await pool.snapshots.list() == await fast.snapshots.list() == []
    assert (await client.get_capacity()).available == 98 * GIB


async def test_a_group_outlives_its_volumes(client: FullCsiClient, volumes: None) -> None:
    group = await client.create_group_snapshot("g", [A, F])
    await client.delete_volume(A)
    assert await client.create_group_snapshot("g", [A, F]) == group, "repeated after a source is gone"
    assert await client.get_group_snapshot("g") == group


async def test_members_are_not_deleted_one_by_one(rejected: Rejected, client: FullCsiClient, volumes: None) -> None:
    group = await client.create_group_snapshot("g", [A, B, F])
    first, second, third = (member.id for member in group.snapshots)
    await rejected(client.delete_snapshot(first), Code.INVALID_ARGUMENT, "member of group snapshot g", second, "1 more")
    assert await client.get_group_snapshot("g") == group
    name = first.removeprefix("default/")
    same = client.create_snapshot(name, group.snapshots[0].volume_id)
    await rejected(same, Code.ALREADY_EXISTS, "member of group snapshot g")
    await client.delete_group_snapshot("g", [first, second, third])
    alone = await client.create_group_snapshot("h", [A])
    await client.delete_snapshot(alone.snapshots[0].id)
    await rejected(client.get_group_snapshot("h"), Code.NOT_FOUND, "'h'")


async def test_groups_that_are_rejected(
    rejected: Rejected, client: FullCsiClient, pool: FakePool, volumes: None
) -> None:
    create = client.create_group_snapshot
    await rejected(create("", [A]), Code.INVALID_ARGUMENT, "name is missing")
    await rejected(create("g", []), Code.INVALID_ARGUMENT, "source_volume_ids is missing")
    await rejected(create("g", [A, ""]), Code.INVALID_ARGUMENT, "source_volume_ids is missing")
    await rejected(create("g", [A, B, A]), Code.INVALID_ARGUMENT, f"{A} twice")
    await rejected(
        create("g", [A], parameters={"color": "red"}), Code.INVALID_ARGUMENT, "'color'", "GroupSnapshotClass"
    )
    await rejected(create("g", [A, "default/nobody"]), Code.NOT_FOUND, "nobody")
    await rejected(create("g", [A, "no form of ours"]), Code.NOT_FOUND)
    await rejected(create("g", [A, "retired/a"]), Code.UNAVAILABLE, "not served")
    owners: list[tuple[str, Mapping[str, str], Code]] = [
        ("inline", {INLINE: "true"}, Code.FAILED_PRECONDITION),
        ("driver", {OWNER_DRIVER: "other.example"}, Code.NOT_FOUND),
        ("filled", {"content": "filling:0"}, Code.FAILED_PRECONDITION),
    ]
    for name, owner, code in owners:
        await pool.create(VolumeRequest(name, GIB, owner=owner))
        await rejected(create("g", [A, f"default/{name}"]), code, name)
        await rejected(client.create_snapshot("s", f"default/{name}"), code, name)
    await create("g", [A, B])
    await rejected(create("g", [A, F]), Code.ALREADY_EXISTS, "group snapshot g exists", "a, b")
    await rejected(create("g", [A]), Code.ALREADY_EXISTS)
    assert len(await pool.snapshots.list()) == 2
    await rejected(client.get_group_snapshot(""), Code.INVALID_ARGUMENT, "group_snapshot_id is missing")
    await rejected(client.delete_group_snapshot(""), Code.INVALID_ARGUMENT, "group_snapshot_id is missing")
    await rejected(client.get_group_snapshot("h"), Code.NOT_FOUND)
    await client.delete_group_snapshot("h", ["no form of ours"])


async def test_ids_that_are_not_those_of_the_members(rejected: Rejected, client: FullCsiClient, volumes: None) -> None:
    ids = [member.id for member in (await client.create_group_snapshot("g", [A, F])).snapshots]
    other = (await client.create_snapshot("s", A)).id
    for call in (client.get_group_snapshot, client.delete_group_snapshot):
        await rejected(call("g", ids[:1]), Code.INVALID_ARGUMENT, ids[1])
        await rejected(call("g", [*ids, other]), Code.INVALID_ARGUMENT, other, "not a member")
        await rejected(call("g", [*ids, "default/gone"]), Code.INVALID_ARGUMENT, "does not exist")
    await rejected(client.delete_group_snapshot("h", [other]), Code.INVALID_ARGUMENT, other)
    assert len((await client.get_group_snapshot("g", ids)).snapshots) == 2


async def _leave_half(pool: FakePool, group: str, sources: list[str]) -> Snapshot:
    """What a driver leaves that was killed after it took a snapshot of volume a."""
    owner = {OWNER_DRIVER: DRIVER, **member_owner(group, sources)}
    return await pool.snapshots.create(member_name(group, A), "a", owner=owner)


async def test_what_a_kill_left_is_no_group(
    rejected: Rejected, client: FullCsiClient, pool: FakePool, volumes: None
) -> None:
    left = await _leave_half(pool, "g", [A, F])
    await rejected(client.get_group_snapshot("g"), Code.NOT_FOUND)
    group = await client.create_group_snapshot("g", [A, F])
    assert min(member.created for member in group.snapshots) > left.created, "it was of another moment"
    await client.delete_group_snapshot("g")
    await _leave_half(pool, "g", [A, B])
    assert len((await client.create_group_snapshot("g", [A, F])).snapshots) == 2, "it never existed: other volumes"
    await client.delete_group_snapshot("g")
    half = await _leave_half(pool, "g", [A, F])
    gone = id_of("fast", member_name("g", F))
    await client.delete_group_snapshot("g", [f"default/{half.name}", gone])
    assert await pool.snapshots.list() == []
    half = await _leave_half(pool, "g", [A, F])
    await client.delete_snapshot(f"default/{half.name}")
    assert await pool.snapshots.list() == []


async def test_what_a_kill_left_is_deleted_though_a_source_is_gone(
    rejected: Rejected, client: FullCsiClient, pool: FakePool, volumes: None
) -> None:
    await _leave_half(pool, "g", [A, B])
    await client.delete_volume(B)
    await rejected(client.create_group_snapshot("g", [A, B]), Code.NOT_FOUND)
    assert await pool.snapshots.list() == []


async def test_nothing_stays_of_a_group_that_does_not_fit(
    rejected: Rejected, client: FullCsiClient, pool: FakePool, fast: FakePool
) -> None:
    await client.create_volume("a", GIB, MOUNT)
    for name in ("f", "h"):
        await client.create_volume(name, 3 * GIB, MOUNT, parameters={"pool": "fast"})
    await rejected(client.create_group_snapshot("g", [A, F, "fast/h"]), Code.RESOURCE_EXHAUSTED, "fast")
    assert await pool.snapshots.list() == await fast.snapshots.list() == []
    assert len((await client.create_group_snapshot("g", [A, F])).snapshots) == 2


async def test_a_name_that_is_not_safe(client: FullCsiClient, volumes: None) -> None:
    group = await client.create_group_snapshot("a group / of mine " + "x" * 100, [A, F])
    assert group.id.startswith("n-a-group-of-mine-")
    assert max(len(member.id.split("/")[1]) for member in group.snapshots) <= 64
    assert await client.get_group_snapshot(group.id) == group
    await client.delete_group_snapshot(group.id)
    assert await client.list_snapshots() == []


async def test_a_volume_has_one_call_at_a_time(
    rejected: Rejected, driver: Driver, client: FullCsiClient, volumes: None
) -> None:
    for key in ("f", "g (group)"):
        with driver.in_flight.hold(key, "NodeStageVolume"):
            await rejected(client.create_group_snapshot("g", [A, F]), Code.ABORTED, "NodeStageVolume")
    group = await client.create_group_snapshot("g", [A, F])
    with driver.in_flight.hold("g (group)", "CreateVolumeGroupSnapshot"):
        await rejected(client.delete_group_snapshot("g"), Code.ABORTED)
        await rejected(client.delete_snapshot(group.snapshots[0].id), Code.ABORTED)


async def test_groups_belong_to_the_driver_that_made_them(
    rejected: Rejected, endpoint: DriverEndpoint, client: FullCsiClient, driver: Driver, volumes: None
) -> None:
    await client.create_group_snapshot("g", [A, F])
    other = Driver(driver.node_id, driver.pools, driver.state, name="other.example", in_flight=driver.in_flight)
    socket = endpoint.socket.with_name("other.sock")
    async with DriverEndpoint(other, socket), FullCsiClient(socket) as theirs:
        await rejected(theirs.get_group_snapshot("g"), Code.NOT_FOUND)
        await theirs.delete_group_snapshot("g")
    assert len((await client.get_group_snapshot("g")).snapshots) == 2


class _ClosedBackend(FakeBackend):
    """A pool whose disk is gone."""

    def all_snapshots(self) -> Sequence[VolumeRecord]:
        raise UnavailableError("the disk is gone")


def _closed() -> FakePool:
    pool = FakePool("fast", GIB)
    pool.fake.__class__ = _ClosedBackend
    return pool


class _Openings:
    """What opens pools, and knows that one is closed."""

    def why(self, name: str) -> str:
        return "the disk is gone" if name == "fast" else ""

    async def retry_open(self) -> None:
        """Nothing opens it."""


async def test_a_pool_that_is_not_open_may_have_members(
    rejected: Rejected, folder: Path, driver: Driver, pool: FakePool
) -> None:
    pools = {"default": pool, "fast": _closed()}
    half = replace(driver, pools=pools, openings=_Openings())  # type: ignore[arg-type]
    await pool.create(VolumeRequest("a", GIB))
    async with DriverEndpoint(half, folder / "half.sock"), FullCsiClient(folder / "half.sock") as client:
        group = await client.create_group_snapshot("g", [A])
        await client.delete_group_snapshot("g")
        for call in (client.get_group_snapshot, client.delete_group_snapshot):
            await rejected(call("g"), Code.UNAVAILABLE, "pool fast is not open")
        await client.delete_group_snapshot("g", [group.snapshots[0].id])


async def test_a_member_in_a_pool_that_is_not_open_is_not_forgotten(
    rejected: Rejected, folder: Path, driver: Driver, pool: FakePool, client: FullCsiClient, volumes: None
) -> None:
    """What seems to be all of a group is only what can be read now: nothing of it is deleted."""
    group = await client.create_group_snapshot("g", [A, F])
    (member,) = [one.id for one in group.snapshots if one.volume_id == A]
    pools = {"default": pool, "fast": _closed()}
    half = replace(driver, pools=pools, openings=_Openings())  # type: ignore[arg-type]
    async with DriverEndpoint(half, folder / "half.sock"), FullCsiClient(folder / "half.sock") as other:
        await rejected(other.create_group_snapshot("g", [A, F]), Code.UNAVAILABLE, "pool fast is not open")
        await rejected(other.delete_snapshot(member), Code.UNAVAILABLE, "pool fast is not open")
    assert await client.get_group_snapshot("g") == group


async def test_what_is_offered_where_pools_have_snapshots(client: FullCsiClient, folder: Path, driver: Driver) -> None:
    assert GROUP_CONTROLLER_SERVICE in await client.plugin_capabilities()
    assert await client.group_capabilities() == {CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}
    plain = replace(driver, pools={"default": FakePool("default", GIB, features=replace(FEATURES, snapshots=False))})
    async with DriverEndpoint(plain, folder / "plain.sock"), FullCsiClient(folder / "plain.sock") as other:
        assert GROUP_CONTROLLER_SERVICE not in await other.plugin_capabilities()
        assert await other.group_capabilities() == frozenset()
        await other.create_volume("a", GIB >> 1, MOUNT)
        with pytest.raises(CsiError, match="does not offer snapshots"):
            await other.create_group_snapshot("g", [A])
