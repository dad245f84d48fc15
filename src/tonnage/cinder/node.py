"""The CSI Node service of a Cinder back end: os-brick connects the device in the child, the rest is tonnage's own.

A node records each volume that it has connected, as a call to disconnect says only its id. The record holds the secrets
of the connection; only its owner can read it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from tonnage.base.errors import InvalidError, NotFoundError, PreconditionError, host_errors
from tonnage.cinder.child import Child
from tonnage.cinder.controller import CONNECTION, COPY, FSTYPES, check_use
from tonnage.cinder.names import node_id
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.parameters import Use
from tonnage.csi.driver.paths import Places, check_parent, reject_links
from tonnage.host import device, filesystem, mount
from tonnage.host.descriptor import opened
from tonnage.storage.pools.base.contract import check_name
from tonnage.storage.pools.base.record import VolumeRecord
from tonnage.storage.pools.fs import block_device, mounts, online

log = logging.getLogger(__name__)
_UNIT = 4096  # bytes that a file system grows by
_RPC = csi_pb2.NodeServiceCapability.RPC
_OFFERED = (_RPC.STAGE_UNSTAGE_VOLUME, _RPC.EXPAND_VOLUME)


class CinderNode:
    """The Node service."""

    def __init__(self, child: Child, state: Path, keys: Sequence[str], places: Places) -> None:
        """state: folder of the records, made private. keys: what os-brick knows of the node that belongs to its id."""
        self._child, self._records, self._keys, self._places = child, _Records(state), keys, places

    async def NodeGetCapabilities(
        self, _request: csi_pb2.NodeGetCapabilitiesRequest
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        """Capabilities of the service."""
        offered = [csi_pb2.NodeServiceCapability(rpc=_RPC(type=kind)) for kind in _OFFERED]
        return csi_pb2.NodeGetCapabilitiesResponse(capabilities=offered)

    async def NodeGetInfo(self, _request: csi_pb2.NodeGetInfoRequest) -> csi_pb2.NodeGetInfoResponse:
        """The node's id: its initiators, as os-brick reports them."""
        return csi_pb2.NodeGetInfoResponse(node_id=node_id(await self._child.call("properties"), self._keys))

    async def NodeStageVolume(self, request: csi_pb2.NodeStageVolumeRequest) -> csi_pb2.NodeStageVolumeResponse:
        """Connect a volume, format it once and mount it at its staging path; raw block is only connected. Idempotent.

        Raises: InvalidError, PreconditionError, HostError, UnavailableError.
        """
        staging = self._places.path("staging_target_path", request.staging_target_path)
        use, name = check_use([request.volume_capability]), check_name(request.volume_id)
        connection = _connection(request.publish_context)
        check_parent(staging)
        reject_links(staging)
        self._records.write(name, {"connection": connection, "device": None})
        found = await self._child.call("attach", connection=connection)
        self._records.write(name, {"connection": connection, "device": found})
        if not use.block:
            is_copy = request.volume_context.get(COPY) == "true"
            path = os.path.realpath(found["path"])
            await asyncio.to_thread(_mount, path, name, staging, use, is_copy=is_copy)
        return csi_pb2.NodeStageVolumeResponse()

    async def NodeUnstageVolume(self, request: csi_pb2.NodeUnstageVolumeRequest) -> csi_pb2.NodeUnstageVolumeResponse:
        """Unmount a volume and disconnect it; success when nothing is there. Raises: PreconditionError while in use."""
        staging = self._places.path("staging_target_path", request.staging_target_path)
        reject_links(staging)
        await asyncio.to_thread(mounts.unstage, staging)
        if (record := self._records.read(request.volume_id)) is not None:
            await self._child.call("detach", connection=record["connection"], device=record["device"])
            self._records.remove(request.volume_id)
        return csi_pb2.NodeUnstageVolumeResponse()

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        """Bind a staged volume to a pod's path. Idempotent. Raises: PreconditionError where it is not staged."""
        target = self._places.path("target_path", request.target_path)
        use = check_use([request.volume_capability])
        readonly = request.readonly or use.readonly
        check_parent(target)
        if use.block:
            path = self._device(request.volume_id)
            await asyncio.to_thread(_publish_block, path, target, readonly=readonly)
            return csi_pb2.NodePublishVolumeResponse()
        staging = self._places.path("staging_target_path", request.staging_target_path)
        reject_links(staging)
        if not mount.is_mount(staging):
            raise PreconditionError(f"volume {request.volume_id} is not staged at {staging}: stage it first")
        await asyncio.to_thread(mounts.publish, staging, target, block=False, readonly=readonly)
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Unmount and remove a pod's path; success when nothing is there. Raises: PreconditionError while in use."""
        target = self._places.path("target_path", request.target_path)
        reject_links(target.parent)
        await asyncio.to_thread(block_device.unpublish, target)
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeExpandVolume(self, request: csi_pb2.NodeExpandVolumeRequest) -> csi_pb2.NodeExpandVolumeResponse:
        """Let the kernel see the device's new size, and grow the file system at volume_path. Idempotent.

        Raises: NotFoundError, HostError.
        """
        path = self._places.shown(request.volume_path)
        real = self._device(request.volume_id)
        record = self._records.read(request.volume_id)
        assert record is not None
        await self._child.call("grow", connection=record["connection"])
        size = await asyncio.to_thread(_grow, real, request.volume_id, path)
        return csi_pb2.NodeExpandVolumeResponse(capacity_bytes=size)

    def _device(self, volume_id: str) -> str:
        """The device of a volume that is connected. Raises: NotFoundError for none, PreconditionError."""
        if (record := self._records.read(volume_id)) is None:
            raise NotFoundError(f"volume {volume_id[:128]} is not connected on this node: stage it first")
        if record["device"] is None:
            raise PreconditionError(f"volume {volume_id} has no device yet: stage it again")
        return os.path.realpath(str(record["device"]["path"]))


