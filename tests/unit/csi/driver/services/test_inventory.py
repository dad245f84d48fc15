"""What a driver tells of its pools beyond CSI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tonnage.csi._proto import csi_pb2, inventory_pb2
from tonnage.csi.driver.services import inventory
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.server import CsiServer
from tonnage.csi.server.service import Service
from tonnage.storage.pools.base.contract import Capacity, VolumeCondition, VolumeOrigin, VolumeRequest
from tonnage.storage.pools.config import make, parse
from tonnage.storage.pools.core.pool import Pool

GIB = 1 << 30


@pytest.fixture
async def pools() -> AsyncIterator[dict[str, Pool]]:
    made = {name: make(parse(f"fake,name={name},size=10Gi")) for name in ("a", "b")}
    for pool in made.values():
        await pool.open()
    yield made
    for pool in made.values():
        await pool.close()


@pytest.fixture
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("i") / "csi.sock"


async def test_everything_is_told_as_the_pool_knows_it(pools: dict[str, Pool], socket: Path) -> None:
    a = pools["a"]
    await a.create(VolumeRequest("inline", GIB, owner={"inline": "true"}, mutable={"erase": "none"}))
    await a.snapshots.create("s", "inline")
    await a.create(VolumeRequest("copy", 2 * GIB, source=VolumeOrigin(snapshot="s")))

    async with CsiServer(socket, [inventory.service(pools)]):
        found = await inventory.read(socket)

    assert found is not None
    first, second = found
    assert (first.pool, first.kind, first.problem, first.capacity) == ("a", "fake", "", await a.capacity())
    assert list(first.volumes) == await a.list()
    assert list(first.snapshots) == await a.snapshots.list()
    assert first.reserved == 4 * GIB
    assert (second.pool, second.volumes, second.reserved, second.erasing_bytes) == ("b", [], 0, 0)


class _Former:
    """The service of a driver of commit 6cf5dba."""

    async def ReadPools(self, _request: inventory_pb2.ReadPoolsRequest) -> inventory_pb2.ReadPoolsResponse:
        erasing = {"name": "v", "method": "zero", "total": 8, "done": 2, "room": 4, "problem": ""}
        room = {"total": 10, "free": 6, "largest": 6, "smallest": 1, "used": 4}
        pool = {"pool": "a", "kind": "fake", "room": room, "erasing": [erasing]}
        return inventory_pb2.ReadPoolsResponse(pools=msgspec.json.encode([pool]))


async def test_drivers_of_the_former_version_are_read(socket: Path) -> None:
    described = inventory_pb2.DESCRIPTOR.services_by_name["Inventory"]
    async with CsiServer(socket, [Service(described, _Former())]):
        found = await inventory.read(socket)
    assert found is not None
    assert (found[0].capacity, found[0].erasing_bytes) == (Capacity(10, 6, 6, 1, 4), 4)


async def test_abnormal_volumes_are_told_by_name(
    pools: dict[str, Pool], socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ill(name: str, path: Path | None = None) -> VolumeCondition:
        return VolumeCondition(abnormal=name == "bad", message="its disk is gone")

    for name in ("bad", "good"):
        await pools["a"].create(VolumeRequest(name, GIB))
    monkeypatch.setattr(pools["a"], "condition", ill)
    async with CsiServer(socket, [inventory.service(pools)]):
        found = await inventory.read(socket)
    assert found is not None
    assert found[0].abnormal == {"bad": "its disk is gone"}


async def test_a_pool_that_is_gone_does_not_hide_the_others(
    socket: Path, tmp_path: Path, pools: dict[str, Pool]
) -> None:
    lost = make(parse(f"image:{tmp_path}/p,name=lost"))  # never opened
    async with CsiServer(socket, [inventory.service({"lost": lost, **pools})]):
        found = await inventory.read(socket)
    assert found is not None
    assert [(pool.pool, bool(pool.problem)) for pool in found] == [("lost", True), ("a", False), ("b", False)]
    assert "is not open" in found[0].problem


async def test_drivers_of_others_have_no_such_service(socket: Path) -> None:
    described = csi_pb2.DESCRIPTOR.services_by_name["Identity"]
    async with CsiServer(socket, [Service(described, None)]):
        assert await inventory.read(socket) is None
    with pytest.raises(CsiError) as failure:
        await inventory.read(socket)
    assert failure.value.code is Code.UNAVAILABLE
