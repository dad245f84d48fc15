"""A CSI driver of network storage, for tests of attaching volumes: no topology, PUBLISH_UNPUBLISH_VOLUME.

One storage serves all nodes. A volume is a folder, bind-mounted on nodes that it is attached to and rejected elsewhere.
As a program it serves one socket for each node: python -m tonnage_box.testing.network_driver STATE NODE=SOCKET...
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tonnage.base.aio.clock import RealClock
from tonnage.csi._proto import csi_pb2
from tonnage.csi.client.client import CsiClient
from tonnage.csi.client.local import client_of
from tonnage.csi.errors import Code, CsiError
from tonnage.csi.server.dispatch import Calls
from tonnage.csi.server.inflight import InFlight
from tonnage.csi.server.server import CsiServer
from tonnage.csi.server.service import Service
from tonnage.host import mount

NETWORK_DRIVER = "network.example.com"
_MULTI_NODE = (3, 4, 5)
CAPABILITIES = (
    "CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME", "PUBLISH_READONLY", "LIST_VOLUMES",
    "LIST_VOLUMES_PUBLISHED_NODES", "GET_CAPACITY",
)  # fmt: skip


@dataclass
class NetworkVolume:
    """A volume. nodes: ids of the nodes that it is attached to -> whether for reading only."""

    size: int
    nodes: dict[str, bool] = field(default_factory=dict)


@dataclass
class NetworkStorage:
    """What all nodes share. state: a folder for content and, so that it outlives a kill, for the list; None: memory.

    calls: of the controller, as texts. fault: called before each call's effect and after it (named `METHOD done`); may
    raise. secret: what calls must bring as secrets["key"], "" for nothing.
    """

    capacity: int = 100 << 30
    state: Path | None = None
    volumes: dict[str, NetworkVolume] = field(default_factory=dict)
    capabilities: tuple[str, ...] = CAPABILITIES
    calls: list[str] = field(default_factory=list)
    fault: Callable[[str], None] = lambda call: None
    secret: str = ""

    def load(self) -> None:
        """Read what an earlier process left."""
        assert self.state is not None
        if (file := self.state / "volumes.json").exists():
            self.volumes = {name: NetworkVolume(**found) for name, found in json.loads(file.read_text()).items()}

    def save(self) -> None:
        """Write it down."""
        if self.state is not None:
            found = {name: {"size": one.size, "nodes": one.nodes} for name, one in self.volumes.items()}
            (self.state / "volumes.tmp").write_text(json.dumps(found))
            (self.state / "volumes.tmp").rename(self.state / "volumes.json")

    def find(self, name: str) -> NetworkVolume:
        """The volume of that id. Raises: CsiError."""
        if name not in self.volumes:
            raise CsiError(Code.NOT_FOUND, f"volume {name} does not exist")
        return self.volumes[name]

    def note(self, call: str, *what: str) -> None:
        """Record a call, and fail if it is to fail."""
        self.calls.append(" ".join((call, *what)))
        self.fault(call)


class _Identity:
    def __init__(self, storage: NetworkStorage) -> None:
        self._storage = storage

    async def GetPluginInfo(self, request: Any) -> Any:
        return csi_pb2.GetPluginInfoResponse(name=NETWORK_DRIVER, vendor_version="1")

    async def GetPluginCapabilities(self, request: Any) -> Any:
        kinds = csi_pb2.PluginCapability
        controller = kinds(service=kinds.Service(type=kinds.Service.CONTROLLER_SERVICE))
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=[controller])

    async def Probe(self, request: Any) -> Any:
        return csi_pb2.ProbeResponse()


class _Controller:
    def __init__(self, storage: NetworkStorage) -> None:
        self._storage = storage

    async def ControllerGetCapabilities(self, request: Any) -> Any:
        kinds = csi_pb2.ControllerServiceCapability
        found = [kinds(rpc=kinds.RPC(type=kinds.RPC.Type.Value(name))) for name in self._storage.capabilities]
        return csi_pb2.ControllerGetCapabilitiesResponse(capabilities=found)

    async def CreateVolume(self, request: Any) -> Any:
        size = request.capacity_range.required_bytes
        volume = self._storage.volumes.setdefault(request.name, NetworkVolume(size))
        if self._storage.state is not None:
            (self._storage.state / request.name).mkdir(exist_ok=True)
        self._storage.save()
        return csi_pb2.CreateVolumeResponse(
            volume=csi_pb2.Volume(volume_id=request.name, capacity_bytes=volume.size, volume_context={"kind": "net"})
        )

    async def DeleteVolume(self, request: Any) -> Any:
        self._check_secret(request)
        if (volume := self._storage.volumes.get(request.volume_id)) is not None:
            if volume.nodes:
                raise CsiError(Code.FAILED_PRECONDITION, f"volume {request.volume_id} is attached to {volume.nodes}")
            del self._storage.volumes[request.volume_id]
            self._storage.save()
        return csi_pb2.DeleteVolumeResponse()

    async def ControllerPublishVolume(self, request: Any) -> Any:
        storage = self._storage
        storage.note("publish", request.volume_id, request.node_id)
        self._check_secret(request)
        volume = storage.find(request.volume_id)
        is_shared = request.volume_capability.access_mode.mode in _MULTI_NODE
        if not is_shared and set(volume.nodes) - {request.node_id}:
            raise CsiError(Code.FAILED_PRECONDITION, f"volume {request.volume_id} is attached to {list(volume.nodes)}")
        if volume.nodes.setdefault(request.node_id, request.readonly) != request.readonly:
            raise CsiError(Code.ALREADY_EXISTS, f"volume {request.volume_id} is attached otherwise")
        storage.save()
        storage.fault("publish done")
        return csi_pb2.ControllerPublishVolumeResponse(
            publish_context={"token": f"{request.volume_id}@{request.node_id}"}
        )

    async def ControllerUnpublishVolume(self, request: Any) -> Any:
        storage = self._storage
        storage.note("unpublish", request.volume_id, request.node_id)
        self._check_secret(request)
        if (volume := storage.volumes.get(request.volume_id)) is not None:
            volume.nodes.pop(request.node_id, None)
        storage.save()
        storage.fault("unpublish done")
        return csi_pb2.ControllerUnpublishVolumeResponse()

    async def ListVolumes(self, request: Any) -> Any:
        kinds = csi_pb2.ListVolumesResponse
        entries = [
            kinds.Entry(
                volume=csi_pb2.Volume(volume_id=name, capacity_bytes=volume.size),
                status=kinds.VolumeStatus(published_node_ids=list(volume.nodes)),
            )
            for name, volume in self._storage.volumes.items()
        ]
        return kinds(entries=entries)

    async def GetCapacity(self, request: Any) -> Any:
        storage = self._storage
        storage.note("capacity")
        used = sum(volume.size for volume in storage.volumes.values())
        return csi_pb2.GetCapacityResponse(available_capacity=max(0, storage.capacity - used))

    def _check_secret(self, request: Any) -> None:
        if request.secrets.get("key", "") != self._storage.secret:
            raise CsiError(Code.UNAUTHENTICATED, "wrong key")


class _Node:
    def __init__(self, storage: NetworkStorage, node: str) -> None:
        self._storage, self._node = storage, node

    async def NodeGetInfo(self, request: Any) -> Any:
        return csi_pb2.NodeGetInfoResponse(node_id=self._node)

    async def NodeGetCapabilities(self, request: Any) -> Any:
        return csi_pb2.NodeGetCapabilitiesResponse()

    async def NodePublishVolume(self, request: Any) -> Any:
        volume = self._storage.find(request.volume_id)
        if (
            request.publish_context.get("token") != f"{request.volume_id}@{self._node}"
            or self._node not in volume.nodes
        ):
            raise CsiError(Code.FAILED_PRECONDITION, f"volume {request.volume_id} is not attached to {self._node}")
        target = Path(request.target_path)
        target.mkdir(exist_ok=True)
        assert self._storage.state is not None
        if not mount.is_mount(target):
            await asyncio.to_thread(mount.bind, self._storage.state / request.volume_id, target)
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(self, request: Any) -> Any:
        target = Path(request.target_path)
        if mount.is_mount(target):
            await asyncio.to_thread(mount.umount, target)
        if target.exists():
            target.rmdir()
        return csi_pb2.NodeUnpublishVolumeResponse()


def network_services(storage: NetworkStorage, node: str) -> list[Service]:
    """The services of a node's socket."""
    described = csi_pb2.DESCRIPTOR.services_by_name
    offered = {"Identity": _Identity(storage), "Controller": _Controller(storage), "Node": _Node(storage, node)}
    return [Service(described[name], implementation) for name, implementation in offered.items()]


def network_client(storage: NetworkStorage, node: str = "") -> CsiClient:
    """A client in this process."""
    calls = Calls(NETWORK_DRIVER, network_services(storage, node), InFlight(), RealClock())
    return client_of(calls, Path("network.sock"))


async def serve(state: Path, sockets: dict[str, Path]) -> None:
    """Serve the sockets until cancelled. sockets: by node."""
    storage = NetworkStorage(state=state)
    storage.load()
    servers = [CsiServer(socket, network_services(storage, node)) for node, socket in sockets.items()]
    try:
        for server in servers:
            await server.start()
        await asyncio.Event().wait()
    finally:
        for server in servers:
            await server.stop()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m tonnage_box.testing.network_driver STATE NODE=SOCKET...")
    pairs = (text.partition("=") for text in sys.argv[2:])
    asyncio.run(serve(Path(sys.argv[1]), {node: Path(socket) for node, _, socket in pairs}))
