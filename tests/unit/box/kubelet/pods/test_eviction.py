"""Pods that use more local storage than they may are evicted, as by the kubelet."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.programs import needs_containers

from tonnage.base.aio.clock import RealClock
from tonnage.kubernetes.api.pods import Pod
from tonnage_box.kubelet.containers.bubblewrap import BubblewrapRuntime
from tonnage_box.kubelet.containers.paths import Paths
from tonnage_box.kubelet.pods import eviction
from tonnage_box.kubelet.pods.eviction import EvictionManager, excess
from tonnage_box.kubelet.pods.usage import disk_usage
from tonnage_box.testing.clock import ManualClock

MIB = 1 << 20
needs_bwrap = needs_containers
bwrap = pytest.mark.parametrize(
    "machine", [lambda root: BubblewrapRuntime(root, RealClock())], indirect=True, ids=["bwrap"]
)


def _pod(volumes: list[dict[str, Any]], *containers: dict[str, Any], **spec: Any) -> Pod:
    body = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"volumes": volumes, "containers": list(containers) or [{"name": "c"}], **spec},
    }
    return msgspec.convert(body, Pod)


def _limited(name: str, text: str | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {"ephemeral-storage": text} if text else {}}, **more}


def _said(pod: Pod, used: dict[str, int]) -> str:
    """excess() where folders take what used says, by the end of their paths."""

    def measure(path: str, most: int) -> int:
        return sum(size for end, size in used.items() if path.endswith(end))

    return excess(pod, Paths(Path("/k")), measure)


E = {"name": "e", "emptyDir": {"sizeLimit": "1Mi"}}


@pytest.mark.parametrize(
    ("pod", "used", "said"),
    [
        (_pod([E]), {"empty-dir/e": MIB}, ""),
        (_pod([E]), {"empty-dir/e": MIB + 1}, 'Usage of EmptyDir volume "e" exceeds the limit "1Mi". '),
        (_pod([{"name": "e", "emptyDir": {"sizeLimit": "1Mi", "medium": "Memory"}}]), {"empty-dir/e": 2 * MIB}, ""),
        (_pod([{"name": "e", "emptyDir": {"sizeLimit": "0"}}]), {"empty-dir/e": MIB}, ""),
        (_pod([], _limited("c", "1Mi")), {"containers/c": MIB}, ""),
        (
            _pod([], _limited("c", "1Mi")),
            {"containers/c": 2 * MIB},
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
        ),
        (
            _pod([], _limited("c", "1Mi"), _limited("d", "2Mi")),
            {"containers/c": 2 * MIB},
            'Container c exceeded its local ephemeral storage limit "1Mi". ',
        ),
        (
            _pod([], _limited("c", "1Mi")),
            {"default_p_u/c": MIB + 1},
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
        ),
        (
            _pod([{"name": "e", "emptyDir": {}}], _limited("c", "1Mi"), _limited("d", "1Mi")),
            {"empty-dir/e": 2 * MIB + 1},
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
        ),
        (
            _pod([{"name": "e", "emptyDir": {"medium": "Memory"}}], _limited("c", "1Mi")),
            {"empty-dir/e": 2 * MIB},
            "",
        ),
        (
            _pod([], _limited("c", None), initContainers=[_limited("i", "4Mi"), _limited("j", "2Mi")]),
            {"containers/c": 3 * MIB},
            "",
        ),
    ],
)
def test_what_is_too_much(pod: Pod, used: dict[str, int], said: str) -> None:
    assert _said(pod, used) == said


async def test_only_pods_with_a_limit_are_measured() -> None:
    evictions = EvictionManager(Paths(Path("/k")), ManualClock(), lambda uid, message: None)
    for pod in (_pod([]), _pod([{"name": "e", "emptyDir": {}}]), _pod([{"name": "e", "emptyDir": {"sizeLimit": "0"}}])):
        evictions.hold(pod)
        assert evictions._tasks == {}
        evictions.release("u")
    evictions.hold(_pod([E]))
    assert len(evictions._tasks) == 1
    assert evictions._guard is not None
    evictions.release("u")
    assert evictions._tasks == {}
    assert evictions._guard is None  # nothing runs where no pod does
    await evictions.close()


async def test_a_tree_that_cannot_be_measured_is_tried_again(tmp_path: Path) -> None:
    """A folder that is a symlink is rejected; once it is a folder again, what is in it counts."""
    paths = Paths(tmp_path)
    place = Path(paths.volume("u", "kubernetes.io~empty-dir", "e"))
    place.parent.mkdir(parents=True)
    place.symlink_to("/")
    evicted = asyncio.get_running_loop().create_future()
    waits = 0

    class Clock(ManualClock):
        async def sleep(self, seconds: float) -> None:
            nonlocal waits
            await asyncio.sleep(0)
            task = asyncio.current_task()
            waits += task is not None and task.get_name() == "measure default/p"
            if waits == 3 and place.is_symlink():
                place.unlink()
                place.mkdir()
                (place / "f").write_bytes(b"x" * 2 * MIB)

    evictions = EvictionManager(paths, Clock(), lambda uid, message: evicted.set_result((uid, message)))
    evictions.hold(_pod([E]))
    async with asyncio.timeout(60):
        assert await evicted == ("u", 'Usage of EmptyDir volume "e" exceeds the limit "1Mi". ')
    assert waits == 3
    await evictions.close()


def _writer(path: str, **more: Any) -> dict[str, Any]:
    script = f"trap '' TERM; head -c 3000000 /dev/zero > {path}; sync {path}; while true; do sleep 0.1; done"
    return {"name": "main", "image": "any", "command": ["/bin/sh", "-c", script], **more}


@pytest.mark.real
@needs_bwrap
@bwrap
@pytest.mark.parametrize(
    ("path", "limit", "said"),
    [
        ("/e/big", None, 'Usage of EmptyDir volume "e" exceeds the limit "1Mi". '),
        ("/var/lib/big", "2Mi", "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "),
        ("/e/deep", "2Mi", 'Usage of EmptyDir volume "e" exceeds the limit "1Mi". '),
    ],
)
async def test_a_pod_above_its_limit_has_failed(machine: Any, path: str, limit: str | None, said: str) -> None:
    machine.kubelet.workers.evictions.period = 0.05
    more: dict[str, Any] = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    if limit:
        more["resources"] = {"limits": {"ephemeral-storage": limit}}
    await machine.pod("p", volumes=[E], containers=[_writer(path, **more)], terminationGracePeriodSeconds=600)
    pod = await machine.phase("p", "Failed")
    assert (pod.status.reason, pod.status.message) == ("Evicted", said)
    assert pod.status.container_statuses[0].state.terminated["exitCode"] == 137
    assert (await machine.event("Evicted", about="p")).message == said
    assert not any(c.status == "True" for c in pod.status.conditions if c.type == "Ready")
    uid = pod.metadata.uid
    await machine.until("p", lambda _: not _left(machine.root / "pods" / uid))
    assert machine.kubelet.workers.evictions._tasks == {}


def _left(folder: Path) -> list[str]:
    """Files of some size below a folder, which may vanish meanwhile."""
    found = []
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found += [name] if os.lstat(f"{at}/{name}").st_size > 65536 else []
    return found


@pytest.mark.real
@needs_bwrap
@bwrap
async def test_under_disk_pressure_the_pod_that_uses_most_goes(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pods without any limit; only then is anything of them measured."""
    await machine.pod("small", containers=[_writer("/tmp/big")])
    script = "head -c 20000000 /dev/zero > /var/lib/big; sync /var/lib/big; while true; do sleep 0.1; done"
    await machine.pod("large", containers=[{"name": "main", "image": "any", "command": ["/bin/sh", "-c", script]}])
    large = await machine.phase("large", "Running")
    root = machine.root / "pods" / large.metadata.uid
    await machine.until("large", lambda _: disk_usage(str(root), limit=1 << 60) >= 20_000_000)
    enough = True
    monkeypatch.setattr(eviction, "pressure", lambda root: None if enough else (1 << 30, 1 << 20))
    machine.evictions = {"worth": 10 << 20, "period": 0.2}
    await machine.restart()
    enough = False
    pod = await machine.phase("large", "Failed")
    assert pod.status.reason == "Evicted"
    assert pod.status.message.startswith(
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 1024Ki. "
        "Container main was using "
    )
    assert (await machine.phase("small", "Running")).status.reason == ""


