"""Cinder's library in the child, over a driver of Cinder's own that does nothing: records, errors, kills."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

import pytest
from tests import processes

from tonnage.cinder import library
from tonnage.cinder.driver import CinderConfig
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import ContentSource, VolumeCapability
from tonnage.csi.errors import Code, CsiError

pytestmark = [pytest.mark.cinder, pytest.mark.timeout(900)]
GI = 1 << 30
MOUNT = VolumeCapability()
NODE, OTHER = '{"host":"node-1","initiator":"iqn.x:1"}', '{"host":"node-2","initiator":"iqn.x:2"}'
VOLUMES, KILLS = 200, 20
TRIES = 5


def rows(config: CinderConfig, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(config.state / "controller" / "cinder.sqlite")) as database, database:
        return database.execute(query).fetchall()


async def code_of(call: Awaitable[object]) -> tuple[Code, str]:
    with pytest.raises(CsiError) as failure:
        await call
    return failure.value.code, failure.value.message


async def test_a_life(client: CsiClient, config: CinderConfig) -> None:
    parameters = {"backend": "fake", "qos_iops": "100", "xtra_key": "value"}
    for _ in range(2):
        assert (await client.create_volume("v", GI, [MOUNT], parameters=parameters)).size == GI
        await client.create_snapshot("s", "v")
        source = ContentSource(snapshot_id="s")
        assert (await client.create_volume("copy", 2 * GI, [MOUNT], source=source)).size == 2 * GI
        source = ContentSource(volume_id="v")
        assert (await client.create_volume("clone", GI, [MOUNT], source=source)).content == source
        first = await client.attach_volume("v", NODE, MOUNT)
        assert first == await client.attach_volume("v", NODE, MOUNT)
    kinds = (
        "select key, value from volumes join volume_type_extra_specs using (volume_type_id) where display_name = 'v'"
    )
    assert rows(config, kinds) == [("key", "value")]
    assert ("iops", "100") in rows(config, "select key, value from quality_of_service_specs")
    assert (await client.list_published())["v"] == {NODE}
    assert (await code_of(client.attach_volume("v", OTHER, MOUNT)))[0] is Code.FAILED_PRECONDITION
    assert (await code_of(client.delete_volume("v")))[0] is Code.FAILED_PRECONDITION
    for _ in range(2):
        await client.detach_volume("v", NODE)
    code, message = await code_of(client.delete_volume("v"))
    assert (code, message.endswith("volume v has snapshots: s")) == (Code.FAILED_PRECONDITION, True)
    for _ in range(2):
        await client.delete_snapshot("s")
        for name in ("v", "copy", "clone"):
            await client.delete_volume(name)
    assert (await client.list_volumes(), await client.list_snapshots()) == ([], [])
    assert rows(config, "select id from volumes union select id from snapshots") == []
    assert rows(config, "select key from volume_type_extra_specs") == []


async def test_a_back_end_that_is_away_fails_only_its_own_requests(client: CsiClient) -> None:
    away = {"backend": "away"}
    code, message = await code_of(client.create_volume("v", GI, [MOUNT], parameters=away))
    assert (code, "No module named 'cinder.tests.no_driver'" in message) == (Code.INTERNAL, True)
    assert (await client.create_volume("v", GI, [MOUNT])).size == GI
    assert (await code_of(client.get_capacity(away)))[0] is Code.INTERNAL
    code, message = await code_of(client.get_capacity({}))
    assert (code, "'infinite' is free, which is no number" in message) == (Code.FAILED_PRECONDITION, True)
    code, message = await code_of(client.create_volume("w", GI, [MOUNT], parameters={"backend-pool": "x"}))
    assert (code, "has no pool x" in message) == (Code.INVALID_ARGUMENT, True)


async def test_what_an_attempt_has_left_is_made_again(client: CsiClient, config: CinderConfig) -> None:
    await client.create_volume("v", GI, [MOUNT])
    await client.create_snapshot("s", "v")
    await client.attach_volume("v", NODE, MOUNT)
    rows(config, "delete from volume_attachment")  # killed before it was recorded
    assert await client.attach_volume("v", NODE, MOUNT)
    await client.detach_volume("v", NODE)
    rows(config, "update volumes set status = 'creating'")
    rows(config, "update snapshots set status = 'creating'")
    assert (await client.list_volumes(), await client.list_snapshots()) == ([], [])
    rows(config, "delete from snapshots")
    assert (await client.create_volume("v", 2 * GI, [MOUNT])).size == 2 * GI
    assert rows(config, "select size, status from volumes") == [(2, "available")]


async def test_a_deletion_that_was_cut_off(client: CsiClient, config: CinderConfig) -> None:
    await client.create_volume("v", GI, [MOUNT])
    rows(config, "update volumes set status = 'deleting'")
    assert (await client.create_volume("v", 2 * GI, [MOUNT])).size == 2 * GI
    rows(config, "update volumes set status = 'deleting'")
    await client.delete_volume("v")
    assert rows(config, "select id from volumes") == []


async def test_properties_make_a_node_id(client: CsiClient) -> None:
    assert '"host":' in (await client.node_info()).node_id


async def test_created_and_deleted_with_kills(client: CsiClient, config: CinderConfig) -> None:
    moments = random.Random(1)
    killed = 0
    for number in range(VOLUMES):
        name = f"v{number}"
        for call in (lambda: client.create_volume(name, GI, [MOUNT]), lambda: client.delete_volume(name)):  # noqa: B023
            if killed < KILLS and number % (VOLUMES // KILLS) == 5:
                killed += await kill_within(call, moments.random() * 0.06)
            await repeated(call)
        assert rows(config, f"select id from volumes where display_name = '{name}'") == []
    assert killed >= KILLS / 2
    assert await client.list_volumes() == []


async def kill_within(call: Callable[[], Awaitable[object]], seconds: float) -> bool:
    """Kill the child some time after a call began; whether it was still there."""
    running = asyncio.ensure_future(call())
    await asyncio.sleep(seconds)
    pids = children()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    with suppress(CsiError):
        await running
    return bool(pids)


async def repeated(call: Callable[[], Awaitable[object]]) -> None:
    for _ in range(TRIES):
        try:
            await call()
        except CsiError as failure:
            if failure.code is not Code.UNAVAILABLE:
                raise
        else:
            return
    raise AssertionError(f"it failed {TRIES} times")


def children() -> list[int]:
    """Our child processes that run the library."""
    return [pid for pid in processes.children(os.getpid()) if library.__file__ in processes.arguments(pid)]
