"""Containers that run from images, as real processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.programs import find, needs, needs_containers
from tests.unit.box.kubelet.machine import Eventually

from tonnage.base.aio.clock import RealClock
from tonnage.host import mount
from tonnage.storage.images.store import ImageStore
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.images import image_root
from tonnage_box.kubelet.images.node_images import NodeImages
from tonnage_box.testing import image_archive as made
from tonnage_box.testing.image_archive import LayerTar


def _runtime(root: Path, *, required: bool = False) -> BubblewrapRuntime:
    return BubblewrapRuntime(root, RealClock(), NodeImages([ImageStore(root.parent / "store")], required=required))


def _required(root: Path) -> BubblewrapRuntime:
    return _runtime(root, required=True)


pytestmark = [
    pytest.mark.real,
    needs_containers,
    needs("busybox"),
]
on_a_node = pytest.mark.parametrize("machine", [_runtime], indirect=True, ids=["images"])
ENTRY = {"Entrypoint": ["/bin/sh", "-c"]}


@pytest.fixture(autouse=True)
def _leaves_nothing(folder: Path) -> Iterator[None]:
    yield
    targets = [m.target for m in mount.mounts() if m.target.startswith(f"{folder}/")]
    for target in reversed(targets):
        mount.umount(target, lazy=True)
    assert targets == []


@pytest.fixture
def image(folder: Path, tmp_path: Path) -> Any:
    """Put an image of busybox and more layers into the node's store."""

    def put(*layers: bytes, name: str = "web:1", **run: Any) -> str:
        path = tmp_path / "image.tar"
        base = made.busybox(str(find("busybox")))
        path.write_bytes(made.archive(made.layout([base, *layers], name=name, **run)))
        (record,) = ImageStore(folder / "store").load(path)
        return record.image_id

    return put


def _log(machine: Any, pod: Any, container: str = "main", attempt: int = 0) -> list[str]:
    meta = pod.metadata
    path = machine.root / "pods-logs" / f"{meta.namespace}_{meta.name}_{meta.uid}" / container / f"{attempt}.log"
    text = path.read_text() if path.exists() else ""
    return [line.split(" ", 3)[3] for line in text.split("\n")[:-1]]  # one that is being written has no end yet


async def _run(machine: Any, phase: str = "Succeeded", spec: dict[str, Any] | None = None, **container: Any) -> Any:
    body = {"name": "main", "image": "web:1", **container}
    await machine.pod("p", restartPolicy="Never", containers=[body], **(spec or {}))
    return await machine.phase("p", phase)


async def _gone(machine: Any) -> None:
    from tonnage.kubernetes.api.kinds import PODS

    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    async with asyncio.timeout(60):  # the kubelet hears of it after us
        while machine.left():
            await asyncio.sleep(0.01)


@on_a_node
async def test_a_container_is_what_its_image_says(machine: Any, image: Any) -> None:
    script = "id; pwd; echo $A $B $HOME; cat /srv/hello; cat /etc/hostname"
    layer = LayerTar().add("srv/hello", b"hello\n", mode=0o644).data()
    found = image(layer, **ENTRY, Cmd=[script], User="web", WorkingDir="/srv/work", Env=["A=image", "B=image"])
    early = {"name": "LC_ALL", "value": "C"}  # set when it already is the image's user
    pod = await _run(machine, env=[{"name": "B", "value": "pod"}, early])
    lines = ["uid=33(web) gid=44(staff) groups=55(logs)", "/srv/work", "image pod /srv/web", "hello", "p"]
    assert _log(machine, pod) == lines
    assert pod.status.container_statuses[0].image_id == found
    event = await machine.event("Pulled")
    text = 'Container image "web:1" already present on machine and can be accessed by the pod'
    assert (event.type, event.message) == ("Normal", text)


@on_a_node
@pytest.mark.parametrize(
    ("container", "line"),
    [
        ({}, "entry cmd"),
        ({"args": ["args"]}, "entry args"),
        ({"command": ["/bin/echo", "command"]}, "command"),
        ({"command": ["/bin/echo", "command"], "args": ["args"]}, "command args"),
    ],
)
async def test_command_and_args(machine: Any, image: Any, container: dict[str, Any], line: str) -> None:
    image(Entrypoint=["/bin/echo", "entry"], Cmd=["cmd"])
    assert _log(machine, await _run(machine, **container)) == [line]


@on_a_node
async def test_an_image_without_a_command(machine: Any, image: Any) -> None:
    image()
    await machine.pod("p", containers=[{"name": "main", "image": "web:1"}])
    pod = await machine.until("p", lambda pod: pod.status.container_statuses and _waiting(pod).get("message"))
    assert _waiting(pod)["reason"] == "CreateContainerError"
    assert "no command specified" in _waiting(pod)["message"]
    await _gone(machine)


