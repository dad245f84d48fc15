"""The box put together, without root: pods get their volumes, and everything is there again after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tonnage.api.kinds import CLAIMS, NODES, PODS, VOLUMES
from tonnage.api.names import DRIVER
from tonnage.api.pods import Pod
from tonnage.apps.cluster import Box
from tonnage.apps.data import DataFolder, Settings
from tonnage.apps.plan import plan
from tonnage.cli.workloads import pod_with
from tonnage.errors import Busy
from tonnage.kube.client import Client
from tonnage.kube.http import HttpTransport
from tonnage.kube.kubeconfig import load
from tonnage.kube.wait import until, until_gone
from tonnage.scheduler.strategies import Strategy

SETTINGS = Settings(nodes=2, pools=["memory,size=10Gi"], runtime="none")


def box(folder: Path, **options: object) -> Box:
    data = DataFolder(folder / "d")
    return Box(data, plan(data, data.settings() or SETTINGS), **options)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("scoring", "nodes"), [("tightest-fit", 1), ("most-free", 2)])
async def test_the_scoring_that_was_asked_for_places_pods(tmp_path: Path, scoring: str, nodes: int) -> None:
    data = DataFolder(tmp_path / "d")
    made = Box(data, plan(data, msgspec.structs.replace(SETTINGS, scoring=Strategy(scoring))))
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
        with pytest.raises(Busy, match="in use by process"):
            await box(tmp_path).start()
    finally:
        await first.stop()


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
            while "kubelet failed, starting it again node=node-1" not in caplog.text:
                await asyncio.sleep(0.01)
        monkeypatch.undo()
        for name in ("p", "q"):  # one for each node
            await made.client.create(PODS, pod_with(name, {"data": "6Gi"}), "default")
            await until(made.client, PODS, name, running, namespace="default")
    finally:
        await made.stop()


async def test_listening_everywhere_is_reached_by_loopback(tmp_path: Path) -> None:
    made = box(tmp_path, host="0.0.0.0")
    await made.start()
    client = Client(HttpTransport(load(made.kubeconfig)))
    try:
        assert len((await client.list(NODES)).items) == 2
    finally:
        await client.close()
        await made.stop()
