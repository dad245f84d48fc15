"""The data folder of a cluster of earlier commits: the API server serves every object, `tonnage up` goes on with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import Cluster, tonnage, verb
from tests.data.maker import claim, of_claim, pod
from tests.upgrade.archive import COMMITS, unpack

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import MERGE_PATCH, Request, Transport
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.data_dir import DataFolder

LASTING = [f"/api/v1/{plural}" for plural in ("nodes", "pods", "persistentvolumeclaims", "persistentvolumes")]
Objects = dict[str, list[dict[str, Any]]]


@pytest.fixture(params=COMMITS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for archive in ("data", "objects"):
        unpack(request.param, archive, tmp_path)
    return tmp_path / "data"


@pytest.fixture
def before(data: Path) -> Objects:
    """What was served then: the path of a list -> its items."""
    found: Objects = json.loads((data.parent / "objects.json").read_text())
    return found


@pytest.fixture
async def server(data: Path) -> AsyncIterator[ApiServer]:
    """The API server over state.db as a kill has left it: part of it is in its log."""
    assert (data / "state.db-wal").stat().st_size > 0
    made = ApiServer(SqliteStore(data / "state.db", extractor(), used=True))
    await made.start()
    yield made
    await made.stop()


async def served(transport: Transport, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads((await transport.request(Request("GET", path))).body)["items"]
    return items


async def test_all_objects_are_served_as_they_were(server: ApiServer, before: Objects) -> None:
    assert {"/api/v1/pods", "/api/v1/events", "/api/v1/persistentvolumeclaims"} <= set(before)
    assert sum(len(items) for items in before.values()) > 80
    for path, items in before.items():
        assert await served(server.transport(), path) == items, path


async def test_all_objects_can_be_changed(server: ApiServer, before: Objects) -> None:
    """Nothing that was stored is rejected by validation."""
    transport = server.transport()
    change = json.dumps({"metadata": {"annotations": {"example.com/changed": "yes"}}}).encode()
    for path, items in before.items():
        for item in items:
            meta = item["metadata"]
            base, _, plural = path.rpartition("/")
            namespace = f"namespaces/{meta['namespace']}/" if "namespace" in meta else ""
            request = Request(
                "PATCH", f"{base}/{namespace}{plural}/{meta['name']}", body=change, content_type=MERGE_PATCH
            )
            answer = await transport.request(request)
            assert answer.status == 200, f"{request.path}: {answer.body.decode()}"
            assert int(json.loads(answer.body)["metadata"]["resourceVersion"]) > int(meta["resourceVersion"])


async def test_all_objects_are_decoded(server: ApiServer, before: Objects) -> None:
    """By the kinds that our controllers watch."""
    client = Client(server.transport())
    known = [kind for kind in vars(kinds).values() if isinstance(kind, kinds.Kind)]
    read = 0
    for kind in known:
        if items := before.get(kind.path()):
            listed = (await client.list(kind)).items
            assert [obj.metadata.uid for obj in listed] == [item["metadata"]["uid"] for item in items]
            read += len(listed)
    assert read > 60


async def test_a_second_start_reads_what_the_first_has_written(data: Path, before: Objects) -> None:
    for _ in range(2):
        server = ApiServer(SqliteStore(data / "state.db", extractor(), used=True))
        await server.start()
        for path, items in before.items():
            assert await served(server.transport(), path) == items
        await server.stop()


async def check_lasting(data: Path, before: Objects) -> None:
    """All objects of then that last are there, by their uids."""
    server = ApiServer(SqliteStore(data / "state.db", extractor(), used=True))
    await server.start()
    for path in LASTING:
        now = {item["metadata"]["uid"] for item in await served(server.transport(), path)}
        assert {item["metadata"]["uid"] for item in before[path]} <= now, path
    await server.stop()


@pytest.mark.parametrize("data", ["6cf5dba"], indirect=True)
def test_up_goes_on_with_the_cluster(data: Path, before: Objects) -> None:
    """With the settings of then, which name a kind of pool by its old name."""
    started = tonnage("up", "--data", str(data), "--port", "0", "--detach")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        assert "3 nodes" in started.stdout
    finally:
        DataFolder(data).end_running()
    assert "Traceback" not in (data / "tonnage.log").read_text()
    asyncio.run(check_lasting(data, before))


def shown(box: Cluster, claim: str) -> str:
    """The file in a claim's volume as a pod sees it, "" where none does."""
    (volume,) = (one.spec.volume_name for one in box.objects(kinds.CLAIMS) if one.metadata.name == claim)
    files = box.data.glob(f"nodes/*/kubelet/pods/*/volumes/kubernetes.io~csi/{volume}/mount/file")
    return "".join(file.read_text() for file in files) if volume else ""


def restored_from(snapshot: str, name: str) -> list[dict[str, Any]]:
    """A claim that restores a snapshot, and its pod."""
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot}
    return [claim(name, "disk", "16Mi", dataSource=source), pod(name, [of_claim(name)])]


@pytest.mark.real
def test_up_goes_on_with_volumes_snapshots_and_trash(make_cluster: Callable[..., Cluster]) -> None:
    """Takes seconds: only a whole box shows that the objects and the pools of then still belong together."""
    box = make_cluster()
    for archive in ("data", "objects"):
        unpack("6914cf6a", archive, box.home)
    (box.home / "data").rename(box.data)
    before: Objects = json.loads((box.home / "objects.json").read_text())
    texts: dict[str, str] = json.loads((box.data / "texts.json").read_text())
    assert "3 nodes" in box.up()
    (trashed,) = (word for word in volumes(box, "trash").split() if word.startswith("disk/"))
    volumes(box, "restore", trashed, "--yes", "--storage-class", "careful")
    taken = {one.spec.source.persistent_volume_claim_name: one.metadata.name for one in box.objects(kinds.SNAPSHOTS)}
    new = [pod("trash", [of_claim("trash")])]
    for name, of in (("monday", "notes"), ("member", "db-log")):
        new += restored_from(taken[of], name)
    box.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": new}))
    of_then = {"notes": "notes", "db-data": "db-data", "db-log": "db-log", "restored": "notes"}
    of_now = {"monday": "notes", "member": "db-log", "trash": "trash"}
    for name, text in {**of_then, **of_now}.items():
        box.until(f"{name} is mounted with its content", partial(is_shown, box, name, texts[text]))
    box.down()
    assert "Traceback" not in (box.data / "tonnage.log").read_text()
    asyncio.run(check_lasting(box.data, before))


def is_shown(box: Cluster, claim: str, text: str) -> bool:
    return shown(box, claim) == text


def volumes(box: Cluster, *arguments: str) -> str:
    """What `tonnage volumes` prints."""
    ended = verb("volumes", *arguments, "--data", str(box.data))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