def _waiting(pod: Any) -> dict[str, Any]:
    return pod.status.container_statuses[0].state.waiting or {}


@on_a_node
@pytest.mark.parametrize(
    ("run", "why"),
    [
        ({"User": "web"}, "image has non-numeric user (web), cannot verify user is non-root"),
        ({}, "container has runAsNonRoot and image will run as root"),
    ],
)
async def test_run_as_non_root(machine: Any, image: Any, run: dict[str, Any], why: str) -> None:
    image(**ENTRY, Cmd=["echo never"], **run)
    await machine.pod("p", securityContext={"runAsNonRoot": True}, containers=[{"name": "main", "image": "web:1"}])
    pod = await machine.until("p", lambda pod: pod.status.container_statuses and _waiting(pod).get("message"))
    assert _waiting(pod)["reason"] == "CreateContainerConfigError"
    assert why in _waiting(pod)["message"]
    await _gone(machine)


@on_a_node
async def test_what_a_container_writes_goes_with_it(machine: Any, image: Any, folder: Path) -> None:
    script = "test -e /new && echo old; rm /srv/file; echo 1 > /new; test -e /srv/file || echo removed"
    image(LayerTar().add("srv/file", b"1").data(), **ENTRY, Cmd=[script])
    for _ in range(2):
        assert _log(machine, await _run(machine)) == ["removed"]
        await _gone(machine)
    assert ImageStore(folder / "store").uses() == {}
    (record,) = ImageStore(folder / "store").images()
    assert (ImageStore(folder / "store").layer(record.layers[1]) / "srv/file").read_bytes() == b"1"


@on_a_node
async def test_the_stop_signal_of_the_image(machine: Any, image: Any, eventually: Eventually) -> None:
    image(
        **ENTRY, Cmd=["trap 'echo got INT; exit 0' INT; echo ready; while :; do sleep 0.1; done"], StopSignal="SIGINT"
    )
    await machine.pod("p", terminationGracePeriodSeconds=50, containers=[{"name": "main", "image": "web:1"}])
    pod = await machine.phase("p", "Running")
    await eventually(lambda: _log(machine, pod) == ["ready"])
    machine.kubelet.workers.find("default", "p").containers.mains[0].process.stop(50)
    pod = await machine.until("p", lambda pod: pod.status.container_statuses[0].restart_count == 1)
    assert _log(machine, pod)[-1] == "got INT"
    await _gone(machine)


@on_a_node
async def test_a_kubelet_that_was_killed_finds_its_container(machine: Any, image: Any) -> None:
    found = image(**ENTRY, Cmd=["sleep 1000"])
    await machine.pod("p", containers=[{"name": "main", "image": "web:1"}])
    before = await machine.phase("p", "Running")
    await machine.restart()
    after = await machine.phase("p", "Running")
    assert after.status.container_statuses[0].container_id == before.status.container_statuses[0].container_id
    assert after.status.container_statuses[0].image_id == found
    await _gone(machine)


@on_a_node
async def test_a_start_that_was_killed_leaves_no_mount(machine: Any, image: Any, folder: Path) -> None:
    """The kubelet was killed before it could write down what it had started."""
    image(**ENTRY, Cmd=["sleep 1000"])
    await machine.pod("p", containers=[{"name": "main", "image": "web:1"}])
    await machine.phase("p", "Running")
    await machine.kill()
    (state,) = (folder / "kubelet/pods").glob("*/containers/main/0/state.json")
    state.write_bytes(b"")
    await machine.start()
    await machine.until("p", lambda pod: pod.status.container_statuses[0].restart_count == 1)
    roots = [
        found.target for found in mount.mounts() if found.target.startswith(f"{folder}/") and found.fstype == "overlay"
    ]
    assert roots == [f"{state.parents[1]}/1/rootfs"]
    await _gone(machine)
    assert ImageStore(folder / "store").uses() == {}


@on_a_node
async def test_volumes_on_top_of_an_image(machine: Any, image: Any) -> None:
    """Mount paths go where the image's symlinks lead inside it."""
    layer = LayerTar().symlink("var/run", "/run").symlink("usr/out", "../../../../../../srv").data()
    script = "echo 1 > /run/data/a; cat /usr/out/sub/hello /one; ls -l /etc/other"
    image(layer, LayerTar().add("hello", b"hello\n").data(), **ENTRY, Cmd=[script])
    mounts = [
        {"name": "dir", "mountPath": "/var/run/data"},
        {"name": "tree", "mountPath": "/usr/out/sub", "readOnly": True},
        {"name": "tree", "mountPath": "/one", "subPath": "hello"},
        {"name": "dir", "mountPath": "/etc/other"},
    ]
    volumes = [{"name": "dir", "emptyDir": {}}, {"name": "tree", "image": {"reference": "web:1"}}]
    pod = await _run(machine, spec={"volumes": volumes}, volumeMounts=mounts)
    lines = _log(machine, pod)
    assert lines[:2] == ["hello", "hello"]
    assert lines[-1].endswith(" a")


