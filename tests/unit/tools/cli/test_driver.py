"""`tonnage driver`: what it says before it starts, and how it lives and ends as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage_box.testing.wait import wait_until_served

Run = Callable[..., Any]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path."""
    return tmp_path_factory.mktemp("c")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults of the environment do not count here."""
    for name in ("CSI_ENDPOINT", "NODE_NAME"):
        monkeypatch.delenv(name, raising=False)


def test_check_shows_everything_and_touches_nothing(tonnage: Run, folder: Path) -> None:
    shown = tonnage(
        "driver", "--check", "--endpoint", f"unix://{folder}/csi.sock", "--pool", "fake,size=1Gi",
        "--node-name", "n1", "--state", folder / "state", "--metrics", "9100",
        "--source", folder, "--cgroups", folder,
    )  # fmt: skip

    assert shown.code == 0
    assert shown.out.splitlines() == [
        "  [ok] driver: csi.tonnage.dev on node n1 (topology.tonnage.dev/node=n1)",
        f"  [ok] endpoint: {folder}/csi.sock",
        f"  [ok] state: {folder}/state (made when it is needed)",
        "  [ok] metrics: 127.0.0.1:9100",
        f"  [ok] source: {folder}",
        "  [ok] cgroups: IO cannot be limited on this node: there is no cgroup hierarchy with the controller io (v2) or"
        f" blkio (v1) at {folder}",
        "  [ok] pool fake: fake, 1Gi: no limit holds, and its volumes end with the driver",
        "the driver can start",
    ]
    assert not list(folder.iterdir())


def test_check_counts_faults(tonnage: Run, folder: Path) -> None:
    shown = tonnage(
        "driver", "--check", "--endpoint", folder / "csi.sock", "--pool", "fake,size=1Gi",
        "--registry", folder / "none", "--driver-name", "no name", "--state", folder / "state",
    )  # fmt: skip

    assert shown.code == 2
    assert "  [FAULT] driver: driver name 'no name': want a DNS name" in shown.out
    assert f"  [FAULT] registry: registry {folder}/none does not exist" in shown.out
    assert shown.out.endswith("2 faults: the driver would not start\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no endpoint: say where to listen, as --endpoint unix:///run/tonnage/csi.sock"),
        (
            ["--endpoint", "/run/x.sock"],
            "no pools: name at least one, as --pool image:/var/lib/tonnage-pool,size=100Gi",
        ),
        (["--endpoint", "tcp://a:1", "--pool", "fake,size=1Gi"], "want a unix socket with an absolute path"),
        (["--pool", "zfs:/a"], "pool 'zfs:/a': unknown kind 'zfs', want one of image, btrfs"),
        (["--pool", "fake,sise=1"], "fake has no option 'sise', it has name, size"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read: No such file or directory"),
        (["--endpoint", "/x", "--pool", "fake"], "a fake pool needs size="),
        (
            ["--endpoint", "/x", "--pool", "fake,size=1Gi", "--driver-name", "a b"],
            "driver name 'a b': want a DNS name",
        ),
        (
            ["--endpoint", "/x", "--pool", "fake,size=1Gi", "--metrics", "a"],
            "metrics address 'a': want [ADDRESS:]PORT",
        ),
    ],
)
def test_rejected_with_the_reason(tonnage: Run, arguments: list[str], message: str) -> None:
    shown = tonnage("driver", *arguments)

    assert shown.code == 2
    assert shown.error.startswith("tonnage driver: ")
    assert message in shown.error


def test_the_environment_names_socket_and_node(tonnage: Run, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("CSI_ENDPOINT", f"unix://{folder}/env.sock")
    monkeypatch.setenv("NODE_NAME", "from-env")
    shown = tonnage("driver", "--check", "--pool", "fake,size=1Gi", "--state", folder)

    assert f"endpoint: {folder}/env.sock" in shown.out
    assert "on node from-env" in shown.out


def test_ends_politely_and_logs_json(folder: Path, start_driver: Callable[..., subprocess.Popen[str]]) -> None:
    socket = folder / "csi.sock"
    arguments = ["--pool", "fake,size=1Gi", "--state", str(folder), "--log-format", "json"]
    process = start_driver(socket, *arguments)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=120)

    assert process.returncode == 0
    assert not socket.exists()
    lines = [json.loads(line) for line in log.splitlines()]
    assert any(line["message"].startswith("driver ready driver=csi.tonnage.dev") for line in lines)
    assert {line["level"] for line in lines} == {"info"}


@pytest.mark.real
def test_killed_it_starts_again_and_has_its_volumes(
    folder: Path, real_folder: Path, start_driver: Callable[..., subprocess.Popen[str]]
) -> None:
    socket = folder / "csi.sock"
    arguments = ["--pool", f"image:{real_folder}/pool,size=1Gi,sparse=yes", "--state", str(folder / "state")]

    async def create() -> str:
        async with CsiClient(socket) as client:
            return (await client.create_volume("v", 64 << 20, [VolumeCapability()])).id

    async def listed() -> list[str]:
        async with CsiClient(socket) as client:
            return [volume.id for volume in await client.list_volumes()]

    process = start_driver(socket, *arguments)
    made = asyncio.run(create())
    process.kill()
    process.wait()
    socket.unlink()  # only to know when the new one is there

    start_driver(socket, *arguments)
    assert asyncio.run(listed()) == [made]
    assert asyncio.run(create()) == made


@pytest.mark.slow
def test_a_socket_that_a_killed_driver_left_is_taken_over(
    folder: Path, start_driver: Callable[..., subprocess.Popen[str]]
) -> None:
    socket = folder / "csi.sock"
    arguments = ["--pool", "fake,size=1Gi", "--state", str(folder)]
    first = start_driver(socket, *arguments)
    first.kill()
    first.wait()
    second = start_driver(socket, *arguments)  # the old socket is there already

    async def served() -> bool:
        await wait_until_served(socket, timeout=30)
        async with CsiClient(socket) as client:
            return await client.probe()

    assert asyncio.run(served())
    assert second.poll() is None


def test_a_second_driver_at_the_same_socket_is_rejected(tonnage: Run, socket: Path) -> None:
    shown = tonnage("driver", "--endpoint", socket, "--pool", "fake,size=1Gi", "--state", socket.parent)

    assert shown.code == 3
    assert f"another process serves {socket}: stop it or choose another path" in shown.error


STUCK = """
import sys, time
from tonnage.tools.cli.main import main
from tonnage.storage.pools.fake.backend import FakePool
from tonnage.storage.pools.base.threads import Threads

async def stuck(self):
    print("stuck", flush=True)
    await Threads("dead").run(time.sleep, 1000)  # as a call into a disk that does not answer

setattr(FakePool, sys.argv[1], stuck)
sys.exit(main(["driver", *sys.argv[2:]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["open", "close"])
def test_a_disk_that_does_not_answer_does_not_keep_it(folder: Path, method: str) -> None:
    socket = folder / "csi.sock"
    arguments = ["--endpoint", str(socket), "--pool", "fake,size=1Gi", "--state", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, method, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if method == "open":
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
        else:
            asyncio.run(wait_until_served(socket, timeout=60))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0
    assert "not everything stopped in time" in log
    assert not socket.exists()
