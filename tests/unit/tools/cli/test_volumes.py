"""`tonnage volumes`: what it shows, and what it rejects to delete."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.csi.full_client import FullCsiClient

from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import VolumeRequest
from tonnage.storage.pools.config import make, parse

Run = Callable[..., Any]
GIB = 1 << 30


def _listed(tonnage: Run, socket: Path) -> list[str]:
    volumes = json.loads(tonnage("volumes", "list", "--endpoint", socket, "-o", "json").out)["volumes"]
    return [volume["id"] for volume in volumes]


def test_list(tonnage: Run, socket: Path) -> None:
    shown = tonnage("volumes", "list", "--endpoint", socket)

    header, one, two = shown.out.splitlines()
    assert header.split() == ["NODE", "VOLUME", "SIZE", "STATE", "MADE", "FOR", "CREATED"]
    assert one.split()[:6] == ["-", "a/claimed", "1Gi", "ok", "claim", "shop/data"]
    assert two.split()[:5] == ["-", "b/plain", "2Gi", "ok", "-"]


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
        (["purge", "none", "plain", "--yes"], 1, "there is no volume or snapshot 'none'; `tonnage volumes list` shows those there"),
        (
            ["purge", "plain", "claimed", "--yes"], 3,
            "volume a/claimed was made for claim shop/data, and only its cluster knows whether it is in use:"
            " name its kubeconfig with --kubeconfig",
        ),
        (["orphans"], 3, "only a volume's cluster knows whether it is in use: name its kubeconfig with --kubeconfig"),
        (["adopt", "plain"], 3, "only a volume's cluster knows whether it is in use: name its kubeconfig"),
        (["show", "none"], 1, "there is no volume or snapshot 'none'"),
        (["orphans", "--kubeconfig", "/nowhere"], 2, "kubeconfig /nowhere: No such file or directory"),
    ],
)  # fmt: skip
def test_rejected_and_nothing_deleted(
    tonnage: Run, socket: Path, arguments: list[str], code: int, message: str
) -> None:
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


@pytest.fixture
def busy(serve: Callable[..., Path]) -> Path:
    """A driver with a volume and its snapshot, a snapshot that Kubernetes made, and a deleted volume being erased."""

    async def fill(client: FullCsiClient) -> None:
        await client.create_volume("v", GIB, [VolumeCapability()], parameters={"erase": "zero"})
        await client.create_snapshot("s", "a/v")
        await client.create_snapshot(KUBERNETES, "a/v")
        await client.create_snapshot("v", "a/v")
        await client.create_volume("gone", 2 * GIB, [VolumeCapability()], parameters={"erase": "zero"})
        await client.delete_volume("a/gone")

    return serve("fake,name=a,size=10Gi,eraserate=1Gi", fill=fill)


KUBERNETES = "snapshot-0f2b8f6e-1d2c-4a3b-8c9d-000000000001"


def test_snapshots_and_erasing_are_listed(tonnage: Run, busy: Path) -> None:
    shown = tonnage("volumes", "list", "--endpoint", busy)
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["NODE", "VOLUME", "SIZE", "STATE", "MADE", "FOR", "CREATED"]
    assert lines[1][:4] == ["-", "a/v", "1Gi", "ok"]
    if lines[2][1] == "a/gone":  # a slow machine may be done with it
        assert lines[2][2:4] == ["2Gi", "erasing"]
        assert lines[2][5] == "%"
    at = next(number for number, line in enumerate(lines) if "SNAPSHOT" in line)
    assert lines[at] == ["NODE", "SNAPSHOT", "SIZE", "OF", "CREATED"]
    assert [line[1:4] for line in lines[at + 1 :]] == [[f"a/{n}", "1Gi", "a/v"] for n in ("s", KUBERNETES, "v")]

    told = json.loads(tonnage("volumes", "list", "--endpoint", busy, "-o", "json").out)
    assert [volume["id"] for volume in told["volumes"]] == ["a/v"]
    assert told["volumes"][0]["erase"] == "zero"
    assert {(s["id"], s["snapshotOf"]) for s in told["snapshots"]} == {
        (f"a/{n}", "a/v") for n in ("s", "v", KUBERNETES)
    }
    assert all(0 <= erasure["percent"] <= 100 and erasure["id"] == "a/gone" for erasure in told["erasing"])


def test_snapshots_are_shown_and_purged_by_name(tonnage: Run, busy: Path) -> None:
    assert "snapshotOf: a/v" in tonnage("volumes", "show", "s", "--endpoint", busy).out.splitlines()
    both = tonnage("volumes", "show", "v", "--endpoint", busy)
    assert both.code == 2
    assert "several have the name 'v' (volume:a/v, snapshot:a/v)" in both.error
    assert "snapshotOf: a/v" in tonnage("volumes", "show", "snapshot:v", "--endpoint", busy).out.splitlines()
    assert "erase: zero" in tonnage("volumes", "show", "volume:a/v", "--endpoint", busy).out.splitlines()

    dry = tonnage("volumes", "purge", "s", "snapshot:a/v", "--endpoint", busy)
    assert (dry.code, dry.error.splitlines()) == (
        0, ["2 snapshots (2Gi) would be deleted with all data; nothing was touched. Repeat with --yes to delete"],
    )  # fmt: skip
    done = tonnage("volumes", "purge", "s", "snapshot:v", "volume:v", "--yes", "--endpoint", busy)
    assert (done.code, done.error.splitlines()) == (
        0,
        [
            "deleted 3 of 3: 1 volume and 2 snapshots (3Gi)",
            "content is being erased: `tonnage volumes list` shows how far",
        ],
    )
    told = json.loads(tonnage("volumes", "list", "--endpoint", busy, "-o", "json").out)
    assert ([v["id"] for v in told["volumes"]], [s["id"] for s in told["snapshots"]]) == ([], [f"a/{KUBERNETES}"])


def test_a_snapshot_that_kubernetes_made_is_not_purged_unasked(tonnage: Run, busy: Path) -> None:
    shown = tonnage("volumes", "purge", KUBERNETES, "--yes", "--endpoint", busy)
    assert shown.code == 3
    assert f"snapshot a/{KUBERNETES} was made for a Kubernetes cluster, and only its cluster knows" in shown.error


def test_snapshots_of_a_claims_volume_are_not_purged_unasked(tonnage: Run, serve: Callable[..., Path]) -> None:
    async def fill(client: FullCsiClient) -> None:
        record = {names.CSI_PVC_NAME: "data", names.CSI_PVC_NAMESPACE: "shop"}
        await client.create_volume("v", GIB, [VolumeCapability()], parameters=record)
        await client.create_snapshot("s", "a/v")

    endpoint = serve("fake,name=a,size=10Gi", fill=fill)
    shown = tonnage("volumes", "purge", "s", "--yes", "--endpoint", endpoint)
    assert shown.code == 3
    assert "snapshot a/s was made for a Kubernetes cluster" in shown.error


@pytest.mark.real
def test_what_is_purged_without_a_driver_is_erased_when_one_serves_the_pool(
    tonnage: Run, real_folder: Path, start_driver: Callable[..., Any]
) -> None:
    plain, kept = f"image:{real_folder}/pool,name=p,size=1Gi,sparse=yes,rootfs=yes", real_folder / "kept"
    pool = f"{plain},eraserate=1Mi"  # so that it is not done while somebody looks
    image = real_folder / "pool" / "v.img"

    async def prepare() -> None:
        made = make(parse(pool))
        await made.open()
        await made.create(VolumeRequest("v", 64 << 20, block=True, parameters={"erase": "shred"}))
        await made.close()

    asyncio.run(prepare())
    with image.open("r+b") as file:
        for _ in range(64):
            file.write(b"secret!!" * (1 << 17))
    kept.hardlink_to(image)

    done = tonnage("volumes", "purge", "v", "--yes", "--pool", pool)
    assert (done.code, done.error.splitlines()) == (
        0,
        ["deleted 1 of 1 volume (64Mi)", "content that is to be erased is erased when a driver serves the pool"],
    )
    shown = tonnage("volumes", "list", "--pool", pool)
    assert "p/v" in shown.out
    assert "erasing " in shown.out
    assert tonnage("volumes", "show", "v", "--pool", pool).code == 1, "it is no volume any more"

    start_driver(real_folder / "s", "--pool", f"{plain},eraserate=0", "--node-name", "n1", "--state", str(real_folder))
    deadline = time.monotonic() + 120
    while json.loads(tonnage("volumes", "list", "--endpoint", real_folder / "s", "-o", "json").out)["erasing"]:
        assert time.monotonic() < deadline, "not erased after 120 s"
    assert not any(kept.read_bytes())
    (left,) = json.loads(tonnage("pools", "--endpoint", real_folder / "s", "-o", "json").out)["pools"]
    assert (left["allocated"], left["erasing"], left["volumes"]) == (0, 0, 0)
