"""What volumes, images and other containers try, so that a mount point is made outside of a container's root."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.programs import find, needs, needs_containers

from tonnage.base.aio.clock import RealClock
from tonnage.base.errors import HostError, InvalidError
from tonnage.host import mount
from tonnage.host.descriptor import closing
from tonnage.kubernetes.api.pods import Pod
from tonnage.storage.images.store import ImageStore
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.containers.mounts import mount_namespace, root_mounts
from tonnage_box.kubelet.containers.mounts.root_mounts import RootMounts
from tonnage_box.kubelet.containers.rootfs import Bind
from tonnage_box.kubelet.containers.runtime import ContainerSpec, Ended, Mounted
from tonnage_box.kubelet.images.node_images import NodeImages
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar

pytestmark = [pytest.mark.real, needs_containers]
NEW = "tonnage-test-new"
"""A name that no folder of this machine has."""


@pytest.fixture(autouse=True)
def _the_machine_stays_as_it_is(folder: Path) -> Iterator[None]:
    watched = ("/", "/usr", "/usr/share", "/usr/sbin", "/etc", "/run", "/dev", "/var", "/var/lib")
    before = {path: sorted(os.listdir(path)) for path in watched}
    yield
    for path in watched:
        assert [name for name in os.listdir(path) if name not in before[path] and "tonnage-test" in name] == []
    assert [m.target for m in mount.mounts() if m.target.startswith(f"{folder}/")] == []


class Machine:
    """A runtime, and volumes by their names: folders of the machine. The kubelet writes those named "files"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ImageStore(folder / "store")
        self.runtime = BubblewrapRuntime(folder / "kubelet", RealClock(), NodeImages([self.store]))
        self.attempts = 0

    def volume(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    async def run(self, script: str, *mounts: str, image: str = "any", **container: Any) -> tuple[Ended, list[str]]:
        """Run a script with mounts, each `volume:path` with `:ro` or not; how it ended, and its log."""
        split = [text.split(":") for text in mounts]
        volumes = {n: Mounted(str(self.volume(n)), is_written_here=n.startswith("files")) for n, *_ in split}
        places = [{"name": name, "mountPath": path, "readOnly": bool(more)} for name, path, *more in split]
        body = {"name": "main", "image": image, "command": ["/bin/sh", "-c", script], "volumeMounts": places}
        meta = {"name": "p", "namespace": "default", "uid": "u"}
        pod = msgspec.convert({"metadata": meta, "spec": {"containers": [body | container]}}, Pod)
        ended, number = asyncio.Event(), self.attempts
        self.attempts += 1
        try:
            spec = ContainerSpec(pod, pod.spec.containers[0], number, volumes, {})
            process = await self.runtime.start(spec, ended.set)
            async with asyncio.timeout(60):
                await ended.wait()
            assert process.ended is not None
            log = self.folder / f"kubelet/pods-logs/default_p_u/main/{number}.log"
            return process.ended, [line.split(" ", 3)[3] for line in log.read_text().splitlines()]
        finally:
            await self.runtime.release("u")
            await self.runtime.clean("u")

    def image(self, layer: LayerTar, tmp_path: Path) -> None:
        path = tmp_path / "image.tar"
        path.write_bytes(made.archive(made.layout([made.busybox(str(find("busybox"))), layer.data()], name="web:1")))
        self.store.load(path)


@pytest.fixture
async def machine(folder: Path) -> Any:
    made = Machine(folder)
    yield made
    await made.runtime.close()


async def test_a_mount_point_behind_a_link_of_the_root_is_made_in_the_volume(machine: Machine) -> None:
    """/sbin is a symlink to usr/sbin: as text, the second mount is in no volume."""
    outside = machine.folder / "outside"
    outside.mkdir()
    (machine.volume("outer") / "x").symlink_to(f"/oldroot{outside}")
    for mounts in (["outer:/usr/sbin", "inner:/sbin/x/y"], ["inner:/sbin/x/y", "outer:/usr/sbin"]):
        ended, log = await machine.run("ls -d /usr/sbin/x/y; touch /usr/sbin/x/y/file", *mounts)
        assert os.listdir(outside) == []
        assert (ended.code, log) == (0, ["/usr/sbin/x/y"])
    assert os.listdir(machine.folder / "inner") == ["file"]


@needs("busybox")
async def test_a_mount_point_behind_a_link_of_the_image_is_made_in_the_volume(machine: Machine, tmp_path: Path) -> None:
    """As the token's, which is mounted at /var/run/secrets/kubernetes.io/serviceaccount."""
    outside = machine.folder / "outside"
    outside.mkdir()
    (machine.volume("run") / "secrets").symlink_to(f"/oldroot{outside}")
    machine.image(LayerTar().symlink("var/run", "/run"), tmp_path)
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    (machine.volume("token") / "token").write_text("t\n")
    ended, log = await machine.run(f"cat {token}/token", "run:/run", f"token:{token}:ro", image="web:1")
    assert os.listdir(outside) == []
    assert (ended.code, log) == (0, ["t"])


async def test_a_volume_at_a_name_in_dev(machine: Machine) -> None:
    outside = machine.folder / "outside"
    outside.mkdir()
    (machine.volume("outer") / "starter").symlink_to(f"/oldroot{outside}/made")
    (machine.folder / "outer/termination-log").symlink_to(f"/oldroot{outside}/log")
    ended, log = await machine.run("ls /dev/.tonnage", "outer:/dev/.tonnage", "inner:/dev/.tonnage/starter/x")
    assert (ended.code, log) == (0, ["starter", "termination-log"])
    assert os.listdir(outside) == []


@pytest.mark.parametrize("way", ["/oldroot{}", "../../oldroot{}", "../../../../../..{}", "{}", "/proc/self/root{}"])
async def test_a_link_that_an_init_container_has_left(machine: Machine, way: str) -> None:
    outside = machine.folder / "outside"
    outside.mkdir()
    ended, _ = await machine.run(f"ln -s {way.format(outside)} /data/x", "data:/data")
    assert ended.code == 0
    mounts = ("data:/data", "inner:/data/x/y")
    if way.startswith("/proc"):
        with pytest.raises(InvalidError, match="mountPath '/data/x/y': it leads to /proc/self, "):
            await machine.run("true", *mounts)
    else:
        ended, log = await machine.run("ls -d /data/x/y/.", *mounts, workingDir="/data/x/work")
        assert (ended.code, log) == (0, ["/data/x/y/."])
    assert os.listdir(outside) == []


SWAPS = """
import ctypes, os, sys
libc, data, outside = ctypes.CDLL(None), sys.argv[1].encode(), sys.argv[2]
os.mkdir(data + b"/x")
ways = [f"/oldroot{outside}", f"../../../../../../../..{outside}", outside, "/proc/1/root", "/", "/dev"]
while True:
    for way in ways:
        os.symlink(way, data + b"/new")
        os.rename(data + b"/new", data + b"/link")
        for _ in range(20):  # and back: a folder most of the time, as it would be nested in otherwise
            assert not libc.renameat2(-100, data + b"/x", -100, data + b"/link", 2)  # RENAME_EXCHANGE
            assert not libc.renameat2(-100, data + b"/x", -100, data + b"/link", 2)
"""


@contextmanager
def _swapping(data: Path, outside: Path) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", SWAPS, str(data), str(outside)]) as process:
        try:
            while not (data / "link").is_symlink():
                assert process.poll() is None
                time.sleep(0.01)
            yield
            assert process.poll() is None
        finally:
            process.kill()


async def test_nothing_is_made_outside_while_another_process_exchanges_folders(machine: Machine) -> None:
    """As a container that shares the volume: a folder, then a symlink, and again."""
    outside, data = machine.folder / "outside", machine.volume("data")
    outside.mkdir()
    results: list[str] = []
    with _swapping(data, outside):
        for _ in range(40):
            try:
                ended, _ = await machine.run("true", "data:/data", "inner:/data/x/y/z", workingDir="/data/x/work")
                results.append(str(ended.code))
            except (InvalidError, HostError) as rejected:
                results.append(type(rejected).__name__)
            assert list(outside.rglob("*")) == []
    assert "0" in results


@pytest.mark.parametrize(
    "path", ["/usr/share/nginx/html", "/usr/share/elasticsearch/data", f"/usr/{NEW}", "/etc/ssl/certs/x/y"]
)
async def test_mounts_below_the_machines_folders(machine: Machine, path: str) -> None:
    (machine.volume("html") / "index.html").write_text("hello\n")
    script = f"cat {path}/index.html; touch {path}/written; touch {os.path.dirname(path)}/no || echo read-only"
    _, log = await machine.run(f"({script}) 2>/dev/null", f"html:{path}")
    assert log == ["hello", "read-only"]
    assert (machine.folder / "html/written").exists()


async def test_what_the_machine_has_beside_a_mount_point_stays(machine: Machine) -> None:
    """Several at once, on levels of their own, and files."""
    (machine.volume("file") / "f").write_text("text\n")
    mounts = [
        f"a:/usr/share/{NEW}/a",
        f"b:/usr/{NEW}/b",
        f"c:/usr/share/{NEW}-c",
        "d:/usr/share/doc",
        f"e:/usr/local/{NEW}/e",
    ]
    paths = [text.partition(":")[2] for text in mounts]
    script = f"ls /usr /usr/share; touch {'/x '.join(paths)}/x && echo written; stat -c '%a %u %g' /usr/share"
    ended, log = await machine.run(script, *mounts)
    assert ended.code == 0
    assert set(os.listdir("/usr")) | set(os.listdir("/usr/share")) <= set(log)
    assert log[-2:] == ["written", "755 0 0"]
    assert [os.listdir(machine.folder / name) for name in "abcde"] == [["x"]] * 5


async def test_a_folder_of_the_machine_is_covered_after_one_that_is_in_it(machine: Machine) -> None:
    """And what is mounted in there stays, and can be written by nobody where it could not before."""
    mounts = [f"a:/usr/share/{NEW}/a", f"b:/usr/{NEW}/b/c/d/e", "d:/usr/share/doc", f"f:/usr/share/{NEW}/f/f/f/f"]
    paths = [text.partition(":")[2] for text in mounts]
    tries = [f"/usr/share/{NEW}/no", f"/usr/{NEW}/no", "/usr/share/no", "/usr/no"]
    script = f"touch {'/x '.join(paths)}/x && echo written; for i in {' '.join(tries)}; do touch $i && echo $i; done"
    _, log = await machine.run(f"({script}) 2>/dev/null", *mounts)
    assert log == ["written"]
    assert [os.listdir(machine.folder / name) for name in "abdf"] == [["x"]] * 4


def test_file_systems_below_a_folder_of_the_machine_stay(tmp_path: Path, folder: Path) -> None:
    """As a machine has them on which /usr/local is a disk."""
    places = [folder / name for name in ("machine", "machine/a", "machine/a-b", "root", "volume")]
    for path in places:
        path.mkdir()
    try:
        for path in places[1:3]:
            mount.mount("none", path, "tmpfs")
            (path / "in").mkdir()
            mount.mount("none", path / "in", "tmpfs")
            (path / "in/file").touch()
        (places[4] / "mine").touch()
        binds = [Bind(str(places[4]), f"/machine/{at}") for at in ("a/in/new/x", "new", "a-b/new", "a/new/new")]
        with _waiting(places[3], places[0]) as pid, root_mounts.detached(binds) as detached:
            with closing(os.pidfd_open(pid)) as pidfd:
                mount_namespace.visit(
                    pidfd, str(places[3]), lambda at: RootMounts(at, pid, ()).complete(detached, "", read_only=True)
                )
            inside = Path(f"/proc/{pid}/root/machine")
            assert (inside / "a/in/file").exists()
            assert (inside / "a-b/in/file").exists()
            assert all(Path(f"/proc/{pid}/root{bind.target}/mine").exists() for bind in binds)
            for name in ("", "a", "a/in", "a-b", "a-b/in", ".."):
                with pytest.raises(OSError, match="Read-only"):
                    (inside / name / "no").touch()
        assert sorted(os.listdir(places[0])) == ["a", "a-b"]
        assert os.listdir(places[1]) == os.listdir(places[2]) == ["in"]
    finally:
        for path in (places[1] / "in", places[2] / "in", *places[1:3]):
            mount.umount(path)


@contextmanager
def _waiting(root: Path, machine: Path) -> Iterator[int]:
    """A process with that root, in which the machine's folder is read-only."""
    programs = [word for path in ("/usr", "/bin", "/lib", "/lib64") for word in ("--ro-bind-try", path, path)]
    command = ["bwrap", "--bind", str(root), "/", *programs, "--ro-bind", str(machine), "/machine", "--unshare-pid"]
    with subprocess.Popen([*command, "--", "/bin/sh", "-c", "echo 1; sleep 1000"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
        try:
            yield first
        finally:
            os.kill(first, signal.SIGKILL)


async def test_a_single_file_below_usr(machine: Machine) -> None:
    (machine.volume("v") / "part").write_text("text\n")
    mounts: dict[str, Any] = {"volumeMounts": [{"name": "v", "mountPath": f"/usr/share/{NEW}/file", "subPath": "part"}]}
    ended, log = await machine.run(f"cat /usr/share/{NEW}/file", "v:/unused", **mounts)
    assert (ended.code, log) == (0, ["text"])


async def test_nested_volumes(machine: Machine) -> None:
    """A mount point is made in the outer volume, as under Kubernetes, by root."""
    script = "echo 1 > /a/b/c/file; touch /a/b/no || echo read-only; cat /a/b/c/file"
    for mounts in (["c:/a/b/c", "a:/a", "b:/a/b:ro"], ["a:/a", "c:/a/b/c", "b:/a/b:ro"]):
        machine.volume("b").joinpath("c").mkdir(exist_ok=True)
        _, log = await machine.run(f"({script}) 2>/dev/null", *mounts)
        assert log == ["read-only", "1"]
    assert (machine.folder / "a/b").is_dir()
    assert (machine.folder / "c/file").read_text() == "1\n"
    assert os.listdir(machine.folder / "b/c") == []


async def test_nothing_is_made_in_a_volume_that_is_read_only(machine: Machine) -> None:
    with pytest.raises(
        InvalidError, match=r"mountPath '/a/b': /a is mounted read-only and has no b; make it there before"
    ):
        await machine.run("true", "a:/a:ro", "b:/a/b")
    assert os.listdir(machine.folder / "a") == []


async def test_a_volume_that_the_kubelet_writes_has_mount_points_though_read_only(machine: Machine) -> None:
    """As a ConfigMap at /etc/nginx, with another volume at /etc/nginx/conf.d."""
    script = "touch /files/no || echo read-only; touch /files/b/c/file && echo written"
    _, log = await machine.run(f"({script}) 2>/dev/null", "files:/files:ro", "b:/files/b/c")
    assert log == ["read-only", "written"]
    assert os.listdir(machine.folder / "files") == ["b"]


@pytest.mark.parametrize(
    ("link", "mounts", "named"),
    [
        (
            "/run",
            ["a:/data", "b:/run", "c:/data/link"],
            "mountPath '/data/link': it leads to /run, where mountPath '/run'",
        ),
        ("/", ["a:/data", "c:/data/link"], "mountPath '/data/link': it leads to /, a part of the root"),
        ("/proc", ["a:/data", "c:/data/link/x"], "mountPath '/data/link/x': it leads to /proc/x, a part of the root"),
        ("/proc/self/root/etc", ["a:/data", "c:/data/link"], "leads to /proc/self, a part of the root"),
        ("/dev/fd/3", ["a:/data", "c:/data/link"], "leads to /proc/self, a part of the root"),
        ("/dev", ["a:/data", "c:/data/link"], "leads to /dev, a part of the root"),
        ("../usr", ["a:/data", "c:/data/link"], "leads to /usr, a part of the root"),
        ("link", ["a:/data", "c:/data/link/x"], "mountPath '/data/link/x': path '/data/link' leads nowhere"),
    ],
)
async def test_what_must_stay_is_not_covered(machine: Machine, link: str, mounts: list[str], named: str) -> None:
    (machine.volume("a") / "link").symlink_to(link)
    with pytest.raises(InvalidError) as rejected:
        await machine.run("true", *mounts)
    assert named in str(rejected.value)
    assert "; " in str(rejected.value)


async def test_a_read_only_root_has_its_mount_points(machine: Machine) -> None:
    script = "touch /new || echo read-only; touch /srv/deep/er/file /work/x; pwd"
    context: dict[str, Any] = {"securityContext": {"readOnlyRootFilesystem": True}, "workingDir": "/work/here"}
    _, log = await machine.run(f"({script}) 2>/dev/null", "a:/srv/deep/er", **context)
    assert log == ["read-only", "/work/here"]
    assert os.listdir(machine.folder / "a") == ["file"]


async def test_a_volume_is_mounted_without_devices_and_setuid(machine: Machine) -> None:
    _, log = await machine.run("grep ' /a ' /proc/self/mountinfo; grep -c /usr /proc/self/mountinfo", "a:/a:ro")
    assert "ro,nosuid,nodev" in log[0]
    assert "shared" not in log[0]
