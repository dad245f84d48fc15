"""The data folder of a cluster of commit 6cf5dba: the API server serves every object, `tonnage up` goes on with it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.upgrade.archive import unpack

from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.transport import MERGE_PATCH, Request, Transport
from tonnage_box.apiserver.server.server import ApiServer, extractor
from tonnage_box.apiserver.storage.sqlite import SqliteStore
from tonnage_box.data_dir import DataFolder

LASTING = [f"/api/v1/{plural}" for plural in ("nodes", "pods", "persistentvolumeclaims", "persistentvolumes")]
Objects = dict[str, list[dict[str, Any]]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for archive in ("data", "objects"):
        unpack(archive, tmp_path)
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


async def uids(data: Path, paths: Sequence[str]) -> set[str]:
    """Of the objects in state.db."""
    server = ApiServer(SqliteStore(data / "state.db", extractor(), used=True))
    await server.start()
    found = {item["metadata"]["uid"] for path in paths for item in await served(server.transport(), path)}
    await server.stop()
    return found


def test_up_goes_on_with_the_cluster(data: Path, before: Objects) -> None:
    """With the settings of then, which name a kind of pool by its old name."""
    up = [sys.executable, "-m", "tonnage", "up", "--data", str(data), "--port", "0", "--detach"]
    started = subprocess.run(up, capture_output=True, text=True, timeout=200, check=False)
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        assert "3 nodes" in started.stdout
    finally:
        DataFolder(data).end_running()
    assert "Traceback" not in (data / "tonnage.log").read_text()
    now = asyncio.run(uids(data, LASTING))
    for path in LASTING:
        assert {item["metadata"]["uid"] for item in before[path]} <= now, path
