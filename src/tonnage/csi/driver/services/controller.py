"""The CSI Controller service: volumes and capacity of this node (CSI 1.12, Controller Service)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

from google.protobuf.wrappers_pb2 import Int64Value

from tonnage.base.errors import (
    AlreadyExistsError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver import filling as fillings
from tonnage.csi.driver.driver import OWNER_DRIVER, Driver, condition_of, context_of, id_of, named, safe_name
from tonnage.csi.driver.filling import Filling
from tonnage.csi.driver.parameters import (
    Selection,
    changes,
    check_capabilities,
    check_fits,
    choose_fstype,
    select,
)
from tonnage.csi.driver.services.paging import check_token, cut
from tonnage.csi.driver.services.snapshots import SnapshotCalls
from tonnage.kubernetes.api import names
from tonnage.storage.content.secret import check_hosts
from tonnage.storage.pools.base.contract import (
    Capacity,
    PoolVolume,
    VolumeOrigin,
    VolumeRequest,
    VolumeState,
    is_inline,
)
from tonnage.storage.pools.base.parameters import KIND, LIMITS, POOL
from tonnage.storage.pools.base.record import CONTENT
from tonnage.storage.pools.core.pool import Pool

log = logging.getLogger(__name__)

LEAST = 1 << 20
"""Default bytes of a volume without a requested size, if the pool's minimum is smaller."""

_RPC = csi_pb2.ControllerServiceCapability.RPC
_OFFERED = (
    _RPC.CREATE_DELETE_VOLUME,
    _RPC.GET_CAPACITY,
    _RPC.LIST_VOLUMES,
    _RPC.SINGLE_NODE_MULTI_WRITER,
    _RPC.GET_VOLUME,
    _RPC.VOLUME_CONDITION,
)
_OF_POOLS = (
    ("snapshots", (_RPC.CREATE_DELETE_SNAPSHOT, _RPC.LIST_SNAPSHOTS, _RPC.GET_SNAPSHOT)),
    ("clones", (_RPC.CLONE_VOLUME,)),
    ("expansion", (_RPC.EXPAND_VOLUME,)),
    ("modifiable", (_RPC.MODIFY_VOLUME,)),
)
"""Capabilities that one of the pools supports; the others then reject the call."""


