"""Calls a driver as Kubernetes does: attach, stage, publish, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tonnage.cinder.driver import CinderDriver
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.local import LocalConnection
from tonnage.csi.client.types import AttachedContext, VolumeCapability

MOUNT = VolumeCapability()
BLOCK = VolumeCapability(block=True)


def patient_client(driver: CinderDriver) -> CsiClient:
    """A client in this process, which waits as long as the driver does."""
    socket = driver.server.path
    connection = LocalConnection(driver.server.calls, socket)
    return CsiClient(socket, timeout=600, node_timeout=600, connection=connection)


@dataclass
class Kubelet:
    """Calls the driver as a kubelet does."""

    client: CsiClient
    root: Path
    used: dict[str, AttachedContext] = field(default_factory=dict)

    def staging(self, name: str) -> Path:
        return self.root / f"{name}-staging"

    def target(self, name: str) -> Path:
        return self.root / f"{name}-target"

    async def stage(self, name: str, use: VolumeCapability = MOUNT) -> None:
        """Attach and stage."""
        node = (await self.client.node_info()).node_id
        publish = await self.client.attach_volume(name, node, use)
        context = {one.id: one.context for one in await self.client.list_volumes()}[name]
        self.used[name] = AttachedContext(context, publish)
        await self.client.stage(name, self.staging(name), use, context=self.used[name])

    async def start(self, name: str, use: VolumeCapability = MOUNT, *, readonly: bool = False) -> Path:
        """All that comes before a pod; its path."""
        await self.stage(name, use)
        await self.client.publish(
            name, self.target(name), use, staging=self.staging(name), readonly=readonly, context=self.used[name]
        )
        return self.target(name)

    async def stop(self, name: str) -> None:
        """All that comes after a pod."""
        await self.client.unpublish(name, self.target(name))
        await self.client.unstage(name, self.staging(name))
        await self.client.detach_volume(name, (await self.client.node_info()).node_id)
