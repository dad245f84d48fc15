"""The CSI Node service: stages and publishes volumes (CSI 1.12, Node Service)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tonnage.base.errors import HostError, OutOfRangeError, PreconditionError, UnavailableError
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import Driver, condition_of, split_id
from tonnage.csi.driver.filling import check_filled
from tonnage.csi.driver.inline import Inline
from tonnage.csi.driver.parameters import check_capabilities, check_capability, check_fits
from tonnage.csi.driver.paths import Places, check_parent, reject_links
from tonnage.csi.driver.single_writer import SingleWriters
from tonnage.host import mount, selinux
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import PoolVolume, Stats, VolumeCondition
from tonnage.storage.pools.core.pool import Pool
from tonnage.storage.pools.fs.mounts import check_context

_RPC = csi_pb2.NodeServiceCapability.RPC
_OFFERED = (
    _RPC.STAGE_UNSTAGE_VOLUME,
    _RPC.GET_VOLUME_STATS,
    _RPC.SINGLE_NODE_MULTI_WRITER,
    _RPC.VOLUME_CONDITION,
)


class NodeService:
    """The Node service."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._places = Places(driver.roots)
        self._inline = Inline(driver)
        self._writers = SingleWriters()

    async def NodeGetCapabilities(
        self, _request: csi_pb2.NodeGetCapabilitiesRequest
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        """Capabilities of the service."""
        expands = any(pool.features.expansion for pool in self._driver.pools.values())
        kinds = (*_OFFERED, _RPC.EXPAND_VOLUME) if expands else _OFFERED
        offered = [csi_pb2.NodeServiceCapability(rpc=_RPC(type=kind)) for kind in kinds]
        return csi_pb2.NodeGetCapabilitiesResponse(capabilities=offered)

    async def NodeGetInfo(self, _request: csi_pb2.NodeGetInfoRequest) -> csi_pb2.NodeGetInfoResponse:
        """The node's id, its topology segment, and its maximum number of volumes."""
        return csi_pb2.NodeGetInfoResponse(
            node_id=self._driver.node_id,
            max_volumes_per_node=await self._driver.most_volumes(),
            accessible_topology=csi_pb2.Topology(segments=self._driver.topology),
        )

    async def NodeStageVolume(self, request: csi_pb2.NodeStageVolumeRequest) -> csi_pb2.NodeStageVolumeResponse:
        """Stage a volume: format it once and mount it at its staging path; attach raw block.

        Raises: NotFoundError, InvalidError (path, capability), HostError, and what Hooks.before_stage raises.
        """
        staging = self._places.path("staging_target_path", request.staging_target_path)
        use = check_capability(request)
        pool, volume = await self._driver.find(request.volume_id)
        check_fits(volume, use)
        check_filled(volume)
        check_parent(staging)
        reject_links(staging)
        await self._driver.hooks.before_stage(request.volume_id)
        await pool.stage(volume.name, staging, options=use.flags)
        return csi_pb2.NodeStageVolumeResponse()

    async def NodeUnstageVolume(self, request: csi_pb2.NodeUnstageVolumeRequest) -> csi_pb2.NodeUnstageVolumeResponse:
        """Unstage a volume; success when nothing is there."""
        staging = self._places.path("staging_target_path", request.staging_target_path)
        reject_links(staging)
        try:
            place = self._driver.locate(request.volume_id)
        except UnavailableError:
            _reject_mounted(staging)
            return csi_pb2.NodeUnstageVolumeResponse()
        if place is not None:
            pool, name = place
            await pool.unstage(name, staging)
            self._driver.hooks.unstaged(request.volume_id)
        return csi_pb2.NodeUnstageVolumeResponse()

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        """Publish a staged volume to a pod, or create an inline volume and publish that.

        Raises: NotFoundError, InvalidError, PreconditionError (not staged), AlreadyExistsError (something else is at
        the target).
        """
        target = self._places.path("target_path", request.target_path)
        use = check_capability(request)
        if request.volume_context.get(names.CSI_EPHEMERAL, "") == "true":
            await self._inline.publish(request, target, use)
            return csi_pb2.NodePublishVolumeResponse()
        pool, volume = await self._driver.find(request.volume_id)
        check_fits(volume, use)
        if not request.staging_target_path:
            raise PreconditionError(
                f"volume {request.volume_id}: staging_target_path is missing, stage the volume first"
            )
        staging = self._places.path("staging_target_path", request.staging_target_path)
        self._writers.check(volume.name, target, single=use.single_writer)
        check_parent(target)
        reject_links(staging)
        if use.single_writer:
            home = pool.home(volume)
            await asyncio.to_thread(self._writers.check_mounts, volume.name, staging, target, home=home)
        if selinux.context_of(use.flags):  # the kubelet sends it to both calls; a bind mount has that of its source
            await asyncio.to_thread(check_context, volume.name, staging, use.flags)
        readonly = request.readonly or use.readonly or "ro" in use.flags
        pod = request.volume_context.get(names.CSI_POD_UID, "")
        async with self._driver.throttle.limited(pool, volume, target, pod=pod):
            await pool.publish(volume.name, staging, target, readonly=readonly)
        self._writers.add(volume.name, target, single=use.single_writer)
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Unpublish a volume; success when nothing is there. Deletes an inline volume."""
        target = self._places.path("target_path", request.target_path)
        reject_links(target.parent)
        try:
            place = self._driver.locate(request.volume_id)
        except UnavailableError:
            _reject_mounted(target)
            return csi_pb2.NodeUnpublishVolumeResponse()
        if place is None:
            await self._inline.unpublish(request.volume_id, target)
            return csi_pb2.NodeUnpublishVolumeResponse()
        pool, name = place
        async with self._driver.throttle.released(target):
            await pool.unpublish(name, target)
        self._writers.remove(name, target)
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        """Usage in bytes and inodes at volume_path. Raises: NotFoundError for the volume or the path."""
        path = self._shown(request)
        inline = await self._driver.find_inline(request.volume_id) if split_id(request.volume_id) is None else None
        pool, volume = inline or await self._driver.find(request.volume_id)
        usage, condition = await _stats(pool, volume, path)
        return csi_pb2.NodeGetVolumeStatsResponse(usage=usage, volume_condition=condition_of(condition))

    async def NodeExpandVolume(self, request: csi_pb2.NodeExpandVolumeRequest) -> csi_pb2.NodeExpandVolumeResponse:
        """Grow the file system or device at volume_path to the size of ControllerExpandVolume.

        Raises: NotFoundError for the volume or the path, OutOfRangeError when the volume is smaller than requested,
        PreconditionError when the kernel cannot grow it while mounted.
        """
        path = self._shown(request)
        pool, volume = await self._driver.find(request.volume_id)
        if request.HasField("volume_capability"):
            check_fits(volume, check_capabilities([request.volume_capability]))
        asked = request.capacity_range
        if asked.required_bytes > volume.size or 0 < asked.limit_bytes < volume.size:
            raise OutOfRangeError(
                f"volume {request.volume_id} has {volume.size} bytes, requested {asked.required_bytes} to"
                f" {asked.limit_bytes or 'any'}: call ControllerExpandVolume first; none is made smaller"
            )
        grown = await pool.growth.grow(volume.name, path)
        return csi_pb2.NodeExpandVolumeResponse(capacity_bytes=grown.size)

    def _shown(self, request: csi_pb2.NodeGetVolumeStatsRequest | csi_pb2.NodeExpandVolumeRequest) -> Path:
        """The checked volume_path. The staging path is not needed, but must be valid if given."""
        if request.staging_target_path:
            self._places.path("staging_target_path", request.staging_target_path)
        return self._places.shown(request.volume_path)


async def _stats(pool: Pool, volume: PoolVolume, path: Path) -> tuple[list[csi_pb2.VolumeUsage], VolumeCondition]:
    """Usage and condition of a volume. What a broken one cannot tell is left out: its condition says why.

    Raises: NotFoundError, HostError, UnavailableError.
    """
    condition = await pool.condition(volume.name, path)
    try:
        return usage_of(await pool.stats(volume.name, path)), condition
    except (HostError, UnavailableError):
        if not condition.abnormal:
            raise
    # The kubelet takes an answer without any usage for a failed call.
    return [csi_pb2.VolumeUsage(unit=csi_pb2.VolumeUsage.BYTES, total=volume.size)], condition


def usage_of(stats: Stats) -> list[csi_pb2.VolumeUsage]:
    """Bytes, and inodes where there are any."""
    kind = csi_pb2.VolumeUsage
    usage = [kind(unit=kind.BYTES, total=stats.total, used=stats.used, available=stats.available)]
    if stats.inodes:
        inodes = kind(unit=kind.INODES, total=stats.inodes, used=stats.inodes_used, available=stats.inodes_free)
        usage.append(inodes)
    return usage


def _reject_mounted(path: Path) -> None:
    """For a volume of a pool that is not served here: success if nothing is mounted, else it stays mounted."""
    if mount.is_mount(path) or os.path.isfile(path):
        raise UnavailableError(f"{path} is in use by a volume whose pool is not served here: configure that pool again")
