"""Inline volumes of certificates and images, by the kubelet's calls; and unpacking, beside GNU tar.

The driver is a process of its own. Pods are those of a box, with the volume and without it in turns.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.box.box import ROOT, Served, as_process
from benchmarks.driver.calls import MOUNT, Caller, timed
from benchmarks.figure import Figure
from benchmarks.inline.agent import CERT, IMAGE
from benchmarks.inline.unpack import Sizes, unpacking

from tonnage.host import mount
from tonnage.kubernetes.api.kinds import PODS
from tonnage.kubernetes.api.names import (
    CSI_EPHEMERAL,
    CSI_POD_NAME,
    CSI_POD_NAMESPACE,
    CSI_POD_UID,
    CSI_SERVICE_ACCOUNT,
)
from tonnage.storage.images.store import ImageStore
from tonnage_box.api.wait import until
from tonnage_box.testing import image_archive
from tonnage_box.testing.wait import wait_until_served

MOST_RUNS = 3
IMAGE_NAME = "bench/files:1"
_CERTIFICATE = {"issuer-name": "ca", "dns-names": "web.default.svc.cluster.local", "key-algorithm": "ECDSA"}
_SOON_OVER = {"duration": "1h", "renew-before": "59m59s"}


@dataclass(frozen=True)
class InlineLoad:
    """How much of everything. pods: pairs of one with a certificate and one without. turns: of each publish.

    soonest: seconds after which the agent renews a certificate, at the earliest.
    """

    pods: int = 20
    turns: int = 100
    volumes: int = 100
    renewals: int = 200
    soonest: float = 30.0
    unpacked: Sizes = field(default_factory=Sizes)


async def run(load: InlineLoad | None = None) -> list[Figure]:
    """All figures; none without root."""
    if not ROOT:
        return []
    load = load or InlineLoad()
    with tempfile.TemporaryDirectory(prefix="tonnage-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        figures = await _pods(load.pods)
        store = await asyncio.to_thread(_image, folder)
        async with _agent(folder / "agent", store, load.soonest) as pid:
            with Calls(folder / "agent") as calls:
                figures += await asyncio.to_thread(_images, calls, load)
                figures += await asyncio.to_thread(_many, calls, load.volumes, pid, folder)
                figures += await asyncio.to_thread(_renewals, calls, load, pid)
        return figures + await asyncio.to_thread(unpacking, folder, load.unpacked)


async def _pods(count: int) -> list[Figure]:
    """Pods with a certificate and without, in turns, from create to Running."""
    with_volume: list[float] = []
    without: list[float] = []
    runtime = "bwrap" if shutil.which("bwrap") else "none"
    async with as_process("--nodes", "1", "--pool", "fake", "--inline", "cert", "--runtime", runtime) as box:
        await _started(box, _pod("first", {}))  # loads what later ones use
        await _started(box, _pod("second", _CERTIFICATE))
        for number in range(count):
            without.append(await _started(box, _pod(f"without-{number}", {})))
            with_volume.append(await _started(box, _pod(f"with-{number}", _CERTIFICATE)))
    ours, bare = statistics.median(with_volume), statistics.median(without)
    return [
        Figure("cert: a pod until it runs, p50", ours, "ms"),
        Figure("the same pod without a certificate, p50", bare, "ms"),
        Figure("cert: what it adds to the pod, p50", ours - bare, "ms", at_most=50),
    ]


def _pod(name: str, attributes: Mapping[str, str]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "x", "command": ["sleep", "1000"]}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    if attributes:
        container["volumeMounts"] = [{"name": "tls", "mountPath": "/tls"}]
        volume = {"driver": CERT, "readOnly": True, "volumeAttributes": dict(attributes)}
        spec["volumes"] = [{"name": "tls", "csi": volume}]
    return {"metadata": {"name": name}, "spec": spec}


async def _started(box: Served, pod: Mapping[str, Any]) -> float:
    """Milliseconds until a pod runs; it is deleted then."""
    name = pod["metadata"]["name"]
    began = time.perf_counter()
    await box.client.create(PODS, pod, "default")
    await until(box.client, PODS, name, lambda p: p.status.phase == "Running", namespace="default")
    took = (time.perf_counter() - began) * 1000
    await box.client.delete(PODS, name, "default", grace_seconds=0)
    return took


def _image(folder: Path) -> Path:
    """A store with an image of two layers. Blocking."""
    lower, upper = image_archive.LayerTar().folder("www"), image_archive.LayerTar()
    for number in range(200):
        lower.add(f"www/{number}", os.urandom(4096), mode=0o644)
    upper.add("www/new", b"new")
    archive = folder / "image.tar"
    archive.write_bytes(image_archive.archive(image_archive.layout([lower.data(), upper.data()], name=IMAGE_NAME)))
    ImageStore(folder / "store").load(archive)
    return folder / "store"


@asynccontextmanager
async def _agent(folder: Path, store: Path, soonest: float) -> AsyncIterator[int]:
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.inline.agent", str(folder), str(store), str(soonest)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        for name in (CERT, IMAGE):
            await wait_until_served(folder / f"{name}.sock", timeout=60)
        yield process.pid
    finally:
        process.terminate()
        await process.wait()
        left = [one.target for one in mount.mounts() if one.target.startswith(f"{folder}/")]
        for target in reversed(left):
            mount.umount(target)


class Calls:
    """The kubelet's calls of both drivers. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._callers = {name: Caller(folder / f"{name}.sock") for name in (CERT, IMAGE)}

    def __enter__(self) -> Calls:
        (self._folder / "pods").mkdir()
        for caller in self._callers.values():
            caller.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for caller in self._callers.values():
            caller.__exit__()

    def target(self, name: str) -> Path:
        """Where a volume is shown."""
        return self._folder / "pods" / name

    def publish(self, driver: str, name: str, *, readonly: bool = True, **attributes: str) -> None:
        """Publish a volume to a pod of the same name."""
        context = {
            CSI_EPHEMERAL: "true", CSI_POD_NAME: name, CSI_POD_NAMESPACE: "default", CSI_POD_UID: f"uid-{name}",
            CSI_SERVICE_ACCOUNT: "default",
        }  # fmt: skip
        self._callers[driver].publish(
            volume_id=_handle(name),
            target_path=str(self.target(name)),
            volume_capability=MOUNT,
            readonly=readonly,
            volume_context={**context, **attributes},
        )

    def unpublish(self, driver: str, name: str) -> None:
        """Unpublish it."""
        self._callers[driver].unpublish(volume_id=_handle(name), target_path=str(self.target(name)))

    @contextmanager
    def published(self, driver: str, names: Sequence[str], **how: Any) -> Iterator[None]:
        """Volumes of these names while the body runs."""
        for name in names:
            self.publish(driver, name, **how)
        try:
            yield
        finally:
            for name in names:
                self.unpublish(driver, name)


