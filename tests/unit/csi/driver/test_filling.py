"""Volumes that are filled while they are made: answered when whole, never shown before, begun again after a kill."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.csi.full_client import FullCsiClient
from tests.unit.storage.content.server import Files, served

from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.csi.driver.filling import Fillings
from tonnage.csi.errors import Code, CsiError
from tonnage.kubernetes.api import names
from tonnage.storage.content.hosts import AllowedHost, FetchPolicy
from tonnage.storage.content.spec import FolderSpec, UrlSpec, encode
from tonnage.storage.pools.base.parameters import SOURCE
from tonnage.storage.pools.base.record import CONTENT
from tonnage.storage.pools.fake.backend import FEATURES, FakePool

MI = 1 << 20
MOUNT = VolumeCapability()
Rejected = Callable[..., Awaitable[CsiError]]


@pytest.fixture
def rejected() -> Rejected:
    """rejected(call): the error of a call that must fail."""

    async def check(call: Awaitable[Any]) -> CsiError:
        with pytest.raises(CsiError) as raised:
            await call
        return raised.value

    return check


@pytest.fixture
def files() -> Iterator[Files]:
    with served(Files({"/x": b"hello"})) as found:
        yield found


@pytest.fixture
def pool() -> FakePool:
    """A fake pool whose staged folders are filled; they are left behind, so that a test can look."""
    return FakePool("default", 1 << 30, features=replace(FEATURES, parameters=FEATURES.parameters | {SOURCE}))


@pytest.fixture
def driver(folder: Path, pool: FakePool, fast: FakePool, files: Files) -> Driver:
    (folder / "models").mkdir()
    (folder / "models" / "f").write_text("x")
    return Driver(
        "node-1",
        {"default": pool, "fast": fast},
        folder / "state",
        sources=(folder / "models",),
        fetch=FetchPolicy((AllowedHost("localhost", files.port),)),
        fillings=Fillings(patience=1.0),
    )


def asked(files: Files, name: str = "x", **more: str) -> dict[str, Any]:
    body = files.files.get(f"/{name}", b"")
    content = UrlSpec(f"{files.url}/{name}", hashlib.sha256(body).hexdigest())
    return {"parameters": {names.PARAM_CONTENT: encode(content), **more}}


async def make(client: FullCsiClient, files: Files, **more: Any) -> Any:
    return await client.create_volume("pvc-1", 8 * MI, [MOUNT], **{**asked(files), **more})


async def made(client: FullCsiClient, files: Files, **more: Any) -> Any:
    """Repeat the call until the volume is filled, as an agent does."""
    while True:
        try:
            return await make(client, files, **more)
        except CsiError as failure:
            if failure.code is not Code.ABORTED:
                raise


def shown(driver: Driver) -> Path:
    return driver.state / "filling" / "pvc-1"


async def test_it_is_answered_when_it_is_filled(
    client: FullCsiClient, driver: Driver, pool: FakePool, files: Files
) -> None:
    for _ in range(2):
        volume = await made(client, files)
        assert volume.id == "default/pvc-1"
    assert (shown(driver) / "x").read_text() == "hello"
    assert (await pool.get("pvc-1")).owner[CONTENT].startswith("filled:")
    assert len(files.seen) == 1, "the second call found it filled"
    await client.stage(volume.id, driver.state / "staging", MOUNT)


async def test_a_class_says_it_too(client: FullCsiClient, driver: Driver, pool: FakePool) -> None:
    await made(client, Files(), parameters={"source": "folder:models"})
    assert (shown(driver) / "f").read_text() == "x"
    assert (await pool.get("pvc-1")).parameters == {}
    assert (await client.get_capacity({"source": "folder:models"})).available > 0


@pytest.mark.slow
async def test_while_it_is_filled_it_can_be_asked_for_again_but_not_used(
    client: FullCsiClient, driver: Driver, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    files.files["/x"], files.hold, files.breaks = bytes(4 * MI), threading.Event(), [2 * MI]
    for _ in range(2):
        failure = await rejected(make(client, files))
        assert failure.code is Code.ABORTED
        assert f" of 4 MiB from {files.url}/x" in failure.message
    assert (await pool.get("pvc-1")).owner[CONTENT].startswith("filling:")
    failure = await rejected(client.stage("default/pvc-1", driver.state / "staging", MOUNT))
    assert (failure.code, "is being filled" in failure.message) == (Code.FAILED_PRECONDITION, True)
    files.hold.set()
    while (await pool.get("pvc-1")).owner[CONTENT].startswith("filling:"):
        await asyncio.sleep(0.01)
    await made(client, files)
    assert (shown(driver) / "x").stat().st_size == 4 * MI
    assert [headers.get("range") for _, headers in files.seen] == [None, f"bytes={2 * MI}-"]


async def test_a_wrong_digest_leaves_no_volume(
    client: FullCsiClient, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    request = asked(files)
    files.files["/x"] = b"other"
    for _ in range(2):
        failure = await rejected(client.create_volume("pvc-1", 8 * MI, [MOUNT], **request))
        assert failure.infeasible
        assert hashlib.sha256(b"other").hexdigest() in failure.message
        assert hashlib.sha256(b"hello").hexdigest() in failure.message
        assert await pool.list() == []


async def test_a_failure_after_the_answer_is_told_by_the_next_one(
    client: FullCsiClient, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    request = asked(files)
    files.files["/x"], files.hold = b"other", threading.Event()
    assert (await rejected(client.create_volume("pvc-1", 8 * MI, [MOUNT], **request))).code is Code.ABORTED
    files.hold.set()
    while await pool.list():
        await asyncio.sleep(0.01)
    failure = await rejected(client.create_volume("pvc-1", 8 * MI, [MOUNT], **request))
    assert (failure.infeasible, await pool.list()) == (True, [])


async def test_a_call_during_the_deletion_of_a_failed_volume_makes_no_other(
    client: FullCsiClient,
    driver: Driver,
    pool: FakePool,
    files: Files,
    rejected: Rejected,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that waited for the lock of that name would make the volume anew, and answer with the old failure."""
    request, deletes, may_end = asked(files), asyncio.Event(), threading.Event()
    loop, delete = asyncio.get_running_loop(), pool.fake.delete

    def slow_delete(name: str) -> None:
        loop.call_soon_threadsafe(deletes.set)
        may_end.wait(60)
        delete(name)

    monkeypatch.setattr(pool.fake, "delete", slow_delete)
    monkeypatch.setattr(pool.fake, "is_instant", False)
    files.files["/x"] = b"other"
    assert (await rejected(client.create_volume("pvc-1", 8 * MI, [MOUNT], **request))).code is Code.ABORTED
    await deletes.wait()
    call = asyncio.create_task(client.create_volume("pvc-1", 8 * MI, [MOUNT], **request))
    while "pvc-1" not in driver.in_flight._keys:  # it has begun, and waits
        await asyncio.sleep(0)
    may_end.set()
    assert (await rejected(call)).infeasible
    assert await pool.list() == []


