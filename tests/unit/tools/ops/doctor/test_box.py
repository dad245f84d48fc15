"""A box: its process, the machine, its nodes and pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tonnage.base.errors import HostError
from tonnage.kubernetes.api.core import Node
from tonnage.tools.ops.cluster_snapshot import View
from tonnage.tools.ops.doctor import box
from tonnage.tools.ops.doctor.finding import Finding, Level
from tonnage_box import plan
from tonnage_box.data_dir import DataFolder, Settings
from tonnage_box.local_box import FoundBox


def _view(**ready: str) -> View:
    """Nodes with the status of their condition Ready, "" for none."""

    def node(name: str, status: str) -> Node:
        conditions = [{"type": "Ready", "status": status, "message": "container runtime is down"}] if status else []
        return msgspec.convert({"metadata": {"name": name}, "status": {"conditions": conditions}}, Node)

    return View("", 0.0, nodes=[node(name, status) for name, status in ready.items()], is_box=True)


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    """A box of one memory pool that does not run."""
    made = DataFolder(tmp_path / "d")
    settings = Settings(pools=["memory,size=1Gi"], runtime="none")
    made.open(plan.plan(made, settings).settings)
    made.close()
    return made


def _levels(found: list[Finding], check: str) -> list[tuple[str, Level]]:
    return [(finding.about, finding.level) for finding in found if finding.check == check]


async def test_nodes_that_are_not_ready() -> None:
    found = await box.check(_view(good="True", bad="False", silent=""), None)
    assert sorted(_levels(found, "nodes")) == [("bad", Level.FAIL), ("good", Level.OK), ("silent", Level.FAIL)]
    assert "container runtime is down" in next(finding.text for finding in found if finding.about == "bad")


async def test_a_box_that_does_not_run(data: DataFolder) -> None:
    found = await box.check(_view(n="True"), FoundBox(data.path))
    assert _levels(found, "box") == [(str(data.path), Level.FAIL)]
    assert _levels(found, "machine") == [("kernel and programs", Level.OK)]


async def test_what_the_machine_lacks(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: Any) -> None:
        raise HostError("mkfs.ext4 is not there")

    monkeypatch.setattr(plan, "check_programs", lacks)
    found = await box.check(_view(n="True"), FoundBox(data.path))
    assert _levels(found, "machine") == [("kernel and programs", Level.FAIL)]
