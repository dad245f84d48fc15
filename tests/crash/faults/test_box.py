"""What happens to a box when things go wrong around it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import programs
from tests import processes

from tonnage.kubernetes.api.kinds import PODS, VOLUMES

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def pod(name: str, size: str, command: str = "sleep 1000", *, grace: int = 1) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: {grace}
  containers:
  - name: main
    image: any
    command: [sh, -c, "{command}"]
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes:
  - name: data
    ephemeral:
      volumeClaimTemplate:
        spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}}}
---
"""


def running(cluster: Any) -> int:
    return sum(p.status.phase == "Running" for p in cluster.objects(PODS))


def images(cluster: Any) -> set[str]:
    return {file.stem for file in cluster.images()}


def claimed(cluster: Any) -> set[str]:
    return {volume.metadata.name for volume in cluster.objects(VOLUMES)}


def uuid_of(file: Path) -> str:
    """UUID of the ext4 in an image: another one after a restart would mean that it was formatted again.

    "" without one: not formatted yet, or killed before the file had its length.
    """
    with open(file, "rb") as image:
        image.seek(1024 + 104)
        return image.read(16).strip(b"\0").hex()


def mounted(cluster: Any) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if str(cluster.data) in line]


@pytest.fixture(scope="module")
def box(make_cluster: Callable[..., Any]) -> Iterator[Any]:
    """A cluster of two nodes."""
    cluster = make_cluster("--nodes", "2", "--pool", "image,name=scratch,size=20Gi,sparse=yes,overcommit=yes")
    cluster.up()
    yield cluster
    cluster.down("--purge")


