"""Three walks through the code: the files whose functions run, in the order in which each is entered first.

    python -m scripts.walks

A claim, from the first watch event to the last write; CreateVolume on an image pool; a pod through the scheduler.
Each is a fixed scenario with real parts in this process, recorded with sys.setprofile in all threads. The measures
print them, and a test compares the files with those that docs/architecture.md names.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import tonnage
from tonnage.base.aio.clock import RealClock
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import AccessMode, VolumeCapability
from tonnage.csi.driver.driver import Driver
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.kubernetes.api import kinds, names
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.kubernetes.client.transport import Request, Response, Transport
from tonnage.scheduler.scheduler import Scheduler
from tonnage.storage.pools import config
from tonnage_box.testing.apiserver import api_server, client
from tonnage_box.testing.node import NODE, fake_node
from tonnage_box.testing.objects import Objects
from tonnage_box.testing.wait import eventually

SOURCE = Path(tonnage.__file__).parent
_HEAD = "walk: "
SETTLE = 0.5
"""Seconds of rest before a scenario, so that what the start has left to do is not recorded."""


class Recorder:
    """Records the files below some folders of the source while `on`. Installed in all threads that start later."""

    def __init__(self, folders: tuple[str, ...], left_out: tuple[str, ...] = ()) -> None:
        self.on = False
        self.files: dict[str, None] = {}
        self._folders = tuple(f"{SOURCE}/{folder}" for folder in folders)
        self._left_out = tuple(f"{SOURCE}/{file}" for file in left_out)

    def _call(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call":
            code = frame.f_code
            if not code.co_filename.startswith(self._folders) or code.co_filename.startswith(self._left_out):
                return
            if code.co_name not in ("<module>", "<lambda>"):
                self.files.setdefault(str(Path(code.co_filename).relative_to(SOURCE.parents[1])))

    def __enter__(self) -> Recorder:
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


class LastWrite:
    """A transport: the recorder is off once a write to a path with this ending was answered."""

    def __init__(self, inner: Transport, ending: str, recorder: Recorder) -> None:
        self._inner, self._ending, self._recorder = inner, ending, recorder
        self.stream, self.close = inner.stream, inner.close

    async def request(self, request: Request) -> Response:
        """See Transport."""
        answer = await self._inner.request(request)
        if request.method != "GET" and request.path.endswith(self._ending):
            self._recorder.on = False
        return answer


async def claim(recorder: Recorder) -> None:
    """A claim without siblings or data source: from selected-node to Bound."""
    async with AsyncExitStack() as stack:
        kube = client(await stack.enter_async_context(api_server()))
        objects = Objects(kube)
        await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
        await objects.storage_class("late")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walk")))
        watched = Client(LastWrite(kube.transport, "/persistentvolumeclaims/data/status", recorder))
        node = await stack.enter_async_context(fake_node(watched, folder, "10Gi"))
        await eventually(lambda: node.publishes("10Gi", "10Gi"))
        await objects.claim("data", "1Gi", storageClassName="late")
        await asyncio.sleep(SETTLE)
        recorder.on = True
        await node.select("data")
        await eventually(lambda: node.is_bound("data"))


async def create_volume(recorder: Recorder) -> None:
    """CreateVolume of 64 MiB as ext4 on an image pool, over the driver's socket."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walk")))
        pool = config.make(config.parse(f"image:{folder}/pool,size=1Gi,sparse=yes"))
        await pool.open()
        stack.push_async_callback(pool.close)
        driver = Driver(NODE, {pool.name: pool}, folder / "state")
        endpoint = await stack.enter_async_context(DriverEndpoint(driver, folder / "csi.sock"))
        csi = await stack.enter_async_context(CsiClient(endpoint.socket))
        await asyncio.sleep(SETTLE)
        recorder.on = True
        await csi.create_volume("walk", 64 << 20, capabilities=[VolumeCapability(AccessMode.SINGLE_NODE_WRITER)])
        recorder.on = False


