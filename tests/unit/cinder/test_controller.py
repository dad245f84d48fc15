"""The Controller service over a storage in a child, which is killed in the middle of each call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cinder.child import PATIENCE, Fault
from tests.unit.cinder.storage_child import SECRET

from tonnage.cinder.driver import CinderConfig, CinderDriver
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, AttachedContext, ContentSource, VolumeCapability
from tonnage.csi.errors import Code, CsiError

GI = 1 << 30
MOUNT = VolumeCapability()
NODE = '{"host":"node-1","initiator":"iqn.2026-01.com.example:1"}'
OTHER = '{"host":"node-2","initiator":"iqn.2026-01.com.example:2"}'
State = Callable[[], dict[str, Any]]


async def code_of(call: Awaitable[object]) -> tuple[Code, str]:
    with pytest.raises(CsiError) as failure:
        await call
    return failure.value.code, failure.value.message


async def test_a_life(client: CsiClient, state: State) -> None:
    volume = await client.create_volume("v", GI + 1, [MOUNT])
    assert (volume.id, volume.size) == ("v", 2 * GI)
    context = await client.attach_volume("v", NODE, MOUNT)
    assert context == await client.attach_volume("v", NODE, MOUNT)
    assert await client.list_published() == {"v": frozenset({NODE})}
    snapshot = await client.create_snapshot("s", "v")
    assert (snapshot.volume_id, snapshot.size, snapshot.ready) == ("v", 2 * GI, True)
    await client.detach_volume("v", NODE)
    assert (await client.expand_volume("v", 2 * GI + 1)).size == 3 * GI
    copy = await client.create_volume("c", 0, [MOUNT], source=ContentSource(snapshot_id="s"))
    clone = await client.create_volume("d", 4 * GI, [MOUNT], source=ContentSource(volume_id="v"))
    assert (copy.size, clone.size, copy.context) == (2 * GI, 4 * GI, {"copy": "true"})
    assert (await client.get_capacity()).available == (100 - 9) * GI
    for name in ("c", "d"):
        await client.delete_volume(name)
    assert [one.id for one in await client.list_snapshots()] == ["s"]
    assert (await code_of(client.delete_volume("v")))[0] is Code.FAILED_PRECONDITION  # it has a snapshot
    await client.delete_snapshot("s")
    await client.delete_volume("v")
    await client.delete_volume("v")
    assert state() == {"free": 100, "volumes": {}, "snapshots": {}}


CALLS: dict[str, Callable[[CsiClient], Awaitable[object]]] = {
    "create": lambda client: client.create_volume("new", GI, [MOUNT]),
    "delete": lambda client: client.delete_volume("old"),
    "connect": lambda client: client.attach_volume("v", NODE, MOUNT),
    "disconnect": lambda client: client.detach_volume("attached", NODE),
    "extend": lambda client: client.expand_volume("v", 2 * GI),
    "snapshot": lambda client: client.create_snapshot("new-snapshot", "v"),
    "delete-snapshot": lambda client: client.delete_snapshot("s"),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("call", CALLS)
async def test_killed_and_repeated(client: CsiClient, fault: Fault, state: State, call: str, when: str) -> None:
    for name in ("v", "old", "attached"):
        await client.create_volume(name, GI, [MOUNT])
    await client.attach_volume("attached", NODE, MOUNT)
    await client.create_snapshot("s", "v")
    fault(call, when, "kill")
    assert (await code_of(CALLS[call](client)))[0] is Code.UNAVAILABLE
    await CALLS[call](client)
    once = state()
    await CALLS[call](client)
    assert state() == once
    sizes = {name: volume["size"] for name, volume in once["volumes"].items() if volume["done"]}
    wanted = {"v": 2 if call == "extend" else 1, "attached": 1} | ({"new": 1} if call == "create" else {})
    assert sizes == wanted | ({} if call == "delete" else {"old": 1})
    assert once["free"] == 100 - sum(sizes.values())
    assert once["volumes"]["v"]["nodes"] == ([NODE] if call == "connect" else [])
    assert once["volumes"]["attached"]["nodes"] == ([] if call == "disconnect" else [NODE])
    expected = {"snapshot": {"s", "new-snapshot"}, "delete-snapshot": set()}.get(call, {"s"})
    assert set(once["snapshots"]) == expected


@pytest.mark.parametrize(
    ("do", "code"),
    [("full", Code.RESOURCE_EXHAUSTED), ("away", Code.INTERNAL), ("unfinished", Code.UNAVAILABLE)],
)
async def test_full_and_away(client: CsiClient, fault: Fault, do: str, code: Code) -> None:
    fault("create", "before", do)
    assert (await code_of(client.create_volume("v", GI, [MOUNT])))[0] is code
    assert (await client.create_volume("v", GI, [MOUNT])).size == GI


async def test_slow(client: CsiClient, driver: CinderDriver, fault: Fault) -> None:
    await client.get_capacity()
    fault("create", "before", "hang")
    for child in driver.children:
        child.limit = 1
    assert (await code_of(client.create_volume("v", GI, [MOUNT])))[0] is Code.UNAVAILABLE
    for child in driver.children:
        child.limit = PATIENCE
    assert (await client.create_volume("v", GI, [MOUNT])).size == GI


async def test_garbage_in_the_output(client: CsiClient, fault: Fault) -> None:
    fault("create", "before", "garbage")
    assert (await client.create_volume("v", GI, [MOUNT])).size == GI


async def test_more_than_is_free(client: CsiClient) -> None:
    code, message = await code_of(client.create_volume("v", 101 * GI, [MOUNT]))
    assert (code, message) == (Code.RESOURCE_EXHAUSTED, "storage: create: insufficient free space")


async def test_one_node_at_a_time(client: CsiClient) -> None:
    await client.create_volume("v", GI, [MOUNT])
    await client.attach_volume("v", NODE, MOUNT)
    code, message = await code_of(client.attach_volume("v", OTHER, MOUNT))
    assert code is Code.FAILED_PRECONDITION
    assert NODE in message
    assert (await code_of(client.delete_volume("v")))[0] is Code.FAILED_PRECONDITION
    await client.detach_volume("v", OTHER)
    assert await client.list_published() == {"v": frozenset({NODE})}
    await client.detach_volume("v", "")
    await client.attach_volume("v", OTHER, MOUNT)


async def test_the_same_name_with_other_wishes(client: CsiClient) -> None:
    await client.create_volume("v", 2 * GI, [MOUNT])
    for call in (
        client.create_volume("v", 3 * GI, [MOUNT]),
        client.create_volume("v", GI, [MOUNT], limit=GI),
        client.create_volume("v", 2 * GI, [MOUNT], parameters={"backend": "second"}),
        client.create_volume("v", 2 * GI, [MOUNT], source=ContentSource(snapshot_id="s")),
    ):
        assert (await code_of(call))[0] is Code.ALREADY_EXISTS
    await client.create_volume("w", GI, [MOUNT])
    await client.create_snapshot("s", "v")
    assert (await code_of(client.create_snapshot("s", "w")))[0] is Code.ALREADY_EXISTS


async def test_what_is_rejected(client: CsiClient) -> None:
    await client.create_volume("v", 2 * GI, [MOUNT])
    many = VolumeCapability(mode=AccessMode.MULTI_NODE_MULTI_WRITER)
    source = ContentSource(volume_id="v")
    for call, code in (
        (client.create_volume("x", GI, [MOUNT], parameters={"size": "1"}), Code.INVALID_ARGUMENT),
        (client.create_volume("x", GI, [MOUNT], parameters={"backend": "third"}), Code.INVALID_ARGUMENT),
        (client.create_volume("x", GI, [many]), Code.INVALID_ARGUMENT),
        (client.create_volume("x", GI, [VolumeCapability(fstype="btrfs")]), Code.INVALID_ARGUMENT),
        (client.create_volume("x", 1, [MOUNT], limit=GI - 1), Code.OUT_OF_RANGE),
        (client.create_volume("x", GI, [MOUNT], source=source), Code.OUT_OF_RANGE),
        (client.create_volume("x", GI, [MOUNT], source=ContentSource(snapshot_id="none")), Code.NOT_FOUND),
        (client.create_snapshot("s", "none"), Code.NOT_FOUND),
        (client.create_snapshot("s", "v", parameters={"x": "y"}), Code.INVALID_ARGUMENT),
        (client.expand_volume("none", GI), Code.NOT_FOUND),
        (client.attach_volume("none", NODE, MOUNT), Code.NOT_FOUND),
        (client.attach_volume("v", "node-1", MOUNT), Code.NOT_FOUND),
        (client.attach_volume("v", NODE, MOUNT, read_only=True), Code.INVALID_ARGUMENT),
        (client.validate("none", [MOUNT]), Code.NOT_FOUND),
    ):
        assert (await code_of(call))[0] is code
    assert await client.validate("v", [MOUNT]) is None
    assert "ReadWriteMany" in (await client.validate("v", [many]) or "")


async def test_pages(client: CsiClient) -> None:
    names = [f"v{number}" for number in range(5)]
    for name in reversed(names):
        await client.create_volume(name, GI, [MOUNT])
        await client.create_snapshot(f"s{name}", name)
    for page in (1, 2, 5, 0):
        assert [one.id for one in await client.list_volumes(page=page)] == names
    assert [one.id for one in await client.list_snapshots()] == [f"s{name}" for name in names]
    found = await client.find_snapshot("sv3")
    assert found is not None
    assert found.volume_id == "v3"


async def test_parameters_reach_the_storage(client: CsiClient, state: State) -> None:
    parameters = {"backend": "second", "backend-pool": "p", "qos_iops": "10", "xtra_a:b": "c"}
    await client.create_volume("v", GI, [MOUNT], parameters={**parameters, "csi.storage.k8s.io/pvc/name": "data"})
    volume = state()["volumes"]["v"]
    assert volume["backend"] == "second"
    assert volume["about"] == {"pool": "p", "qos": {"iops": "10"}, "extra": {"a:b": "c"}}


async def test_capacity_of_pools(client: CsiClient, storage: Path) -> None:
    assert (await client.get_capacity()).available == 100 * GI
    assert (await client.get_capacity({"backend-pool": "pool-2"})).available == 7 * GI
    code, message = await code_of(client.get_capacity({"backend-pool": "pool-3"}))
    assert (code, "pool-1, pool-2" in message) == (Code.INVALID_ARGUMENT, True)


@pytest.mark.parametrize("word", ["infinite", "unknown"])
async def test_capacity_that_is_no_number(client: CsiClient, storage: Path, word: str) -> None:
    (storage / "state.json").write_text(f'{{"free": 1, "volumes": {{}}, "snapshots": {{}}, "word": "{word}"}}')
    code, message = await code_of(client.get_capacity())
    assert code is Code.FAILED_PRECONDITION
    assert f"{word!r} is free, which is no number; set storageCapacity: false" in message


async def test_secrets_are_never_logged(
    client: CsiClient, fault: Fault, config: CinderConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await client.create_volume("v", GI, [MOUNT])
    publish = await client.attach_volume("v", NODE, MOUNT)
    assert SECRET in publish["connection"]
    config.kubelet_root.mkdir()
    fault("attach", "before", "away")  # with the secret in its error
    _, message = await code_of(
        client.stage("v", config.kubelet_root / "staging", MOUNT, context=AttachedContext({}, publish))
    )
    assert message == "node: attach: login failed with ***"
    assert "NodeStageVolume" in caplog.text
    assert SECRET not in caplog.text
    assert "array-password" not in caplog.text
