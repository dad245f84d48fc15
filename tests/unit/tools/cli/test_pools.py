"""`tonnage pools`: as a table, as JSON and YAML, and its rejections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.config import make, parse

Run = Callable[..., Any]
GIB = 1 << 30


def test_a_table(tonnage: Run, socket: Path) -> None:
    shown = tonnage("pools", "--endpoint", socket, "--pool", "fake,name=a,size=10Gi")

    assert shown.code == 0
    assert [line.split() for line in shown.out.splitlines()] == [
        ["NODE", "POOL", "KIND", "SIZE", "FREE", "LARGEST", "ALLOCATED", "INLINE", "ERASING", "VOLUMES", "WHERE"],
        ["-", "a", "fake", "10Gi", "9Gi", "9Gi", "1Gi", "-", "0", "1", "-"],
        ["-", "b", "fake", "5Gi", "3Gi", "3Gi", "2Gi", "-", "0", "1", "-"],
    ]


@pytest.mark.parametrize(("form", "decode"), [("json", json.loads), ("yaml", msgspec.yaml.decode)])
def test_data(tonnage: Run, socket: Path, form: str, decode: Callable[[str], Any]) -> None:
    shown = tonnage("pools", "--endpoint", socket, "--pool", "fake,name=a,size=10Gi", "-o", form)

    assert decode(shown.out) == {
        "pools": [
            {"pool": "a", "kind": "fake", "size": 10 * GIB, "free": 9 * GIB, "largest": 9 * GIB,
             "allocated": GIB, "erasing": 0, "volumes": 1},
            {"pool": "b", "kind": "fake", "size": 5 * GIB, "free": 3 * GIB, "largest": 3 * GIB,
             "allocated": 2 * GIB, "erasing": 0, "volumes": 1},
        ],
        "disks": [],
    }  # fmt: skip


def test_what_disks_lack_is_told(tonnage: Run, tmp_path: Path) -> None:
    shown = tonnage("pools", "--pool", f"image:{tmp_path}/p,size=1Ei", "-o", "json")

    assert shown.code == 0
    found = json.loads(shown.out)
    assert found["pools"] == [
        {"pool": "image", "state": "not made yet", "kind": "image", "where": f"{tmp_path}/p", "size": 1 << 60}
    ]
    (disk,) = found["disks"]
    assert disk["lacks"] == disk["size"] - disk["free"] > 0
    assert not (tmp_path / "p").exists()


def test_a_pool_that_cannot_be_read_is_a_failure(tonnage: Run, socket: Path) -> None:
    shown = tonnage("pools", "--endpoint", socket, "--pool", "fake,name=c,size=1Gi")

    assert shown.code == 1
    assert "c     fake  1Gi   -" in shown.out
    assert "(cannot be read)" in shown.out
    assert shown.error == "tonnage pools: pool c: there is no pool 'c' (there is a, b)\n"


def test_nowhere_to_look(tonnage: Run, tmp_path: Path) -> None:
    shown = tonnage("pools", "--data", tmp_path / "none")

    assert shown.code == 1
    assert "there is no cluster in" in shown.error
    assert "name a box's folder with --data, or a driver with --endpoint, --config or --pool" in shown.error


@pytest.mark.real
def test_what_is_wrong_is_said_with_what_to_do(tonnage: Run, real_folder: Path) -> None:
    where = f"image:{real_folder}/pool,name=p,size=1Gi,sparse=yes"

    async def prepare() -> None:
        pool = make(parse(where))
        await pool.open()
        await pool.create(VolumeRequest("v", 16 << 20, block=True))
        await pool.close()

    asyncio.run(prepare())
    (real_folder / "pool" / "v.img").unlink()
    shown = tonnage("pools", "--pool", where)
    assert shown.code == 0
    assert shown.error == "tonnage pools: pool p: 1 volume is abnormal: `tonnage volumes list` says which and why\n"
    (told,) = json.loads(tonnage("pools", "--pool", where, "-o", "json").out)["pools"]
    assert told["abnormal"] == 1
    listed = tonnage("volumes", "list", "--pool", where)
    assert "abnormal" in listed.out
    assert "volume p/v: volume v: its image" in listed.error


def test_list_is_the_same_whatever_side_options_are_on(tonnage: Run, socket: Path) -> None:
    plain = tonnage("pools", "--endpoint", socket, "-o", "json")
    assert plain.code == 0
    for arguments in (
        ("list", "--endpoint", socket, "-o", "json"),
        ("--endpoint", socket, "-o", "json", "list"),
        ("--endpoint", socket, "list", "-o", "json"),
    ):
        assert tonnage("pools", *arguments).out == plain.out
