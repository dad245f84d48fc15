"""A CSI driver's callers: the gRPC client of the gRPC project (its C core), the same for every driver, with less of its
own in the figures than a client in Python has. Blocking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from tonnage.csi._proto import csi_pb2

VolumeUse = csi_pb2.VolumeCapability
_MODE = csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
MOUNT = csi_pb2.VolumeCapability(mount=csi_pb2.VolumeCapability.MountVolume(), access_mode=_MODE)
BLOCK = csi_pb2.VolumeCapability(block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=_MODE)
_TIMEOUT = 60.0


class Caller:
    """Calls of a driver, by one connection. Any number of threads may call at once."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self.probe = self._method("Identity", "Probe")
        self.get_capacity = self._method("Controller", "GetCapacity")
        self.create_volume = self._method("Controller", "CreateVolume")
        self.delete_volume = self._method("Controller", "DeleteVolume")
        self.stage = self._method("Node", "NodeStageVolume")
        self.unstage = self._method("Node", "NodeUnstageVolume")
        self.publish = self._method("Node", "NodePublishVolume")
        self.unpublish = self._method("Node", "NodeUnpublishVolume")

    def _method(self, service: str, name: str) -> Callable[..., Any]:
        answer = getattr(csi_pb2, f"{name}Response")
        call = self._channel.unary_unary(
            f"/csi.v1.{service}/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        request = getattr(csi_pb2, f"{name}Request")
        return lambda **fields: call(request(**fields), timeout=_TIMEOUT)

    def __enter__(self) -> Caller:
        self.probe()
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def create(self, name: str, size: int, use: VolumeUse = MOUNT, parameters: Mapping[str, str] | None = None) -> str:
        """Make a volume of so many bytes; its id."""
        asked = csi_pb2.CapacityRange(required_bytes=size)
        made = self.create_volume(name=name, capacity_range=asked, volume_capabilities=[use], parameters=parameters)
        return str(made.volume.volume_id)

    def delete(self, volume: str) -> None:
        """Delete a volume."""
        self.delete_volume(volume_id=volume)

    def life(self, folder: Path, name: str, size: int) -> None:
        """All that is done with a volume of one pod, from CreateVolume to DeleteVolume."""
        staging, target = str(folder / f"staging-{name}"), str(folder / f"target-{name}")
        volume = self.create(name, size)
        where = {"volume_id": volume, "staging_target_path": staging}
        self.stage(**where, volume_capability=MOUNT)
        self.publish(**where, target_path=target, volume_capability=MOUNT)
        self.unpublish(volume_id=volume, target_path=target)
        self.unstage(**where)
        self.delete(volume)

    def fill(
        self,
        count: int,
        size: int,
        *,
        at_once: int,
        use: VolumeUse = MOUNT,
        parameters: Mapping[str, str] | None = None,
    ) -> tuple[float, Sequence[str]]:
        """Make so many volumes from so many threads: the seconds that took, and their ids."""
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(lambda _: self.probe(), range(at_once)))
            began = time.perf_counter()
            ids = list(threads.map(lambda number: self.create(f"v{number}", size, use, parameters), range(count)))
            return time.perf_counter() - began, ids

    def empty(self, volumes: Sequence[str], *, at_once: int = 1) -> None:
        """Delete volumes."""
        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(self.delete, volumes))


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
