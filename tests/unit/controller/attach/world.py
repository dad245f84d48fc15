"""A cluster in this process and a network storage, for the controller that attaches volumes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.unit.controller.contexts import context

from tonnage.base.aio.tasks import Background
from tonnage.controller.attach.attacher import Attacher
from tonnage.controller.attach.capacity import SharedCapacity
from tonnage.controller.attach.comparison import AttachmentComparison
from tonnage.controller.attach.drivers import AttachEndpoint, AttachingDrivers
from tonnage.kubernetes.api import names
from tonnage.kubernetes.api.kinds import ATTACHMENTS, CSI_DRIVERS, CSI_NODES, SECRETS, VOLUMES
from tonnage.kubernetes.api.storage import VolumeAttachment
from tonnage.kubernetes.client.client import Client
from tonnage.kubernetes.client.informer import Informers
from tonnage.provisioning.claims.bind import find
from tonnage_box.testing.network_driver import NETWORK_DRIVER, NetworkStorage, NetworkVolume, network_client
from tonnage_box.testing.wait import eventually

FINALIZER = "external-attacher/network-example-com"
GI = 1 << 30


@dataclass
class AttachWorld:
    """Makers of objects. kube: of the test, not of the controller."""

    kube: Client
    storage: NetworkStorage = field(default_factory=NetworkStorage)

    async def node(self, name: str, node_id: str = "") -> None:
        """A node on which the driver is registered."""
        entry = {"name": NETWORK_DRIVER, "nodeID": node_id or f"id-{name}", "topologyKeys": []}
        await self.kube.create(CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": [entry]}})

    async def volume(self, name: str = "v", mode: str = "ReadWriteOnce", **csi: Any) -> None:
        """A PV and its volume `h-NAME`."""
        self.storage.volumes[f"h-{name}"] = NetworkVolume(GI)
        source = {"driver": NETWORK_DRIVER, "volumeHandle": f"h-{name}", "volumeAttributes": {"a": "b"}, **csi}
        spec = {"accessModes": [mode], "capacity": {"storage": "1Gi"}, "csi": source}
        await self.kube.create(VOLUMES, {"metadata": {"name": name}, "spec": spec})
        await self.kube.patch(VOLUMES, name, {"metadata": {"finalizers": None}})  # whose controller does not run here

    async def bind(self, name: str) -> None:
        """What Kubernetes' volume controller writes once a claim has the PV."""
        await self.kube.patch(VOLUMES, name, {"status": {"phase": "Bound"}}, subresource="status")

    async def attach(self, node: str, volume: str = "v", **meta: Any) -> str:
        """What Kubernetes' attach/detach controller makes; returns its name."""
        name = names.attachment_name(f"h-{volume}", NETWORK_DRIVER, node)
        spec = {"attacher": NETWORK_DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}}
        await self.kube.create(ATTACHMENTS, {"metadata": {"name": name, **meta}, "spec": spec})
        return name

    async def detach(self, name: str) -> None:
        """What it deletes."""
        await self.kube.delete(ATTACHMENTS, name)

    async def get(self, name: str) -> VolumeAttachment | None:
        """An attachment."""
        return await find(self.kube, ATTACHMENTS, name)

    async def attached(self, name: str) -> VolumeAttachment:
        """The attachment when it is attached."""
        found: list[VolumeAttachment] = []

        async def look() -> bool:
            one = await self.get(name)
            found[:] = [one] if one is not None else []
            return one is not None and one.attached

        await eventually(look)
        return found[0]

    async def failed(self, name: str, field: str = "attachError") -> str:
        """The message of an attachment's error, when it has one."""
        found: list[str] = []

        async def look() -> bool:
            one = await self.get(name)
            found[:] = [((one.status.get(field) or {}).get("message", "")) if one is not None else ""]
            return bool(found[0])

        await eventually(look)
        return found[0]

    async def gone(self, name: str) -> None:
        """Wait until there is no such attachment."""

        async def look() -> bool:
            return await self.get(name) is None

        await eventually(look)

    async def secret(self, value: str) -> None:
        """The Secret that volumes name."""
        import base64

        data = {"key": base64.b64encode(value.encode()).decode()}
        await self.kube.create(SECRETS, {"metadata": {"name": "key"}, "data": data}, "default")

    async def driver(self, **spec: Any) -> None:
        """The CSIDriver."""
        body = {"metadata": {"name": NETWORK_DRIVER}, "spec": {"attachRequired": True, **spec}}
        await self.kube.create(CSI_DRIVERS, body)


@dataclass
class Served:
    """The loops that run."""

    drivers: AttachingDrivers
    attacher: Attacher
    comparison: AttachmentComparison


@asynccontextmanager
async def serving(client: Client, storage: NetworkStorage, clock: Any, *, every: float = 1e9) -> AsyncIterator[Served]:
    """Run the controller's loops, over a driver in this process."""
    informers, tasks = Informers(client), Background("attach")
    loops = context(client, informers, None, clock=clock)
    drivers = AttachingDrivers(
        [AttachEndpoint(Path("a.sock"))], clock, make_client=lambda socket: network_client(storage)
    )
    attacher = Attacher(loops, drivers)
    comparison = AttachmentComparison(attacher, drivers, clock, every=every)
    capacity = SharedCapacity(loops, drivers)
    informers.start()
    try:
        for loop in (drivers, attacher, attacher.protector, comparison, capacity):
            tasks.start(loop.run())
        yield Served(drivers, attacher, comparison)
    finally:
        await tasks.close()
        await informers.close()
