"""One node, its API server and its driver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonnage.base.aio.clock import RealClock
from tonnage.base.aio.tasks import Background
from tonnage.base.errors import ApiNotFoundError
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.csi.driver.endpoint import DriverEndpoint
from tonnage.kubernetes.api.core import Event
from tonnage.kubernetes.api.kinds import CLAIMS, EVENTS, PODS, VOLUMES
from tonnage.kubernetes.api.pods import Pod
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.events import EventRecorder
from tonnage.kubernetes.client.informer import Informers
from tonnage.storage.pools.fake.backend import FakePool
from tonnage_box.kubelet import node_status
from tonnage_box.kubelet.containers.paths import Paths
from tonnage_box.kubelet.containers.rootfs import ADDRESS
from tonnage_box.kubelet.containers.runtime import NoneRuntime, Runtime
from tonnage_box.kubelet.kubelet import Kubelet
from tonnage_box.kubelet.volumes.sources import NodeFields

DRIVER = "csi.tonnage.dev"
NODE = "node-1"
GIB = 1 << 30


@dataclass
class Machine:
    """One node and its API server. restart() replaces the kubelet as after a kill."""

    folder: Path
    client: Client
    pool: FakePool
    endpoint: DriverEndpoint
    make_runtime: Callable[[Path], Runtime] | None = None
    evictions: dict[str, float] = field(default_factory=dict)
    """Fields of the eviction manager of each kubelet."""
    kubelet: Kubelet = field(init=False)
    _tasks: Background = field(init=False)
    _informers: Informers = field(init=False)

    @property
    def root(self) -> Path:
        return self.folder / "kubelet"

    async def start(self) -> None:
        self._tasks = Background("machine")
        self._informers = Informers(self.client)
        events = EventRecorder(self.client, "kubelet", host=NODE)
        self.kubelet = Kubelet(
            self.client,
            self._informers,
            events,
            NodeFields(NODE, ADDRESS, node_status.machine(self.root)),
            Paths(self.root),
            runtime=self.make_runtime(self.root) if self.make_runtime else NoneRuntime(RealClock()),
            clock=RealClock(),
        )
        for name, value in self.evictions.items():
            setattr(self.kubelet.workers.evictions, name, value)
        self._tasks.start(events.run())
        self._tasks.start(self.kubelet.run())
        await asyncio.wait_for(self.kubelet.ready.wait(), 60)

    async def kill(self) -> None:
        """What kill -9 leaves: nobody works any more."""
        await self._tasks.close()
        await self._informers.close()
        await self.kubelet.close()

    async def stop(self) -> None:
        """Ctrl-C."""
        await self._tasks.close()
        await self._informers.close()
        await self.kubelet.stop()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def volume(self, name: str, size: int = GIB, **spec: Any) -> None:
        """A claim, bound to a new volume of the driver."""
        block = spec.pop("block", False)
        async with CsiClient(self.endpoint.socket) as driver:
            made = await driver.create_volume(name, size, [VolumeCapability(block=block)])
        mode = "Block" if block else "Filesystem"
        claim = await self.client.create(
            CLAIMS,
            {
                "metadata": {"name": name},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": str(size)}},
                    "storageClassName": "fast",
                    "volumeMode": mode,
                    "volumeName": f"pv-{name}",
                },
            },
            "default",
        )
        await self.client.create(
            VOLUMES,
            {
                "metadata": {"name": f"pv-{name}"},
                "spec": {
                    "capacity": {"storage": str(size)},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "fast",
                    "persistentVolumeReclaimPolicy": "Delete",
                    "volumeMode": mode,
                    "claimRef": {
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "name": name,
                        "namespace": "default",
                        "uid": claim.metadata.uid,
                    },
                    "csi": {"driver": DRIVER, "volumeHandle": made.id, "volumeAttributes": dict(made.context)},
                    **spec,
                },
            },
        )
        await self.bind(name)

    async def bind(self, name: str) -> None:
        """Say that a claim is bound."""
        await self.client.patch(CLAIMS, name, {"status": {"phase": "Bound"}}, "default", subresource="status")

    async def pod(self, name: str, **spec: Any) -> Pod:
        """Make a pod on this node; spec adds to one container that sleeps."""
        body = {
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 2,
            "containers": [{"name": "main", "image": "busybox", "command": ["sleep", "1000"]}],
            **spec,
        }
        return await self.client.create(PODS, {"metadata": {"name": name}, "spec": body}, "default")

    async def until(self, name: str, fits: Callable[[Pod], bool], *, what: str = "") -> Pod:
        """Watch a pod until fits; fails after a minute."""
        pod: Pod | None = None
        try:
            async with asyncio.timeout(60):
                while True:
                    pod = await self.client.get(PODS, name, "default")
                    if fits(pod):
                        return pod
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{what or 'the pod'} did not come: {pod and pod.status}") from None

    async def phase(self, name: str, phase: str) -> Pod:
        return await self.until(name, lambda pod: pod.status.phase == phase, what=phase)

    async def gone(self, name: str) -> None:
        """Wait until the pod's object is gone."""
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.client.get(PODS, name, "default")
                except ApiNotFoundError:
                    return
                await asyncio.sleep(0.01)

    async def event(self, reason: str, *, about: str = "") -> Event:
        """Wait for an event."""
        async with asyncio.timeout(60):
            while True:
                for event in (await self.client.list(EVENTS)).items:
                    if event.reason == reason and about in ("", event.involved_object.name):
                        return event
                await asyncio.sleep(0.01)

    def left(self) -> list[str]:
        """What the kubelet keeps on disk of pods and staged volumes."""
        pods = [f"{at}/{name}" for at, dirs, files in os.walk(self.root / "pods") for name in (*dirs, *files)]
        staged = [
            f"{at}/{name}"
            for at, dirs, files in os.walk(self.root / "plugins")
            for name in (*dirs, *files)
            if name in ("globalmount", "vol_data.json")
        ]
        return sorted(pods + staged)


Eventually = Callable[[Callable[[], object]], Awaitable[None]]