def _handle(name: str) -> str:
    """A handle as the kubelet makes them."""
    return f"csi-{name.encode().hex():0>64}"


def _images(calls: Calls, load: InlineLoad) -> list[Figure]:
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(load.turns + 3):
        for readonly, times in took.items():
            name = f"{'r' if readonly else 'w'}{number}"
            more = {} if readonly else {"size": "64Mi"}
            times.append(timed(lambda: calls.publish(IMAGE, name, readonly=readonly, image=IMAGE_NAME, **more)))  # noqa: B023  # called at once
            calls.unpublish(IMAGE, name)
    return [
        Figure("image: NodePublishVolume, read-only, p50", statistics.median(took[True][3:]), "ms", at_most=15),
        Figure("image: NodePublishVolume, writable, p50", statistics.median(took[False][3:]), "ms", at_most=40),
    ]


def _many(calls: Calls, count: int, pid: int, folder: Path) -> list[Figure]:
    """What volumes of one image take of disk and memory, half of them beside as many certificates."""
    layers, trees = folder / "store" / "layers", folder / "agent" / "plugins" / IMAGE / "trees"
    one, before = _bytes(layers), _rss(pid)
    names = [f"m{number}" for number in range(count)]
    with calls.published(IMAGE, names, image=IMAGE_NAME):
        assert all((calls.target(name) / "www" / "new").is_file() for name in names)
        copies = (_bytes(layers) + _bytes(trees)) / one
        images = _rss(pid) - before
    half = names[: count // 2]
    with (
        calls.published(CERT, [f"c{name}" for name in half], **_CERTIFICATE),
        calls.published(IMAGE, half, image=IMAGE_NAME),
    ):
        both = _rss(pid) - before
    return [
        Figure(f"image: unpacked copies for {count} volumes of one image", round(copies, 2), at_most=1),
        Figure(f"memory of the agent: {count} volumes of images", images, "MiB", at_most=8),
        Figure(f"memory of the agent: {len(half)} of images and {len(half)} of certificates", both, "MiB", at_most=8),
    ]


def _renewals(calls: Calls, load: InlineLoad, pid: int) -> list[Figure]:
    """Certificates that are all due when a stopped agent goes on."""
    names = [f"n{number}" for number in range(load.renewals)]
    with calls.published(CERT, names, **_CERTIFICATE, **_SOON_OVER):
        os.kill(pid, signal.SIGSTOP)
        try:
            shown = {name: _certificate(calls, name) for name in names}
            time.sleep(load.soonest * 7 / 6)
            before = _cpu(pid)
        finally:
            os.kill(pid, signal.SIGCONT)
        while any(_certificate(calls, name) == shown[name] for name in names):
            time.sleep(0.1)
        spent = _cpu(pid) - before
    return [Figure(f"cert: {load.renewals} renewals at once, signed by the same process", spent, "core s", at_most=1)]


def _certificate(calls: Calls, name: str) -> bytes:
    return (calls.target(name) / "tls.crt").read_bytes()


def _bytes(folder: Path) -> int:
    """Bytes of the disk below a folder, without what is mounted there."""
    device, total = os.stat(folder).st_dev, 0
    for at, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if os.lstat(os.path.join(at, name)).st_dev == device]
        total += sum(os.lstat(os.path.join(at, name)).st_blocks * 512 for name in files)
    return total


def _rss(pid: int) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _cpu(pid: int) -> float:
    """Seconds of processor time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
