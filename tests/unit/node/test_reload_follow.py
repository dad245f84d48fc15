"""A configuration file changes: what is followed."""

from __future__ import annotations

import os

import pytest
import yaml
from tests.unit.node.served import ONE, TWO, ServedNode, make


async def test_a_plain_file_is_followed_too(node: ServedNode) -> None:
    """Written in place, and renamed over by an editor."""
    file = node.mounted.file
    text = {"kubelet": str(node.mounted.kubelet)}
    file.unlink()
    file.write_text(yaml.safe_dump({**text, "pools": [ONE, TWO]}))
    assert await node.told("pool two is added", reason="ConfigurationChanged") == "Normal"
    beside = file.with_name("node.yaml.swp")
    beside.write_text(yaml.safe_dump({**text, "pools": [ONE]}))
    os.rename(beside, file)
    assert await node.told("pool two is no longer served", reason="ConfigurationChanged") == "Normal"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pools: [", "line 1"),
        ("pools: []", "no pools: name at least one"),
        ("pools: [{name: one, kind: fake, sise: 1Gi}]", "sise"),
        ("nodeNames: x", "unknown field"),
    ],
)
async def test_a_file_that_cannot_be_read_changes_nothing(node: ServedNode, text: str, said: str) -> None:
    node.mounted.put_text(text)
    assert await node.told(said, reason="ConfigurationRefused") == "Warning"
    assert [e for e in await node.events() if "everything stays as it was" in e[2]]
    assert await make(node, "pvc-1", "one") == "one/pvc-1"
    node.mounted.put(pools=[ONE, TWO])
    await node.told("pool two is added", reason="ConfigurationChanged")