class ControllerService:
    """The Controller service."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        snapshots = SnapshotCalls(driver)
        self.CreateSnapshot, self.DeleteSnapshot = snapshots.CreateSnapshot, snapshots.DeleteSnapshot
        self.ListSnapshots, self.GetSnapshot = snapshots.ListSnapshots, snapshots.GetSnapshot

    async def ControllerGetCapabilities(
        self, _request: csi_pb2.ControllerGetCapabilitiesRequest
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        """Capabilities of the service."""
        kinds = list(_OFFERED)
        for flag, more in _OF_POOLS:
            if any(getattr(pool.features, flag) for pool in self._driver.pools.values()):
                kinds += more
        offered = [csi_pb2.ControllerServiceCapability(rpc=_RPC(type=kind)) for kind in kinds]
        return csi_pb2.ControllerGetCapabilitiesResponse(capabilities=offered)

    async def CreateVolume(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        """Create a volume. Idempotent by name.

        Raises: InvalidError, ExhaustedError (also when the requested topology does not include this node),
        OutOfRangeError, AlreadyExistsError, and with a content source NotFoundError and PreconditionError.
        """
        use = check_capabilities(request.volume_capabilities)
        self._check_place(request)
        selection, source = await self._select(request)
        mutable = changes(self._driver, selection.pool, request.mutable_parameters)
        fstype = choose_fstype(selection.pool, use.fstype, selection.fstype, block=use.block)
        size, limit = await _sizes(request.capacity_range, selection.pool, fstype, source, block=use.block)
        name = safe_name(request.name)
        await self._reject_elsewhere(name, selection.pool)
        content = selection.content if source is None else None
        owner = named(selection.owner, name, request.name)
        if content is not None:
            if request.parameters.get(names.PARAM_CONTENT):  # a claim's, not the class's own
                check_hosts(content, request.secrets)
            fillings.check(content, block=use.block)
            owner |= fillings.mark_of(content)
            await self._driver.fillings.settle(name, content)
        volume = await selection.pool.create(
            VolumeRequest(name, size, limit, use.block, fstype, selection.parameters, owner, source, mutable)
        )
        if is_inline(volume.owner):
            raise AlreadyExistsError(f"volume {name} exists as an inline volume of a pod")
        if request.parameters.get(names.PARAM_UNUSED) == "true" and volume.state is not VolumeState.NEW:
            raise AlreadyExistsError(f"volume {name} exists and was used; use another name")
        if any(volume.mutable.get(key, "") != value for key, value in mutable.items()):
            volume = await self._modify(selection.pool, name, mutable)  # made by an earlier call, with other wishes
        if content is not None:
            place = self._driver.state / fillings.FOLDER / name
            filling = Filling(selection.pool, volume, content, self._driver.access, dict(request.secrets), place)
            volume = await self._driver.fillings.finish(filling)
        elif source is None and CONTENT in volume.owner:
            fillings.check_empty(volume)
        return csi_pb2.CreateVolumeResponse(volume=self._volume(selection.pool, name, volume))

    async def _select(self, request: csi_pb2.CreateVolumeRequest) -> tuple[Selection, VolumeOrigin | None]:
        """Parse the parameters. Without a pool, the source's is chosen, as content stays in its pool."""
        selection = select(self._driver, request.parameters)
        if not request.HasField("volume_content_source"):
            return selection, None
        content_source = request.volume_content_source
        kind = content_source.WhichOneof("type")
        vid = content_source.snapshot.snapshot_id if kind == "snapshot" else content_source.volume.volume_id
        if not vid:
            raise InvalidError("volume_content_source names neither a snapshot nor a volume")
        pool, name = self._driver.place(vid, str(kind))
        if kind == "volume":
            if not await _has(pool, safe_name(request.name)):  # an earlier call has copied it
                self._driver.reclaimed.check(pool.name, name)
            with suppress(NotFoundError):  # which the pool reports
                fillings.check_filled(await pool.get(name))
        if pool is not selection.pool:
            if POOL in request.parameters or KIND in request.parameters:
                raise InvalidError(
                    f"{kind} {vid} is in pool {pool.name}, the parameters choose {selection.pool.name}: content stays"
                    f" in its pool, use a class for pool {pool.name}"
                )
            selection = select(self._driver, {**request.parameters, POOL: pool.name})
        return selection, VolumeOrigin(snapshot=name) if kind == "snapshot" else VolumeOrigin(volume=name)

    async def DeleteVolume(self, request: csi_pb2.DeleteVolumeRequest) -> csi_pb2.DeleteVolumeResponse:
        """Delete a volume, or let it become trash, as its class says; an unknown one is success.

        Raises: PreconditionError while it is in use, UnavailableError when its pool is not served here.
        """
        place = self._driver.locate(request.volume_id)
        if place is not None:
            pool, name = place
            self._driver.check_open(pool)
            await self._driver.fillings.abandon(pool, name, self._driver.state / fillings.FOLDER / name)
            if await _is_filling(pool, name) or not await pool.trash.discard(name):
                await pool.delete(name, wait=False)
            self._driver.reclaimed.remove(pool.name, name)
        elif await self._driver.find_inline(request.volume_id) is not None:
            raise PreconditionError(f"volume {request.volume_id} is an inline volume: it ends with its pod")
        return csi_pb2.DeleteVolumeResponse()

    async def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        """Whether a volume has these capabilities; if not, `message` says why. Raises: NotFoundError."""
        if not request.volume_capabilities:
            raise InvalidError("volume_capabilities is missing")
        pool, volume = await self._driver.find(request.volume_id)
        try:
            check_fits(volume, check_capabilities(request.volume_capabilities))
            self._check_pool(pool, request.parameters)
            _check_same(volume, changes(self._driver, pool, request.mutable_parameters))
        except InvalidError as reason:
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=str(reason))
        confirmed = csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
            mutable_parameters=request.mutable_parameters,
        )
        return csi_pb2.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    def _check_pool(self, pool: Pool, parameters: Mapping[str, str]) -> None:
        if parameters and (other := select(self._driver, parameters).pool) is not pool:
            raise InvalidError(f"the volume is in pool {pool.name}, the parameters choose {other.name}")

    async def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        """Expand a volume, with its file system if it is mounted; success when it is large enough already.

        node_expansion_required is set only where the file system cannot grow while mounted. One that is not mounted
        grows when it is staged. Raises: NotFoundError, InvalidError, ExhaustedError, OutOfRangeError (also for a limit
        below the present size: no volume shrinks).
        """
        if not request.HasField("capacity_range"):
            raise InvalidError("capacity_range is missing")
        pool, volume = await self._driver.find(request.volume_id)
        if request.HasField("volume_capability"):
            check_fits(volume, check_capabilities([request.volume_capability]))
        asked = request.capacity_range
        grown = await pool.growth.expand(volume.name, asked.required_bytes, limit=asked.limit_bytes)
        waits = bool(pool.growth.unfinished(volume.name))
        return csi_pb2.ControllerExpandVolumeResponse(capacity_bytes=grown.size, node_expansion_required=waits)

    async def ControllerModifyVolume(
        self, request: csi_pb2.ControllerModifyVolumeRequest
    ) -> csi_pb2.ControllerModifyVolumeResponse:
        """Change mutable parameters (`iops`, `bandwidth`, `erase`), all or none.

        I/O limits apply at once to running pods. An empty value restores the class's. Raises: NotFoundError,
        InvalidError, UnsupportedError; HostError and PreconditionError where a limit cannot be set for a pod.
        """
        if not request.mutable_parameters:
            raise InvalidError("mutable_parameters is missing: say what to change")
        pool, volume = await self._driver.find(request.volume_id)
        await self._modify(pool, volume.name, changes(self._driver, pool, request.mutable_parameters))
        return csi_pb2.ControllerModifyVolumeResponse()

    async def _modify(self, pool: Pool, name: str, wanted: Mapping[str, str]) -> PoolVolume:
        volume = await pool.modify(name, wanted)
        if LIMITS & set(wanted):
            try:
                await self._driver.throttle.reapply(pool, volume)
            except UnsupportedError as reason:  # its code would say that nothing was changed
                raise PreconditionError(str(reason)) from None
        return volume

    async def ControllerGetVolume(
        self, request: csi_pb2.ControllerGetVolumeRequest
    ) -> csi_pb2.ControllerGetVolumeResponse:
        """One volume and its condition; only the condition if its record is damaged. Raises: NotFoundError."""
        pool, name = self._driver.place(request.volume_id)
        self._driver.check_open(pool)
        volume = None if name in await pool.damaged() else await pool.get(name)
        condition = await pool.condition_in(await pool.places(), name)
        status = csi_pb2.ControllerGetVolumeResponse.VolumeStatus(volume_condition=condition_of(condition))
        return csi_pb2.ControllerGetVolumeResponse(volume=self._volume(pool, name, volume), status=status)

    async def ListVolumes(self, request: csi_pb2.ListVolumesRequest) -> csi_pb2.ListVolumesResponse:
        """List this driver's volumes, sorted by id, without inline volumes, which have no PV.

        A token is the last id returned, so it stays valid while volumes are created and deleted.
        """
        check_token(self._driver, request)
        page, token = cut({item[0]: item[1:] async for item in self._listed()}, request)
        places = {pool.name: await pool.places() for pool in {pool.name: pool for pool, *_ in page}.values()}
        found = [await self._entry(pool, name, it, places[pool.name]) for pool, name, it in page]
        entries = [entry for entry in found if entry is not None]
        return csi_pb2.ListVolumesResponse(entries=entries, next_token=token)

    async def _entry(
        self, pool: Pool, name: str, volume: PoolVolume | None, places: Mapping[str, Path]
    ) -> csi_pb2.ListVolumesResponse.Entry | None:
        try:
            condition = condition_of(await pool.condition_in(places, name))
        except NotFoundError:
            return None  # deleted since it was listed
        status = csi_pb2.ListVolumesResponse.VolumeStatus(volume_condition=condition)
        return csi_pb2.ListVolumesResponse.Entry(volume=self._volume(pool, name, volume), status=status)

    async def _listed(self) -> AsyncIterator[tuple[str, Pool, str, PoolVolume | None]]:
        """Ids, pools and names; no volume where its record is damaged. Pools that are not open are skipped."""
        for pool in self._driver.pools.values():
            try:
                volumes, damaged = await pool.list(), await pool.damaged()
            except UnavailableError as failure:
                log.warning("volumes of a pool are not listed pool=%s error=%s", pool.name, failure)
                continue
            for name in damaged:
                yield id_of(pool.name, name), pool, name, None
            for volume in volumes:
                owner = volume.owner
                if not is_inline(owner) and owner.get(OWNER_DRIVER, self._driver.name) == self._driver.name:
                    yield id_of(pool.name, volume.name), pool, volume.name, volume

    async def GetCapacity(self, request: csi_pb2.GetCapacityRequest) -> csi_pb2.GetCapacityResponse:
        """Capacity for volumes of these parameters on this node now; 0 for other topologies.

        Raises: InvalidError for parameters that CreateVolume would reject at any capacity: a caller that gets 0 instead
        would wait for capacity. CSI leaves the choice.
        """
        if request.HasField("accessible_topology") and not self._is_here(request.accessible_topology.segments):
            return _response(Capacity(0, 0, 0, 0, 0))
        selection = select(self._driver, request.parameters)
        block, fstype = False, ""
        if request.volume_capabilities:
            use = check_capabilities(request.volume_capabilities)
            block, fstype = use.block, use.fstype
        fstype = choose_fstype(selection.pool, fstype, selection.fstype, block=block)
        inline = request.parameters.get(names.PARAM_INLINE) == "true"
        await selection.pool.probe.run_if_due()
        return _response(
            await selection.pool.capacity_for(selection.parameters, fstype=fstype, block=block, inline=inline)
        )

    def _check_place(self, request: csi_pb2.CreateVolumeRequest) -> None:
        if not request.HasField("accessibility_requirements"):
            return
        wanted = request.accessibility_requirements
        places = wanted.requisite or wanted.preferred
        if places and not any(self._is_here(place.segments) for place in places):
            raise ExhaustedError(f"the volume is wanted elsewhere: this is node {self._driver.node_id}")

    def _is_here(self, segments: Mapping[str, str]) -> bool:
        here = self._driver.topology
        return all(here.get(key) == value for key, value in segments.items())

    async def _reject_elsewhere(self, name: str, chosen: Pool) -> None:
        """Reject a name that another pool has: it is the volume's identity whatever its parameters."""
        for pool in self._driver.pools.values():
            if pool is chosen:
                continue
            try:
                await pool.get(name)
            except (NotFoundError, UnavailableError):
                continue
            raise AlreadyExistsError(f"volume {name} exists in pool {pool.name}, requested pool {chosen.name}")

    def _volume(self, pool: Pool, name: str, volume: PoolVolume | None) -> csi_pb2.Volume:
        here = [csi_pb2.Topology(segments=self._driver.topology)]
        answer = csi_pb2.Volume(volume_id=id_of(pool.name, name), accessible_topology=here)
        if volume is not None:
            answer.capacity_bytes = volume.size
            answer.volume_context.update(context_of(volume))
            if volume.source is not None:
                answer.content_source.CopyFrom(_content_source(pool, volume.source))
        return answer


