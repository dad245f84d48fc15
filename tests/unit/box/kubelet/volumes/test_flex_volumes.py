"""FlexVolume drivers of others: real shell programs that mount a tmpfs, and those that do not behave."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import processes
from tests.programs import needs_containers
from tests.unit.box.kubelet.machine import Eventually

from tonnage.base.aio.clock import RealClock
from tonnage.host import mount
from tonnage.kubernetes.api.kinds import PODS, SECRETS
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.stats.volume_stats import VolumeStats

DRIVER = "example.com/tmpfs"
INIT = '{"status":"Success","capabilities":{"attach":false,"supportsMetrics":true}}'
TMPFS = f"""#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
case $1 in
init) echo '{INIT}' ;;
mount) mount -t tmpfs -o size=1m,mode=755 flex "$2" && echo "$3" > "$2/options" && echo '{{"status":"Success"}}' ;;
unmount) umount "$2" && echo '{{"status":"Success"}}' ;;
*) echo '{{"status":"Not supported"}}'; exit 1 ;;
esac
"""

pytestmark = [pytest.mark.real, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the driver mounts")]
in_containers = [
    needs_containers,
    pytest.mark.parametrize(
        "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
    ),
]


@pytest.fixture(autouse=True)
def _leaves_nothing(folder: Path) -> Iterator[None]:
    yield
    targets = [m.target for m in mount.mounts() if m.target.startswith(f"{folder}/")]
    for target in reversed(targets):
        mount.umount(target, lazy=True)
    assert targets == []


def install(machine: Any, text: str = TMPFS, driver: str = DRIVER) -> Path:
    """Write a driver as its installer does: a new file under another name, then rename(2)."""
    folder = machine.root / "volumeplugins" / driver.replace("/", "~")
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / ".new"
    new.write_text(text)
    new.chmod(0o755)
    new.rename(folder / driver.partition("/")[2])
    return Path(folder)


def calls(folder: Path) -> list[str]:
    """The commands of all calls so far."""
    return [line.split()[0] for line in (folder / "calls").read_text().splitlines()]


def inline(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "data", "flexVolume": {"driver": DRIVER, "options": {"size": "1Mi"}, **more}}]


async def end(machine: Any, eventually: Eventually) -> None:
    await machine.client.delete(PODS, "p", "default")
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


@in_containers[0]
@in_containers[1]
async def test_containers_see_the_volume_of_a_driver(machine: Any, eventually: Eventually) -> None:
    folder = install(machine)
    script = "cat /data/options > /data/seen && sleep 1000"
    container = {
        "name": "main",
        "image": "any",
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    await machine.pod("p", volumes=inline(fsType="ext4"), containers=[container], securityContext={"fsGroup": 2000})
    pod = await machine.phase("p", "Running")
    at = machine.root / f"pods/{pod.metadata.uid}/volumes/example.com~tmpfs/data"
    await eventually(lambda: (at / "seen").exists() and (at / "seen").read_text().endswith("\n"))
    assert json.loads((at / "seen").read_text()) == {
        "kubernetes.io/fsType": "ext4",
        "kubernetes.io/readwrite": "rw",
        "kubernetes.io/pvOrVolumeName": "data",
        "kubernetes.io/pod.name": "p",
        "kubernetes.io/pod.namespace": "default",
        "kubernetes.io/pod.uid": pod.metadata.uid,
        "kubernetes.io/serviceAccount.name": pod.spec.service_account_name,
        "kubernetes.io/mounterArgs.FsGroup": "2000",
        "size": "1Mi",
    }
    assert at.stat().st_gid == 2000
    kubelet = machine.kubelet
    (use,) = await VolumeStats(kubelet.paths, kubelet.drivers, kubelet.volumes.mounted).of(kubelet.workers.pods())
    assert use.use.total == 1 << 20
    await end(machine, eventually)
    assert calls(folder) == ["init", "mount", "unmount"]


async def test_a_restarted_kubelet_unmounts_by_what_is_on_disk(machine: Any, eventually: Eventually) -> None:
    folder = install(machine)
    await machine.pod("p", volumes=inline())
    pod = await machine.phase("p", "Running")
    await machine.restart()
    await eventually(lambda: machine.kubelet.volumes.mounted(pod.metadata.uid))
    assert calls(folder) == ["init", "mount", "init"], "what is mounted is not mounted again"
    await machine.kill()
    await machine.client.delete(PODS, "p", "default", grace_seconds=0)
    await machine.start()
    await eventually(lambda: machine.left() == [])
    assert calls(folder)[-1] == "unmount"


async def test_a_persistent_volume_with_a_secret(machine: Any, eventually: Eventually) -> None:
    install(machine)
    key = base64.b64encode(b"hunter2").decode()
    wrong = {"metadata": {"name": "login"}, "type": "Opaque", "data": {"key": key}}
    await machine.client.create(SECRETS, wrong, "default")
    flex = {"driver": DRIVER, "secretRef": {"name": "login"}, "readOnly": True}
    await machine.volume("a", csi=None, flexVolume=flex)
    await machine.pod("p", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "a"}}])
    event = await machine.event("FailedMount")
    assert "secret default/login has the type 'Opaque'" in event.message
    await machine.client.delete(SECRETS, "login", "default")
    await machine.client.create(SECRETS, {**wrong, "type": DRIVER}, "default")
    pod = await machine.phase("p", "Running")
    at = machine.root / f"pods/{pod.metadata.uid}/volumes/example.com~tmpfs/pv-a"
    options = json.loads((at / "options").read_text())
    assert options["kubernetes.io/secret/key"] == key
    assert options["kubernetes.io/readwrite"] == "ro"
    assert options["kubernetes.io/pvOrVolumeName"] == "pv-a"
    await end(machine, eventually)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "exit 0",
            "FlexVolume driver example.com/tmpfs: init: its output is no JSON object of a FlexVolume driver: ''",
        ),
        (f"echo warning >&2; echo '{INIT}'", "its output is no JSON object of a FlexVolume driver: 'warning\\n{"),
        ('echo \'{"status":"Failure","message":"no disk"}\'; exit 1', "status: Failure, reason: no disk"),
        ('echo \'{"status":"Not Supported"}\'', "status: Not Supported, reason: "),
        ('echo \'{"status":"Success"}\'', "it wants to attach volumes"),
        ("kill -9 $$", "its output is no JSON object"),
        ("echo '[]'", "its output is no JSON object"),
        (f"[ $1 = init ] && echo '{INIT}' || head -c 100000 /dev/zero", "mount: its output is no JSON object"),
    ],
)
async def test_a_driver_that_fails_is_named(machine: Any, eventually: Eventually, text: str, message: str) -> None:
    install(machine, f"#!/bin/sh\n{text}\n")
    await machine.pod("p", volumes=inline())
    event = await machine.event("FailedMount")
    assert message in event.message
    assert event.message.startswith(
        'MountVolume.SetUp failed for volume "data" : FlexVolume driver example.com/tmpfs: '
    )
    install(machine)
    await machine.phase("p", "Running")  # the driver's new file is probed anew
    await end(machine, eventually)


async def test_a_failed_call_shows_no_secret(machine: Any, eventually: Eventually) -> None:
    install(machine, f"#!/bin/sh\n[ $1 = init ] && echo '{INIT}' && exit\nset -x; echo $3\n")
    data = {"key": base64.b64encode(b"hunter2").decode()}
    await machine.client.create(SECRETS, {"metadata": {"name": "login"}, "type": DRIVER, "data": data}, "default")
    await machine.pod("p", volumes=inline(secretRef={"name": "login"}))
    event = await machine.event("FailedMount")
    assert event.message.endswith("mount: its output is no JSON object of a FlexVolume driver")
    install(machine)
    await machine.phase("p", "Running")
    await end(machine, eventually)


@pytest.mark.parametrize("driver", ["tmpfs/", "../tmpfs", "a/b/c", "kubernetes.io/csi", "/tmpfs"])
async def test_a_driver_with_no_such_name_reaches_no_file(machine: Any, driver: str) -> None:
    install(machine)
    await machine.pod("p", volumes=[{"name": "data", "flexVolume": {"driver": driver}}])
    assert "want <vendor>/<driver>" in (await machine.event("FailedMount")).message


@pytest.mark.parametrize(
    ("driver", "advice"),
    [(DRIVER, "install it there"), ("tonnage.dev/local", "start the box with --compat flexvolume")],
)
async def test_a_driver_that_is_not_installed_is_named_with_what_to_do(machine: Any, driver: str, advice: str) -> None:
    await machine.pod("p", volumes=[{"name": "data", "flexVolume": {"driver": driver}}])
    message = (await machine.event("FailedMount")).message
    assert f"FlexVolume driver {driver} is not installed: there is no file " in message
    assert message.endswith(f"; {advice}")


async def test_a_driver_that_is_gone_keeps_its_pods_until_it_is_back(machine: Any, eventually: Eventually) -> None:
    folder = install(machine)
    await machine.pod("p", volumes=inline())
    await machine.phase("p", "Running")
    (folder / "tmpfs").unlink()
    await machine.client.delete(PODS, "p", "default")
    event = await machine.event("FailedUnMount")
    assert "FlexVolume driver example.com/tmpfs is not installed" in event.message
    assert "install it again" in event.message
    install(machine)
    await machine.gone("p")
    await eventually(lambda: machine.left() == [])


async def test_a_driver_without_unmount_has_it_done_by_the_kubelet(machine: Any, eventually: Eventually) -> None:
    install(machine, TMPFS.replace("unmount)", "never)"))
    await machine.pod("p", volumes=inline())
    await machine.phase("p", "Running")
    await end(machine, eventually)


async def test_a_driver_that_hangs_delays_only_its_pod_and_ends_with_the_kubelet(
    machine: Any, eventually: Eventually
) -> None:
    hangs = f"#!/bin/sh\n[ $1 = init ] && echo '{INIT}' && exit\necho $$ > {machine.folder}/pid\nexec sleep 1000\n"
    install(machine, hangs, "example.com/hangs")
    install(machine)
    await machine.pod("slow", volumes=[{"name": "data", "flexVolume": {"driver": "example.com/hangs"}}])
    file = machine.folder / "pid"
    await eventually(lambda: file.exists() and file.read_text())
    await machine.pod("p", volumes=inline())
    await machine.phase("p", "Running")
    await end_one(machine, "p")
    await machine.kill()
    await eventually(lambda: not processes.is_running(int(file.read_text())))
    install(machine, driver="example.com/hangs")
    await machine.start()
    await machine.phase("slow", "Running")
    await end_one(machine, "slow")


async def end_one(machine: Any, name: str) -> None:
    await machine.client.delete(PODS, name, "default")
    await machine.gone(name)
    await asyncio.sleep(0)
