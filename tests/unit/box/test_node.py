"""One node of a box, with a fake pool and the runtime that runs nothing."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from pathlib import Path

import pytest

from tonnage.base.errors import PreconditionError
from tonnage.csi.client.types import NodeInfo
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.kubernetes.api.kinds import EVENTS, NODES, PODS
from tonnage.kubernetes.api.names import DRIVER
from tonnage.kubernetes.api.pods import Pod
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.api.wait import until
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box, BoxOptions
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.kubelet.volumes import plugins
from tonnage_box.kubelet.volumes.csi_node_writer import NodeInfoWriter
from tonnage_box.node import BoxNode
from tonnage_box.plan import plan

SETTINGS = Settings(nodes=2, pools=["fake,size=10Gi"], runtime="none")


def box(folder: Path, options: BoxOptions | None = None, **more: object) -> Box:
    data = DataFolder(folder / "d")
    return Box(data, plan(data, data.settings() or SETTINGS), options, **more)  # type: ignore[arg-type]


def running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


async def test_a_kubelet_that_fails_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = box(tmp_path)
    await made.start()
    try:
        kubelet = made.nodes["node-1"].kubelet

        async def fail(driver: str) -> None:
            raise RuntimeError("boom")

        monkeypatch.setattr(kubelet.volumes.csi, "sweep", fail)
        kubelet._sweeps.put_nowait(DRIVER)
        async with asyncio.timeout(60):
            while "kubelet failed, restarting it node=node-1" not in caplog.text:
                await asyncio.sleep(0.01)
        monkeypatch.undo()
        for name in ("p", "q"):  # one for each node
            await made.client.create(PODS, pod_with(name, {"data": "6Gi"}), "default")
            await until(made.client, PODS, name, running, namespace="default")
    finally:
        await made.stop()


async def test_a_data_folder_whose_path_was_too_long_for_sockets(tmp_path: Path) -> None:
    """Its nodes have links to another folder, which is gone."""
    with tempfile.TemporaryDirectory() as short:
        for _ in range(2):
            made = box(Path(short))
            await made.start()
            usual = made.data.node("node-1") / "kubelet" / "plugins_registry"
            assert usual.is_dir()
            assert not usual.is_symlink()
            await made.stop()
            shutil.rmtree(usual)
            usual.symlink_to(tmp_path / "gone")


async def test_a_kubelet_that_does_not_stop_is_left_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = box(tmp_path)
    await made.start()
    try:
        nodes = list(made.nodes.values())
        for each in nodes:
            monkeypatch.setattr(each.kubelet, "stop", asyncio.Event().wait)
            await each.stop(seconds=0.01)
    finally:
        await made.stop()
    assert caplog.text.count("kubelet not stopped in time") == len(nodes)


async def test_an_external_driver_is_deregistered_when_the_box_stops(tmp_path: Path) -> None:
    name, data = "other.example.com", DataFolder(tmp_path / "d")
    driver = Driver("node-1", {"a": FakePool("a", 1 << 30)}, tmp_path / "state", name=name)
    async with DriverEndpoint(driver, tmp_path / "other.sock", registry=None) as endpoint:
        settings = Settings(pools=["fake,size=10Gi"], runtime="none")
        made = Box(data, plan(data, settings, csi_endpoints=[str(endpoint.socket)]))
        await made.start()
        registry = Path(made.nodes["node-1"].kubelet.paths.registry)
        try:
            async with asyncio.timeout(60):
                while made.nodes["node-1"].kubelet.drivers.find(name) is None:
                    await asyncio.sleep(0.01)
            assert (registry / f"{name}-reg.sock").exists()
        finally:
            await made.stop()
        assert not list(registry.glob("*"))


async def test_a_box_without_inotify_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has 128 instances, and a box may have 1000 nodes."""

    def reject() -> None:
        raise OSError(errno.EMFILE, "inotify: Too many open files")

    monkeypatch.setattr(plugins, "Inotify", reject)
    made = box(tmp_path)
    await made.start()
    try:
        await made.client.create(PODS, pod_with("p", {"data": "1Gi"}), "default")
        await until(made.client, PODS, "p", running, namespace="default")
    finally:
        await made.stop()


async def test_a_box_that_is_up_looks_no_more_at_what_its_nodes_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That reads all capacity, for each node."""
    made = box(tmp_path)
    await made.start()
    try:
        looks: list[str] = []

        def look(one: BoxNode) -> list[str]:
            looks.append(one.name)
            return []

        monkeypatch.setattr(BoxNode, "_lacks", look)
        await made.client.patch(NODES, "node-1", {"metadata": {"labels": {"a": "b"}}})
        assert made._informers is not None
        cache = made._informers.of(NODES).cache
        async with asyncio.timeout(60):
            while (seen := cache.get("node-1")) is None or "a" not in seen.metadata.labels:
                await asyncio.sleep(0.01)
        assert not looks
    finally:
        await made.stop()


async def test_a_driver_that_the_kubelet_rejects_does_not_stop_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after `kubectl label node`: without the API server, nobody could take the label back."""

    async def reject(writer: NodeInfoWriter, driver: str, info: NodeInfo) -> None:
        raise PreconditionError("detected topology value collision")

    monkeypatch.setattr(NodeInfoWriter, "add", reject)
    monkeypatch.setattr(BoxNode, "ready_seconds", 3600.0)  # nothing waits for what only a person can repair
    made = box(tmp_path)
    try:
        await made.start()
        for name in ("node-1", "node-2"):
            why = "detected topology value collision; pods get no volumes of it"
            assert f"node {name}: driver csi.tonnage.dev is not registered: {why}" in caplog.text
        assert len((await made.client.list(NODES)).items) == 2
    finally:
        await made.stop()


async def test_a_box_is_up_when_the_scheduler_knows_its_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, add = asyncio.Event(), NodeInfoWriter.add

    async def add_later(writer: NodeInfoWriter, driver: str, info: NodeInfo) -> None:
        await gate.wait()
        await add(writer, driver, info)

    monkeypatch.setattr(NodeInfoWriter, "add", add_later)
    made = box(tmp_path)
    starting = asyncio.ensure_future(made.start())
    try:
        async with asyncio.timeout(60):
            while "node node-1: registration of drivers csi.tonnage.dev" not in made._waits_for():
                await asyncio.sleep(0.01)
            assert not starting.done()
            gate.set()
            await starting
        await made.client.create(PODS, pod_with("p", {"data": "1Gi"}), "default")
        await until(made.client, PODS, "p", running, namespace="default")
        assert "FailedScheduling" not in {event.reason for event in (await made.client.list(EVENTS)).items}
    finally:
        starting.cancel()
        await made.stop()
