"""`tonnage why POD`: tables, documents, the last line, and what cannot be explained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tonnage.kubernetes.api.kinds import NODES, PODS
from tonnage.kubernetes.api.pods import Pod
from tonnage.tools.cli.main import main
from tonnage_box.api.wait import until
from tonnage_box.cli.workloads import pod_with
from tonnage_box.cluster import Box
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.plan import plan


def rejected(pod: Pod) -> bool:
    return any(c.type == "PodScheduled" and "free storage" in c.message for c in pod.status.conditions)


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    """Two nodes of 2Gi each, one of them cordoned, and a pod that asks for 3Gi."""
    data = DataFolder(tmp_path / "d")
    made = Box(data, plan(data, Settings(nodes=2, pools=["fake,size=2Gi"], runtime="none")))
    await made.start()
    try:
        await made.client.patch(NODES, "node-2", {"spec": {"unschedulable": True}})
        await made.client.create(PODS, pod_with("large", {"data": "3Gi"}), "default")
        await until(made.client, PODS, "large", rejected, namespace="default")
        yield made
    finally:
        await made.stop()


async def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["why", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
async def test_tables_and_what_to_do(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (await said(capsys, "pod/large", "--data", str(box.data.path))).splitlines()

    assert any(line.split()[:2] == ["node-1", "no"] and "asks 3Gi, free 2Gi, largest 2Gi" in line for line in lines)
    assert any(line.split()[:2] == ["node-2", "no"] and "unschedulable" in line for line in lines)
    assert any(line.split()[:6] == ["node-1", "large-data", "tonnage-scratch", "3Gi", "2Gi", "2Gi"] for line in lines)
    assert any(line.strip().startswith("read at 20") for line in lines)
    assert lines[-1] == (
        "To do: nearest is node-1: ask for at most 2Gi in large-data, or free 1Gi on node-1 by deleting pods or claims "
        "there, or add a node"
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_documents_say_what_the_scheduler_said(box: Box, capsys: pytest.CaptureFixture[str], form: str) -> None:
    out = await said(capsys, "large", "-n", "default", "--kubeconfig", str(box.data.kubeconfig), "-o", form)
    found = json.loads(out) if form == "json" else yaml.safe_load(out)

    assert found["message"] == (
        "0/2 nodes are available: 1 node(s) did not have enough free storage, 1 node(s) were unschedulable."
    )
    assert {answer["node"]: answer["fits"] for answer in found["nodes"]} == {"node-1": False, "node-2": False}
    assert found["nodes"][0]["claims"][0]["asked"] == 3 * 1024**3
    assert found["nodes"][0]["claims"][0]["storageClass"] == "tonnage-scratch"


async def test_what_cannot_be_explained(
    box: Box, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    where = ["--data", str(box.data.path)]
    assert await asyncio.to_thread(main, ["why", "nope", *where]) == 1
    assert '"nope" not found' in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["why", "node/node-1", *where]) == 2
    assert "want a pod's name, or pvc/NAME" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["why", "large", "--data", str(tmp_path / "none")]) != 0
    assert "no cluster runs in" in capsys.readouterr().err