class _Records:
    """What is recorded of each connected volume: its connection, and the device that os-brick found for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, volume: str) -> dict[str, Any] | None:
        """The record of a volume, None for none. Raises: HostError."""
        try:
            path = self._folder / f"{check_name(volume)}.json"
        except InvalidError:
            return None
        with host_errors(f"cannot read {path}"):
            try:
                found: dict[str, Any] = json.loads(path.read_bytes())
            except FileNotFoundError:
                return None
        return found

    def write(self, volume: str, record: Mapping[str, Any]) -> None:
        """Replace a record. Raises: HostError."""
        temporary = self._folder / f"{volume}.new"
        with host_errors(f"cannot write {temporary}"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump(record, file)
                file.flush()
                os.fsync(fd)
            temporary.rename(self._folder / f"{volume}.json")

    def remove(self, volume: str) -> None:
        """Remove a record. Idempotent. Raises: HostError."""
        with host_errors(f"cannot remove the record of {volume}"):
            (self._folder / f"{volume}.json").unlink(missing_ok=True)


def _connection(context: Mapping[str, str]) -> dict[str, Any]:
    """What ControllerPublishVolume returned. Raises: InvalidError, without its text: it holds secrets."""
    try:
        found = json.loads(context.get(CONNECTION, ""))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidError(
            f"publish_context has no {CONNECTION}: the volume must be attached (CSIDriver.attachRequired)"
        )
    return found


def _mount(path: str, name: str, staging: Path, use: Use, *, is_copy: bool) -> None:
    """Format a device once and mount it, with its whole size. Idempotent. Blocking.

    Raises: PreconditionError (foreign content, another mount), HostError.
    """
    if mount.is_mount(staging):
        if not block_device.is_mounted(path, staging):
            raise PreconditionError(f"{staging} is a mount of something else than volume {name}: unmount it")
        mounts.check_context(name, staging, use.flags)
        return
    fstype = use.fstype or FSTYPES[0]
    with block_device.locked(path) as fd, host_errors(f"cannot read {path}"):
        size = device.size(fd)
        record = VolumeRecord(name, size, uuid5(NAMESPACE_URL, name), length=size, fstype=fstype)
        if not _is_used(fd, record, is_copy=is_copy):
            block_device.prepare(fd, path, record, zeroed=False)
        is_small = device.filesystem_length(fd) <= size - _UNIT
    mounts.make_directory(staging)
    options = ("nouuid",) if fstype == "xfs" else ()  # a copy has the UUID of its source, which may be mounted too
    block_device.mount_at(path, record, staging, (*options, *use.flags))
    if is_small and fstype == "ext4" and not filesystem.may_grow_ext4():
        log.warning("ext4 cannot grow without CAP_SYS_RESOURCE, it stays as it is volume=%s", name)
    elif is_small and "ro" not in use.flags:
        online.grow(record, block_device.roots(path, record))


def _is_used(fd: int, record: VolumeRecord, *, is_copy: bool) -> bool:
    """Whether a device has the volume's own file system, with content, or a copy's, whose UUID is its source's."""
    found = device.probe(fd)
    if found is None or found.kind != record.fstype:
        return False
    return is_copy if found.uuid != record.uuid else not device.is_unused(fd)


def _grow(path: str, name: str, shown: Path) -> int:
    """Grow the mounted file system of a device; the device's bytes. Idempotent. Blocking.

    Raises: PreconditionError where the kernel does not, HostError.
    """
    with host_errors(f"cannot read {path}"), opened(path) as fd:
        size = device.size(fd)
        found = device.probe(fd) if shown.is_dir() else None
        is_small = device.filesystem_length(fd) <= size - _UNIT
    if found is not None and is_small:
        record = VolumeRecord(name, size, uuid5(NAMESPACE_URL, name), length=size, fstype=found.kind)
        online.grow(record, block_device.roots(path, record))
    return size


def _publish_block(path: str, target: Path, *, readonly: bool) -> None:
    """Show a device at a pod's path. Idempotent. Blocking. Raises: AlreadyExistsError, PreconditionError, HostError."""
    if not readonly:
        mounts.publish(Path(path), target, block=True, readonly=False)
    elif not block_device.is_published(path, target, readonly=True):
        block_device.publish_readonly(path, target)
