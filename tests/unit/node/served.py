"""A node that serves a configuration file, as the kubelet mounts it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.types import VolumeCapability
from tonnage.kubernetes.api import kinds
from tonnage.kubernetes.client.client import Client
from tonnage.node.config import driver
from tonnage.node.config import node as config_node
from tonnage.node.config.node import NODE_FILE, NodeConfig
from tonnage.node.process import NodeProcess

GIB = 1 << 30
ONE = {"name": "one", "kind": "fake", "size": "1Gi"}
TWO = {"name": "two", "kind": "fake", "size": "2Gi"}


@dataclass
class Mounted:
    """A ConfigMap as the kubelet mounts it: node.yaml -> ..data/node.yaml, ..data -> a folder with the time in it."""

    folder: Path
    kubelet: Path
    number: int = field(default=0)

    @property
    def file(self) -> Path:
        """What --config names."""
        return self.folder / "node.yaml"

    def put(self, **content: object) -> None:
        """Swap it for that content, as kubernetes/pkg/volume/util/atomic_writer.go does."""
        self.put_text(yaml.safe_dump({"kubelet": str(self.kubelet), **content}))

    def put_text(self, text: str) -> None:
        """The same, of any text."""
        before = os.readlink(self.folder / "..data") if self.number else ""
        self.number += 1
        folder = self.folder / f"..2026_11_20_{self.number}"
        folder.mkdir()
        (folder / "node.yaml").write_text(text)
        (self.folder / "..data_tmp").symlink_to(folder.name)
        os.rename(self.folder / "..data_tmp", self.folder / "..data")
        if not self.file.is_symlink():
            self.file.symlink_to("..data/node.yaml")
        if before:
            (self.folder / before / "node.yaml").unlink()
            (self.folder / before).rmdir()

    def read(self) -> NodeConfig:
        """The configuration, as the command line reads it."""
        file = driver.load(self.file, NODE_FILE)
        pools = driver.pools_of(file, str(self.file))
        return config_node.merge(file, {}, pools, node="node-1")


@dataclass
class ServedNode:
    """A node that serves, its ConfigMap, and a client of the API server."""

    process: NodeProcess
    mounted: Mounted
    kube: Client
    uid: str

    async def events(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of those on the Node."""
        found = (await self.kube.list(kinds.EVENTS)).items
        return [(e.type, e.reason, e.message) for e in found if e.involved_object.uid == self.uid]

    async def told(self, text: str, *, reason: str) -> str:
        """Wait for an Event on the Node; its type."""
        async with asyncio.timeout(60):
            while True:
                for type_, found, message in await self.events():
                    if found == reason and text in message:
                        return type_
                await asyncio.sleep(0.01)

    def csi(self) -> CsiClient:
        """A client of its driver."""
        return CsiClient(self.process.config.driver.endpoint)


async def published(node: ServedNode, wanted: dict[str, int]) -> None:
    """Wait until each class has that much room."""
    async with asyncio.timeout(60):
        while {c.storage_class_name: c.capacity for c in (await node.kube.list(kinds.CAPACITIES)).items} != {
            name: f"{size}Gi" if size else "0" for name, size in wanted.items()
        }:
            await asyncio.sleep(0.01)


async def make(node: ServedNode, name: str, pool: str, size: int = GIB // 2) -> str:
    """A volume in a pool; its id."""
    async with node.csi() as csi:
        return (await csi.create_volume(name, size, [VolumeCapability()], parameters={"pool": pool})).id
