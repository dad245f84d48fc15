"""Drivers of others: what --csi-endpoint may say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tonnage.base.errors import InvalidError
from tonnage_box.plan import external_sockets

ONE, TWO = ["node-1"], ["node-1", "node-2"]


@pytest.mark.parametrize(
    ("text", "nodes", "expected"),
    [
        ("/run/a.sock", ONE, {"node-1": [Path("/run/a.sock")]}),
        ("unix:///run/a.sock", ONE, {"node-1": [Path("/run/a.sock")]}),
        ("unix:/run/a.sock", ONE, {"node-1": [Path("/run/a.sock")]}),
        ("node-2=/run/a.sock", TWO, {"node-2": [Path("/run/a.sock")]}),
        ("node-2=unix:///run/a.sock", TWO, {"node-2": [Path("/run/a.sock")]}),
        ("/run/a=b.sock", ONE, {"node-1": [Path("/run/a=b.sock")]}),
        ("a.sock", ONE, {"node-1": [Path(os.getcwd(), "a.sock")]}),
    ],
)
def test_a_socket_and_its_node(text: str, nodes: list[str], expected: dict[str, list[Path]]) -> None:
    assert external_sockets([text], nodes) == expected


@pytest.mark.parametrize(
    ("texts", "nodes", "reason"),
    [
        (["/a.sock"], TWO, r"there are 2 nodes.*node-1=/a\.sock"),
        (["node-3=/a.sock"], TWO, "no node 'node-3', only node-1, node-2"),
        (["node-1=/a.sock", "node-2=/a.sock"], TWO, "already serves node-1"),
        (["/a.sock", "unix:///a.sock"], ONE, "already serves node-1"),
        (["node-1="], ONE, "want .NODE=.SOCKET"),
        ([""], ONE, "want .NODE=.SOCKET"),
        (["/" + "x" * 120], ONE, "Linux takes 107"),
    ],
)
def test_what_makes_no_sense_is_rejected(texts: list[str], nodes: list[str], reason: str) -> None:
    with pytest.raises(InvalidError, match=reason):
        external_sockets(texts, nodes)
