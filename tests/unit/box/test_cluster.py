"""The box put together, without root: pods get their volumes, and everything is there again after a restart."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import msgspec
import pytest

from tonnage.base.errors import ApiError, BusyError
from tonnage.kubernetes.api.kinds import CLAIMS, CONTROLLER_REVISIONS, NODES, PODS, STATEFUL_SETS, VOLUMES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.http import HttpTransport
from tonnage.kubernetes.client.kubeconfig import load
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy
from tonnage_box.api.wait import until, until_gone
from tonnage_box.apiserver.server import auth
from tonnage_box.apiserver.server.server import ApiServer
from tonnage_box.apiserver.storage.sqlite import _checksum
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box, BoxOptions
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan

SETTINGS = Settings(nodes=2, pools=["fake,size=10Gi"], runtime="none")


def box(folder: Path, options: BoxOptions | None = None, **more: object) -> Box:
    data = DataFolder(folder / "d")
    return Box(data, plan(data, data.settings() or SETTINGS), options, **more)  # type: ignore[arg-type]


def running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


async def test_a_pod_gets_its_volume_and_is_there_after_a_restart(tmp_path: Path) -> None:
    first = box(tmp_path)
    await first.start()
    await first.client.create(PODS, pod_with("p", {"data": "1Gi"}), "default")
    before = await until(first.client, PODS, "p", running, namespace="default")
    await first.stop()
    await first.stop()

    second = box(tmp_path)
    await second.start()
    try:
        pod = await until(second.client, PODS, "p", running, namespace="default")
        assert pod.metadata.uid == before.metadata.uid
        assert len((await second.client.list(NODES)).items) == 2
        await second.client.delete(PODS, "p", "default", grace_seconds=0)
        await until_gone(second.client, CLAIMS)
        await until_gone(second.client, VOLUMES)
    finally:
        await second.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("scoring", "nodes"), [("tightest-fit", 1), ("most-free", 2)])
async def test_the_scoring_that_was_asked_for_places_pods(tmp_path: Path, scoring: str, nodes: int) -> None:
    data = DataFolder(tmp_path / "d")
    made = Box(data, plan(data, msgspec.structs.replace(SETTINGS, scoring=ScoringStrategy(scoring))))
    await made.start()
    try:
        found = []
        for name in ("a", "b", "c"):
            await made.client.create(PODS, pod_with(name, {"data": "1Gi"}), "default")
            found.append(await until(made.client, PODS, name, running, namespace="default"))
        assert len({pod.spec.node_name for pod in found}) == nodes
    finally:
        await made.stop()


async def test_one_process_a_folder(tmp_path: Path) -> None:
    first = box(tmp_path)
    await first.start()
    try:
        with pytest.raises(BusyError, match="in use by process"):
            await box(tmp_path).start()
    finally:
        await first.stop()


async def test_a_second_box_takes_a_free_port_and_has_it_again(tmp_path: Path) -> None:
    steps: list[str] = []

    async def port(folder: Path, usual: int, wanted: int | None = None) -> int:
        made = box(folder, BoxOptions(port=wanted), progress=lambda what, detail: steps.append(f"{what} {detail}"))
        made.usual_port = usual
        await made.start()
        try:
            return auth.port_of(made.kubeconfig)
        finally:
            await made.stop()

    with socket.create_server(("127.0.0.1", 0)) as first:
        usual = first.getsockname()[1]
        second = await port(tmp_path / "second", usual)
        assert second != usual
        assert f"API server https://127.0.0.1:{second} (port {usual} is taken by another program)" in steps
        with pytest.raises(BusyError, match=f"port {usual} .* choose another port"):
            await port(tmp_path / "asked", usual, usual)
    assert await port(tmp_path / "second", usual) == second, "a kubeconfig that was copied still serves"
    assert await port(tmp_path / "third", usual) == usual
    (tmp_path / "third" / "d" / "kubeconfig").write_text("clusters: []")
    assert await port(tmp_path / "third", usual) == usual


async def test_listening_everywhere_is_reached_by_loopback(tmp_path: Path) -> None:
    made = box(tmp_path, BoxOptions(host="0.0.0.0"))
    await made.start()
    client = Client(HttpTransport(load(made.kubeconfig)))
    try:
        assert len((await client.list(NODES)).items) == 2
    finally:
        await client.close()
        await made.stop()


async def test_an_object_that_cannot_be_read_does_not_stop_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever wrote it: it may be in state.db already. It is named, and all controllers work."""
    first = box(tmp_path)
    await first.start()
    await first.client.create(CONTROLLER_REVISIONS, {"metadata": {"name": "x"}, "data": {}, "revision": 1}, "default")
    await first.stop()
    with closing(sqlite3.connect(first.data.state)) as state, state:
        where = "collection = 'apps/controllerrevisions' AND name = 'x'"
        read = f"SELECT namespace, revision, data FROM objects WHERE {where}"
        [[namespace, revision, data]] = state.execute(read).fetchall()
        bad = data.replace(b'"data":{}', b'"data":[1]')
        assert bad != data
        checksum = _checksum("apps/controllerrevisions", namespace, "x", revision, bad)
        state.execute(f"UPDATE objects SET data = ?, checksum = ? WHERE {where}", [bad, checksum])

    second = box(tmp_path)
    await second.start()
    try:
        assert "controllerrevisions default/x: cannot be read: data: Expected `object`, got `array`" in caplog.text
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "s", "template": template}
        await second.client.create(STATEFUL_SETS, {"metadata": {"name": "s"}, "spec": spec}, "default")
        await until(second.client, PODS, "s-0", running, namespace="default")
        await second.client.delete(CONTROLLER_REVISIONS, "x", "default")
        await second.client.create(CONTROLLER_REVISIONS, {"metadata": {"name": "x"}, "data": {}}, "default")
    finally:
        await second.stop()


class Rejecting:
    """A transport whose lists of one resource are rejected until told otherwise."""

    rejects = True

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    async def request(self, request: Request) -> Response:
        if self.rejects and request.method == "GET" and request.path.endswith("/controllerrevisions"):
            raise ApiError("the disk is on fire", code=500)
        return await self.inner.request(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self.inner.stream(request)

    async def close(self) -> None:
        await self.inner.close()


async def test_a_start_that_waits_says_on_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    transport = ApiServer.transport
    monkeypatch.setattr(ApiServer, "transport", lambda self, *more: Rejecting(transport(self, *more)))
    heard: list[str] = []

    def hear(what: str) -> None:
        heard.append(what)
        if "controllerrevisions" in what and "fire" in what:
            monkeypatch.setattr(Rejecting, "rejects", False)

    made = box(tmp_path, waiting=hear)
    made.report_waits_after = 0.05
    await made.start()
    await made.stop()
    assert any("controllerrevisions is not synced: the disk is on fire" in what for what in heard)
    assert len(heard) == len(set(heard))
    assert "start is waiting for: " in caplog.text