async def _has(pool: Pool, name: str) -> bool:
    try:
        await pool.get(name)
    except NotFoundError:
        return False
    return True


def _content_source(pool: Pool, source: VolumeOrigin) -> csi_pb2.VolumeContentSource:
    kinds = csi_pb2.VolumeContentSource
    if source.snapshot:
        return kinds(snapshot=kinds.SnapshotSource(snapshot_id=id_of(pool.name, source.snapshot)))
    return kinds(volume=kinds.VolumeSource(volume_id=id_of(pool.name, source.volume)))


def _check_same(volume: PoolVolume, mutable: Mapping[str, str]) -> None:
    for key, value in mutable.items():
        if (now := volume.effective.get(key, "")) != value:
            raise InvalidError(
                f"parameter {key} of volume {volume.name} is {now or 'not set'}, requested {value or 'none'}"
            )


async def _sizes(
    asked: csi_pb2.CapacityRange, pool: Pool, fstype: str, source: VolumeOrigin | None, *, block: bool
) -> tuple[int, int]:
    """Size and limit in bytes. Without a size: the source's, else the minimum or what the limit allows."""
    size, limit = asked.required_bytes, asked.limit_bytes
    if size < 0 or limit < 0:
        raise InvalidError(f"capacity_range {size} to {limit} bytes: sizes must not be negative")
    if size == 0 and source:
        with suppress(NotFoundError):  # it may be gone and the volume made already: the pool knows
            origin = await (pool.snapshots.get(source.snapshot) if source.snapshot else pool.get(source.volume))
            return origin.size, limit
    if size == 0:
        amount = await pool.capacity(fstype=fstype, block=block)
        size = min(max(amount.smallest, LEAST), limit or max(amount.smallest, LEAST))
    return size, limit


def _response(capacity: Capacity) -> csi_pb2.GetCapacityResponse:
    return csi_pb2.GetCapacityResponse(
        available_capacity=capacity.free,
        maximum_volume_size=Int64Value(value=capacity.largest),
        minimum_volume_size=Int64Value(value=capacity.smallest),
    )


async def _is_filling(pool: Pool, name: str) -> bool:
    with suppress(NotFoundError):
        return fillings.is_filling(await pool.get(name))
    return False