@on_a_node
async def test_an_image_volume_is_read_only_and_waits_for_its_image(machine: Any, image: Any) -> None:
    script = "touch /img/x && echo WRITTEN; cat /img/late"
    volumes = [{"name": "img", "image": {"reference": "late:1"}}]
    container = {
        "name": "main",
        "image": "any",
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{"name": "img", "mountPath": "/img"}],
    }
    await machine.pod("p", restartPolicy="Never", volumes=volumes, containers=[container])
    event = await machine.event("FailedMount")
    assert 'failed to pull image "late:1"' in event.message
    image(LayerTar().add("late", b"here\n").data(), name="late:1")
    pod = await machine.phase("p", "Succeeded")
    assert "here" in _log(machine, pod)
    assert "WRITTEN" not in _log(machine, pod)
    await _gone(machine)


ESCAPES = {
    "proc is a symlink": LayerTar().symlink("proc", "/etc").data(),
    "dev is a symlink": LayerTar().symlink("dev", "/srv").data(),
    "proc is a file": LayerTar().add("proc", b"").data(),
    "etc is a file": LayerTar().add("etc", b"").data(),
    "mount path to proc": LayerTar().symlink("mnt", "/proc/self/root").data(),
    "mount path to dev": LayerTar().symlink("mnt", "/dev/fd").data(),
    "mount path to the root": LayerTar().symlink("mnt", "/").data(),
    "mount path to nowhere": LayerTar().symlink("mnt", "mnt").data(),
    "working directory is a file": LayerTar().add("work", b"").data(),
}


REJECTIONS = (" is no folder", " leads nowhere", "the image has a symlink", "a part of the root that must stay")


@on_a_node
@pytest.mark.parametrize("case", ESCAPES)
async def test_images_that_would_lead_bwrap_astray_do_not_start(machine: Any, image: Any, case: str) -> None:
    image(ESCAPES[case], **ENTRY, Cmd=["echo never"], WorkingDir="/work")
    mounts = {"volumeMounts": [{"name": "dir", "mountPath": "/mnt"}]}
    container = {"name": "main", "image": "web:1", **mounts}
    await machine.pod("p", volumes=[{"name": "dir", "emptyDir": {}}], containers=[container])
    pod = await machine.until("p", lambda pod: pod.status.container_statuses and _waiting(pod).get("message"))
    assert _waiting(pod)["reason"] == "CreateContainerConfigError"
    assert any(words in _waiting(pod)["message"] for words in REJECTIONS)
    await _gone(machine)


@on_a_node
async def test_links_of_an_image_stay_inside(machine: Any, image: Any, tmp_path: Path) -> None:
    """/etc and the working directory lead to a folder of the machine, which does not change."""
    layer = LayerTar().symlink("etc", str(tmp_path / "outside")).symlink("work", str(tmp_path / "made")).data()
    (tmp_path / "outside").mkdir()
    image(layer, **ENTRY, Cmd=["echo ran"], WorkingDir="/work/sub")
    assert _log(machine, await _run(machine)) == ["ran"]
    assert os.listdir(tmp_path / "outside") == []
    assert not (tmp_path / "made").exists()
    await _gone(machine)


@on_a_node
async def test_what_the_linker_loads_is_the_images_own_and_for_its_program_only(machine: Any, image: Any) -> None:
    layer = LayerTar().add("etc/ld.so.preload", b"/evil.so\n").add("evil.so", b"\x7fELF").data()
    image(layer, **ENTRY, Cmd=["cat /etc/ld.so.preload; echo $LD_PRELOAD"])
    pod = await _run(machine, env=[{"name": "LD_PRELOAD", "value": "/evil.so"}])
    assert _log(machine, pod) == ["/evil.so", "/evil.so"]


@pytest.mark.parametrize("machine", [_required], indirect=True, ids=["required"])
async def test_a_required_image_that_is_missing(machine: Any, image: Any) -> None:
    await machine.pod("p", restartPolicy="Never", containers=[{"name": "main", "image": "web:1"}])
    pod = await machine.until("p", lambda pod: pod.status.container_statuses and _waiting(pod).get("message"))
    assert _waiting(pod)["reason"] in ("ErrImagePull", "ImagePullBackOff")
    assert 'failed to pull image "web:1"' in _waiting(pod)["message"]
    assert (await machine.event("Failed", about="p")).type == "Warning"
    await _gone(machine)


def test_remove_is_idempotent(tmp_path: Path) -> None:
    for _ in range(2):
        image_root.remove(str(tmp_path))
    assert os.listdir(tmp_path) == []
