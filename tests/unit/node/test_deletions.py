"""An agent deletes through one module, with a proof and a line in the log."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import tonnage.node
from tonnage_box.testing.node import MakeNode
from tonnage_box.testing.objects import MakeClaim
from tonnage_box.testing.wait import Eventually

_NODE = Path(tonnage.node.__file__).parent
_CALLS = {"delete_volume", "delete_unused_volume", "reclaim_volume", "delete_snapshot", "delete_group_snapshot"}
_ASKS = ("reclaim/finished.py", "reclaim_volume", 1)
"""Without a reason, the call only asks for the state."""


def _calls(file: Path) -> Iterator[tuple[str, str, int]]:
    """Calls that delete at a driver, and deletions of claims and PersistentVolumes: file, name, number of arguments."""
    for found in ast.walk(ast.parse(file.read_text())):
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
            first = found.args[0].id if found.args and isinstance(found.args[0], ast.Name) else ""
            if found.func.attr in _CALLS or (found.func.attr == "delete" and first in ("CLAIMS", "VOLUMES")):
                yield str(file.relative_to(_NODE)), found.func.attr, len(found.args)


def test_nothing_else_deletes() -> None:
    found = [call for file in _NODE.rglob("*.py") for call in _calls(file)]
    assert [call for call in found if call[0] == "deletions.py"]
    assert [call for call in found if call[0] != "deletions.py"] == [_ASKS]


@pytest.mark.virtual_time
async def test_each_deletion_is_one_line_with_its_proof(
    make_node: MakeNode, make_claim: MakeClaim, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tonnage.node.deletions")
    node = await make_node("10Gi")
    await make_claim("data", storageClassName="late")
    await node.select("data")
    await eventually(lambda: node.is_bound("data"))
    volume = await node.release("data")

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "tonnage.node.deletions"]

    async def deleted() -> bool:
        return await node.volumes() == [] and bool(lines())

    await eventually(deleted)
    name, uid = volume.metadata.name, volume.metadata.uid
    assert lines()[0].startswith(f"deleted what=volume name=scratch/{name} driver=csi.tonnage.dev proof=")
    assert f"PersistentVolume {name} (uid {uid}, resourceVersion " in lines()[0]
    assert lines()[0].endswith("is Released with policy Delete")