async def pod(recorder: Recorder) -> None:
    """A pod with one ephemeral volume: from its creation to its binding."""
    async with AsyncExitStack() as stack:
        kube = client(await stack.enter_async_context(api_server()))
        objects = Objects(kube)
        await kube.create(kinds.NAMESPACES, {"metadata": {"name": names.SYSTEM_NAMESPACE}})
        await objects.storage_class("late")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="walk")))
        node = await stack.enter_async_context(fake_node(kube, folder, "10Gi"))
        await kube.create(kinds.CSI_DRIVERS, {"metadata": {"name": names.DRIVER}, "spec": {"storageCapacity": True}})
        await kube.create(
            kinds.CSI_NODES,
            {
                "metadata": {"name": NODE},
                "spec": {"drivers": [{"name": names.DRIVER, "nodeID": NODE, "topologyKeys": [names.TOPOLOGY_NODE]}]},
            },
        )
        labels = {names.TOPOLOGY_NODE: names.label_value(NODE), names.HOSTNAME_LABEL: NODE}
        await kube.patch(kinds.NODES, NODE, {"metadata": {"labels": labels}})
        allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        await kube.patch(kinds.NODES, NODE, {"status": {"allocatable": allocatable}}, subresource="status")
        await eventually(lambda: node.publishes("10Gi", "10Gi"))
        informers, events = Informers(kube), EventRecorder(kube, "default-scheduler")
        watched = Client(LastWrite(kube.transport, "/pods/app/binding", recorder))
        scheduler = Scheduler(watched, informers, events, clock=RealClock())
        informers.start()
        stack.push_async_callback(informers.close)
        for work in (scheduler.run(), events.run()):
            stack.callback(asyncio.ensure_future(work).cancel)
        await informers.wait_synced()
        claims = {"v0": {"storageClassName": "late", "resources": {"requests": {"storage": "1Gi"}}}}
        pod = await objects.pod("app", ephemeral=claims, schedulingGates=[{"name": "example.com/claims"}])
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "app", "uid": pod.metadata.uid, "controller": True}
        await objects.claim("app-v0", "1Gi", owners=[owner], storageClassName="late")
        await asyncio.sleep(SETTLE)
        recorder.on = True  # its claim is there: without it the first cycle finds no node, and the walk is another one
        await kube.patch(kinds.PODS, "app", {"spec": {"schedulingGates": None}}, "default")

        async def is_bound() -> bool:
            return bool((await kube.get(kinds.PODS, "app", "default")).spec.node_name)

        await eventually(is_bound)


@dataclass(frozen=True)
class Walk:
    """A scenario, the folders whose files count, and how many there may be. left_out: files that do not count."""

    scenario: Callable[[Recorder], Awaitable[None]]
    folders: tuple[str, ...]
    limit: int
    left_out: tuple[str, ...] = ()


_OF_BOUND_CLAIMS = (
    "node/growth.py",
    "provisioning/claims/growth.py",
    "node/autogrow.py",
    "provisioning/claims/autogrow.py",
    "node/attributes.py",
    "provisioning/claims/attributes.py",
    "node/snapshots/contents.py",
    "node/health.py",
)
"""Their handlers see each claim and ignore it until it is bound."""


_OF_GATED_PODS = ("scheduler/core/conditions.py",)
"""The scenario removes a gate, and the condition that tells of it goes."""
WALKS: Mapping[str, Walk] = {
    "a claim": Walk(claim, ("node/", "provisioning/"), 12, _OF_BOUND_CLAIMS),
    "CreateVolume on an image pool": Walk(create_volume, ("csi/driver/", "storage/pools/", "host/"), 18),
    "a pod through the scheduler": Walk(pod, ("scheduler/",), 12, _OF_GATED_PODS),
}


def walk(name: str) -> list[str]:
    """The files of a walk, as paths below the repository, in order. Blocking, about 3 s."""
    with Recorder(WALKS[name].folders, WALKS[name].left_out) as recorder:
        asyncio.run(_run(WALKS[name].scenario, recorder))
    return list(recorder.files)


async def _run(scenario: Callable[[Recorder], Awaitable[None]], recorder: Recorder) -> None:
    await scenario(recorder)


def recorded() -> dict[str, list[str]]:
    """All walks, recorded in a process of its own: what is cached already is not entered again. Blocking, 8 s."""
    print_all = [sys.executable, str(Path(__file__).resolve())]
    lines = subprocess.run(print_all, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith(_HEAD):
            name = line.removeprefix(_HEAD).partition("  ")[0].strip()
            found[name] = []
        else:
            found[name].append(line.split()[1])
    return found


def main() -> None:
    """Print the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--summary", action="store_true", help="numbers only")
    is_whole = not parser.parse_args().summary
    for name, found in WALKS.items():
        files = walk(name)
        print(f"{_HEAD}{name:{max(map(len, WALKS))}}  {len(files)} files, at most {found.limit}")
        if is_whole:
            print(*(f"{number:4}. {file}" for number, file in enumerate(files, 1)), sep="\n")


if __name__ == "__main__":
    main()