def test_disk_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    def disk(blocks: int, available: int) -> None:
        found = SimpleNamespace(f_frsize=4096, f_blocks=blocks, f_bavail=available)
        monkeypatch.setattr(os, "statvfs", lambda path: found)

    disk(1000, 100)
    assert eviction.pressure("/") is None
    disk(1000, 99)
    assert eviction.pressure("/") == (409600, 99 * 4096)
    disk(1 << 30, 1 << 18)
    assert eviction.pressure("/") is None
    disk(1 << 30, (1 << 18) - 1)
    assert eviction.pressure("/") == (1 << 30, (1 << 30) - 4096)


@pytest.mark.parametrize(
    ("used", "uid"),
    [
        ({}, ""),
        ({"a": ({"c": 63 * MIB}, 0)}, ""),
        ({"a": ({"c": 63 * MIB}, MIB), "b": ({"c": MIB}, 0)}, "a"),
        ({"a": ({"c": 64 * MIB}, 0), "b": ({"c": 40 * MIB, "d": 40 * MIB}, 0)}, "b"),
    ],
)
def test_the_pod_that_uses_most(used: dict[str, tuple[dict[str, int], int]], uid: str) -> None:
    assert eviction.worst(used) == uid


@pytest.mark.real
@needs_bwrap
@bwrap
async def test_a_pod_within_its_limits_goes_on(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.kubelet.workers.evictions.period = 0.01
    looked = 0

    def counted(*arguments: Any) -> str:
        nonlocal looked
        looked += 1
        return excess(*arguments)

    monkeypatch.setattr(eviction, "excess", counted)
    volume = {"name": "e", "emptyDir": {"sizeLimit": "4Mi"}}
    more: dict[str, Any] = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    more["resources"] = {"limits": {"ephemeral-storage": "8Mi"}}
    await machine.pod("p", volumes=[volume], containers=[_writer("/e/big", **more)])
    await machine.phase("p", "Running")
    await machine.until("p", lambda _: looked > 20)
    assert (await machine.phase("p", "Running")).status.reason == ""


@pytest.mark.real
@needs_bwrap
@bwrap
async def test_a_kubelet_that_is_killed_evicts_after_its_start(machine: Any) -> None:
    more = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    await machine.pod("p", volumes=[E], containers=[_writer("/e/big", **more)])
    await machine.phase("p", "Running")
    await machine.kill()
    machine.evictions = {"period": 0.05}
    await machine.start()
    assert (await machine.phase("p", "Failed")).status.reason == "Evicted"
