"""`tonnage volumes`: what it shows, and what it refuses to delete."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

Run = Callable[..., Any]
GIB = 1 << 30


def _listed(tonnage: Run, socket: Path) -> list[str]:
    volumes = json.loads(tonnage("volumes", "list", "--endpoint", socket, "-o", "json").out)["volumes"]
    return [volume["id"] for volume in volumes]


def test_list(tonnage: Run, socket: Path) -> None:
    shown = tonnage("volumes", "list", "--endpoint", socket)

    header, one, two = shown.out.splitlines()
    assert header.split() == ["NODE", "VOLUME", "SIZE", "MADE", "FOR", "CREATED"]
    assert one.split()[:5] == ["-", "a/claimed", "1Gi", "claim", "shop/data"]
    assert two.split()[:4] == ["-", "b/plain", "2Gi", "-"]


@pytest.mark.parametrize("name", ["a/claimed", "claimed"])
def test_show(tonnage: Run, socket: Path, name: str) -> None:
    shown = tonnage("volumes", "show", name, "--endpoint", socket)

    lines = shown.out.splitlines()
    assert lines[:3] == ["id: a/claimed", "size: 1Gi", "driver: csi.tonnage.dev"]
    assert {"claim: shop/data", "cluster: c1", "topology: topology.tonnage.dev/node=n1"} <= set(lines)


def test_show_as_data(tonnage: Run, socket: Path) -> None:
    one = msgspec.yaml.decode(tonnage("volumes", "show", "plain", "--endpoint", socket, "-o", "yaml").out)
    two = json.loads(tonnage("volumes", "show", "plain", "claimed", "--endpoint", socket, "-o", "json").out)

    assert (one["id"], one["size"]) == ("b/plain", 2 * GIB)
    assert [volume["id"] for volume in two] == ["b/plain", "a/claimed"]


def test_purge_is_a_dry_run_first(tonnage: Run, socket: Path) -> None:
    shown = tonnage("volumes", "purge", "plain", "--endpoint", socket)

    assert shown.code == 0
    assert "b/plain" in shown.out
    assert shown.error == (
        "1 volume (2Gi) would be deleted with all data; nothing was touched. Repeat with --yes to delete\n"
    )
    assert _listed(tonnage, socket) == ["a/claimed", "b/plain"]


def test_purge(tonnage: Run, socket: Path) -> None:
    shown = tonnage("volumes", "purge", "plain", "--yes", "--endpoint", socket)

    assert (shown.code, shown.error) == (0, "deleted 1 of 1 volume (2Gi)\n")
    assert _listed(tonnage, socket) == ["a/claimed"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["purge", "none", "plain", "--yes"], 1, "there is no volume 'none'; `tonnage volumes list` shows those there"),
        (
            ["purge", "plain", "claimed", "--yes"], 3,
            "volume a/claimed was made for claim shop/data, and only its cluster knows whether it is in use:"
            " name its kubeconfig with --kubeconfig",
        ),
        (["orphans"], 3, "only a volume's cluster knows whether it is in use: name its kubeconfig with --kubeconfig"),
        (["adopt", "plain"], 3, "only a volume's cluster knows whether it is in use: name its kubeconfig"),
        (["show", "none"], 1, "there is no volume 'none'"),
        (["orphans", "--kubeconfig", "/nowhere"], 2, "kubeconfig /nowhere: No such file or directory"),
    ],
)  # fmt: skip
def test_refused_and_nothing_deleted(tonnage: Run, socket: Path, arguments: list[str], code: int, message: str) -> None:
    shown = tonnage("volumes", *arguments, "--endpoint", socket)

    assert shown.code == code
    assert shown.error.startswith("tonnage volumes: ")
    assert message in shown.error
    assert _listed(tonnage, socket) == ["a/claimed", "b/plain"]


def test_no_driver_there(tonnage: Run, tmp_path: Path) -> None:
    shown = tonnage("volumes", "list", "--endpoint", "/nowhere/csi.sock")

    assert shown.code == 1
    assert shown.error == (
        "tonnage volumes: no driver answers at /nowhere/csi.sock: start it, or read its pools with --config or --pool\n"
    )