async def test_a_call_without_content_is_not_answered_with_a_volume_that_is_being_filled(
    client: FullCsiClient, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    files.status = [503]
    assert (await rejected(make(client, files))).code is Code.UNAVAILABLE
    failure = await rejected(client.create_volume("pvc-1", 8 * MI, [MOUNT]))
    assert (failure.code, "its content is not complete" in failure.message) == (Code.ALREADY_EXISTS, True)


async def test_a_server_that_is_away_is_asked_again(
    client: FullCsiClient, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    files.status = [503]
    assert (await rejected(make(client, files))).code is Code.UNAVAILABLE
    assert (await pool.get("pvc-1")).owner[CONTENT].startswith("filling:")
    await made(client, files)
    assert (await pool.get("pvc-1")).owner[CONTENT].startswith("filled:")


async def test_deletion_stops_it(
    client: FullCsiClient, driver: Driver, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    files.files["/x"], files.hold, files.breaks = bytes(4 * MI), threading.Event(), [2 * MI]
    assert (await rejected(make(client, files))).code is Code.ABORTED
    async with asyncio.timeout(20):  # less than a read waits: the thread is in one, which the stop ends
        await client.delete_volume("default/pvc-1")
    assert (await pool.list(), pool.fake.staged) == ([], {})


@pytest.mark.slow
async def test_one_that_waits_for_others_is_stopped_at_once(
    client: FullCsiClient, driver: Driver, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    files.hold = threading.Event()
    for name in ("pvc-1", "pvc-2", "pvc-3", "pvc-4", "pvc-5"):
        call = client.create_volume(name, 8 * MI, [MOUNT], **asked(files))
        assert (await rejected(call)).code is Code.ABORTED
    assert len(files.seen) == 4
    assert "default/pvc-5" not in pool.fake.staged
    assert len(pool.fake.staged) == 4
    async with asyncio.timeout(20):
        await client.delete_volume("default/pvc-5")
    assert len(await pool.list()) == 4
    files.hold.set()
    await made(client, files)


async def test_another_content_is_begun_anew_until_one_is_whole(
    client: FullCsiClient, driver: Driver, files: Files, rejected: Rejected
) -> None:
    files.files["/y"] = b"second"
    files.status = [503]
    assert (await rejected(make(client, files))).code is Code.UNAVAILABLE
    await made(client, files, **asked(files, "y"))
    assert os.listdir(shown(driver)) == ["y"]
    failure = await rejected(make(client, files))
    assert (failure.code, "delete the claim" in failure.message) == (Code.ALREADY_EXISTS, True)
    assert os.listdir(shown(driver)) == ["y"], "a volume that is whole stays as it is"
    await made(client, files, **asked(files, "y"))


@pytest.fixture
async def killed(driver: Driver, folder: Path, files: Files, pool: FakePool) -> AsyncIterator[FullCsiClient]:
    """A new driver over a pool that an earlier one, which was killed while it filled, has left."""
    files.files["/x"], files.hold = bytes(MI), threading.Event()
    async with DriverEndpoint(driver, folder / "old.sock") as served_, FullCsiClient(served_.socket) as client:
        with pytest.raises(CsiError, match="is being filled"):
            await make(client, files)
        files.hold.set()
        (shown(driver) / "half").write_text("left")
        for task in asyncio.all_tasks():
            if task.get_name() == "fill pvc-1":
                task.cancel()
    left = await pool.annotate("pvc-1", {CONTENT: "filling:" + "0" * 32})
    assert left.owner[CONTENT].startswith("filling:")
    again = replace(driver, fillings=Fillings())
    async with DriverEndpoint(again, folder / "new.sock") as served_, FullCsiClient(served_.socket) as client:
        yield client


async def test_after_a_kill_it_is_emptied_and_filled_again(killed: FullCsiClient, driver: Driver, files: Files) -> None:
    await made(killed, files)
    assert os.listdir(shown(driver)) == ["x"]


async def test_after_a_kill_it_can_be_deleted(killed: FullCsiClient, driver: Driver, pool: FakePool) -> None:
    await pool.stage("pvc-1", shown(driver))
    await killed.delete_volume("default/pvc-1")
    assert (await pool.list(), pool.fake.staged) == ([], {})


@pytest.mark.parametrize(
    ("capability", "parameters", "words"),
    [
        (VolumeCapability(AccessMode.SINGLE_NODE_WRITER, block=True), {}, "raw block volume has no file system"),
        (MOUNT, {"pool": "fast"}, "pool 'fast' (fake) fills no volumes"),
        (MOUNT, {names.PARAM_CONTENT: encode(UrlSpec("http://169.254.169.254/x", "0" * 64))}, "not among those that this node may fetch from"),
        (MOUNT, {names.PARAM_CONTENT: encode(FolderSpec("etc"))}, "this node allows models"),
        (MOUNT, {names.PARAM_CONTENT: "{"}, "cannot be read"),
        (MOUNT, {names.PARAM_CONTENT: '{"image":{"reference":"a"}}'}, "no image store"),
    ],
)  # fmt: skip
async def test_what_cannot_be_filled_is_rejected_before_anything_is_made(
    client: FullCsiClient, pool: FakePool, files: Files, rejected: Rejected, capability: VolumeCapability, parameters: dict[str, str], words: str
) -> None:  # fmt: skip
    request = {names.PARAM_CONTENT: encode(FolderSpec("models")), **parameters}
    failure = await rejected(client.create_volume("pvc-1", 8 * MI, [capability], parameters=request))
    assert failure.infeasible
    assert words in failure.message
    assert (await pool.list(), files.seen) == ([], [])


async def test_a_claims_content_sends_the_classs_secret_only_where_the_secret_says(
    client: FullCsiClient, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    failure = await rejected(make(client, files, secrets={"token": "t0ps3cret", "hosts": "files.example.com"}))
    assert failure.infeasible
    assert f"its key 'hosts' does not name '{files.url}'" in failure.message
    assert "t0ps3cret" not in failure.message
    assert (await pool.list(), files.seen) == ([], [])
    files.auth = "Bearer t0ps3cret"
    await made(client, files, secrets={"token": "t0ps3cret", "hosts": f"files.example.com {files.url}"})
    assert len(files.seen) == 1


async def test_the_classs_own_source_needs_no_hosts(client: FullCsiClient, files: Files) -> None:
    files.auth = "Bearer t0ps3cret"
    source = f"{files.url}/x#sha256={hashlib.sha256(b'hello').hexdigest()}"
    await made(client, files, parameters={"source": source}, secrets={"token": "t0ps3cret"})
    assert len(files.seen) == 1


@pytest.mark.parametrize(
    "attribute",
    [
        {"source": "dir://FOLDER/models"},
        {"source": "folder:models"},
        {"source": ""},
        {names.PARAM_CONTENT: encode(FolderSpec("models"))},
        {names.UNDELETE: "3600"},
        {names.PARAM_CLUSTER: "another"},
    ],
)
async def test_inline_volumes_begin_empty_and_have_no_attribute_of_classes(
    client: FullCsiClient, pool: FakePool, folder: Path, rejected: Rejected, attribute: dict[str, str]
) -> None:
    ((key, value),) = attribute.items()
    context = {names.CSI_EPHEMERAL: "true", "size": "1Mi", key: value.replace("FOLDER", str(folder))}
    failure = await rejected(client.publish("csi-1", folder / "pod", MOUNT, context=context))
    assert failure.code is Code.INVALID_ARGUMENT
    assert f"volumeAttributes: {key!r}" in failure.message
    assert await pool.list() == []


async def test_a_volume_that_was_made_empty_stays_empty(
    client: FullCsiClient, pool: FakePool, files: Files, rejected: Rejected
) -> None:
    await client.create_volume("pvc-1", 8 * MI, [MOUNT])
    assert (await rejected(make(client, files))).code is Code.ALREADY_EXISTS
    assert len(await pool.list()) == 1


async def test_a_copy_is_of_its_source_whatever_its_class_says(
    client: FullCsiClient, rejected: Rejected, pool: FakePool, files: Files
) -> None:
    from tonnage.csi.client.types import ContentSource

    await client.create_volume("pvc-0", 8 * MI, [MOUNT])
    source = ContentSource(volume_id="default/pvc-0")
    await client.create_volume("pvc-2", 8 * MI, [MOUNT], parameters={"source": "folder:models"}, source=source)
    assert CONTENT not in (await pool.get("pvc-2")).owner
    files.status = [503]
    assert (await rejected(make(client, files))).code is Code.UNAVAILABLE
    source = ContentSource(volume_id="default/pvc-1")
    failure = await rejected(client.create_volume("pvc-3", 8 * MI, [MOUNT], source=source))
    assert failure.code is Code.FAILED_PRECONDITION
    failure = await rejected(client.create_snapshot("s", "default/pvc-1"))
    assert (failure.code, "is being filled" in failure.message) == (Code.FAILED_PRECONDITION, True)