@pytest.fixture
def killed(box: Any) -> Iterator[Any]:
    """A cluster that the test may kill, and leaves running; what it made in it is deleted."""
    yield box
    box.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=300s")
    box.until("every volume is gone", lambda: not images(box))
    box.until("all room is back", lambda: set(box.capacities().values()) == {"20Gi"})
    assert not [line for line in mounted(box) if "kubernetes.io~csi" in line or "globalmount" in line]


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_while_pods_are_being_made(killed: Any, seed: int, request: pytest.FixtureRequest) -> None:
    count, seed = request.config.getoption("--pods"), seed * request.config.getoption("--kill-seed")
    manifest = "".join(pod(f"p{n}", "16Mi") for n in range(count))
    applying = subprocess.Popen(
        [str(programs.kubectl()), "create", "-f", "-"], stdin=subprocess.PIPE, env=killed.environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert applying.stdin is not None
    applying.stdin.write(manifest)
    applying.stdin.close()
    assert applying.stdout is not None
    answered = []
    last = random.Random(seed).randrange(count // 5, count * 4 // 5)
    for line in applying.stdout:
        answered.append(line.split()[0].removeprefix("pod/"))
        if len(answered) == last:
            os.kill(killed.pid(), signal.SIGKILL)
    applying.wait()
    before = {file.stem: uuid_of(file) for file in killed.images()}

    killed.up()

    names = {p.metadata.name for p in killed.objects(PODS)}
    assert set(answered) <= names, "an answered object is gone"
    rest = "".join(pod(f"p{n}", "16Mi") for n in range(count) if f"p{n}" not in names)
    if rest:
        killed.kubectl("create", "-f", "-", stdin=rest)
    killed.until("all pods run", lambda: running(killed) == count)
    killed.until("pool and API agree", lambda: images(killed) == claimed(killed))
    assert len(claimed(killed)) == count
    again = {file.stem: uuid_of(file) for file in killed.images()}
    assert not [name for name, uuid in before.items() if uuid and again.get(name, uuid) != uuid]


def test_data_survives_a_kill(killed: Any) -> None:
    killed.kubectl(
        "create",
        "-f",
        "-",
        stdin=pod("writer", "64Mi", "test -e /data/f || echo precious > /data/f; sync; cat /data/f; sleep 1000"),
    )
    killed.kubectl("wait", "--for=condition=Ready", "pod/writer", "--timeout=300s")
    killed.until("it has written", lambda: "precious" in killed.kubectl("logs", "writer"))
    uid = killed.get("pod", "writer")["metadata"]["uid"]

    os.kill(killed.pid(), signal.SIGKILL)
    killed.up()

    killed.until("the pod runs", lambda: running(killed) == 1)
    assert killed.get("pod", "writer")["metadata"]["uid"] == uid
    assert "precious" in killed.kubectl("logs", "writer")
    for _ in range(2):  # and through an orderly end, twice
        killed.down()
        assert not mounted(killed)
        killed.up()
    killed.until("the pod runs again", lambda: running(killed) == 1)
    killed.until("its file is there", lambda: "precious" in killed.kubectl("logs", "writer"))


def test_down_after_a_kill_leaves_no_mount_loop_or_process(killed: Any) -> None:
    killed.kubectl("create", "-f", "-", stdin=pod("sleeper", "64Mi", "sleep 98765"))
    killed.kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=300s")
    os.kill(killed.pid(), signal.SIGKILL)
    assert mounted(killed)
    assert processes.with_text("98765")

    killed.down()

    assert not mounted(killed)
    assert not processes.with_text("98765")
    assert str(killed.data) not in subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
    assert len(images(killed)) == 1
    killed.up()
    killed.until("it runs again", lambda: running(killed) == 1)


def test_interrupt_waits_for_no_grace_period_and_leaves_nothing_but_volumes(make_cluster: Callable[..., Any]) -> None:
    cluster = make_cluster("--nodes", "2", "--pool", "image,name=scratch,size=20Gi,sparse=yes,overcommit=yes")
    command = [
        sys.executable,
        "-m",
        "tonnage",
        "up",
        "--port",
        "0",
        "--data",
        str(cluster.data),
        *cluster.arguments,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("Ready in" in line for line in process.stdout)
    cluster.environment = {**os.environ, "KUBECONFIG": str(cluster.data / "kubeconfig"), "HOME": str(cluster.home)}
    cluster.kubectl(
        "create",
        "-f",
        "-",
        stdin="".join(
            pod(f"p{n}", "64Mi", "trap : TERM; sleep 98766 & wait; sleep 98766", grace=98766) for n in range(5)
        ),
    )
    cluster.until("they run", lambda: running(cluster) == 5)
    assert processes.with_text("98766")

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)

    assert process.returncode == 0
    assert not mounted(cluster)
    assert not processes.with_text("98766")
    assert len(images(cluster)) == 5
    cluster.down("--purge")
    assert not cluster.data.exists()


def test_port_taken_and_folder_in_use_are_said(killed: Any, tmp_path: Path) -> None:
    def up(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tonnage", "up", "--pool", "fake", "--runtime", "none", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = up("--data", str(tmp_path / "d"), "--port", str(port))
    assert ended.returncode == 3
    assert f"port {port} on 127.0.0.1 is taken" in ended.stderr
    ended = subprocess.run(
        [sys.executable, "-m", "tonnage", "up", "--data", str(killed.data), "--port", "0"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 3
    assert f"in use by process {killed.pid()}" in ended.stderr
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis").write_text("mine")
    ended = up("--data", str(foreign), "--detach")
    assert ended.returncode == 2
    assert "not tonnage's" in ended.stderr
    assert [p.name for p in foreign.iterdir()] == ["thesis"]


def test_a_detached_start_outlives_who_reads_what_it_says(tmp_path: Path) -> None:
    """`tonnage up --detach | head -1`."""
    tonnage = [sys.executable, "-m", "tonnage"]
    command = [*tonnage, "up", "--detach", "--pool", "fake", "--runtime", "none", "--port", "0"]
    started = subprocess.Popen([*command, "--data", str(tmp_path / "d")], stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.close()
    try:
        assert started.wait(300) == 0
    finally:
        ended = subprocess.run(
            [*tonnage, "down", "--purge", "--data", str(tmp_path / "d")],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert "the cluster has ended" in ended.stdout


def test_a_full_disk_rejects_writes_and_loses_nothing(make_cluster: Callable[..., Any], real_folder: Path) -> None:
    """The data folder is on a small file system that is filled up."""
    small = real_folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)], check=True)
    cluster = make_cluster("--pool", "fake", "--runtime", "none")
    cluster.data = small / "data"
    cluster.up()
    cluster.kubectl("create", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: before}\n")
    with open(small / "ballast", "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 65536)
        except OSError:
            pass
    big = "x" * 500_000
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: NAME}}\ndata: {{k: {big}}}\n"
    accepted = set()
    for n in range(8):  # a few fit into what the database has allocated
        ended = subprocess.run(
            [str(programs.kubectl()), "create", "-f", "-"], input=body.replace("NAME", f"c{n}"), text=True,
            capture_output=True, timeout=400, check=False, env=cluster.environment,
        )  # fmt: skip
        if ended.returncode == 0:
            accepted.add(f"c{n}")
        else:
            assert "disk" in ended.stderr or "space" in ended.stderr
    assert len(accepted) <= 4
    assert "before" in cluster.kubectl("get", "configmaps")

    (small / "ballast").unlink()
    cluster.kubectl("create", "-f", "-", stdin=body.replace("NAME", "after"))
    os.kill(cluster.pid(), signal.SIGKILL)
    cluster.up()
    names = {c["metadata"]["name"] for c in cluster.get("configmaps")["items"]}
    assert {"before", "after", *accepted} <= names
    cluster.down("--purge")
    subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("room", [10, 100])
def test_a_start_on_a_full_disk_says_so_though_it_has_nowhere_to_log(real_folder: Path, room: int) -> None:
    small = real_folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)], check=True)
    (small / "ballast").write_bytes(b"x" * 1024 * (200 - room))
    command = [sys.executable, "-m", "tonnage", "up", "--detach", "--port", "0", "--data", str(small / "d")]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert ended.returncode != 0
    assert ended.stderr.startswith("tonnage up: ")
    assert "No space left on device" in ended.stderr or "is full" in ended.stderr
