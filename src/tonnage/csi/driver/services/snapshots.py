"""The snapshot calls of the CSI Controller service (CSI 1.12, CreateSnapshot and following)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

from google.protobuf.timestamp_pb2 import Timestamp

from tonnage.base.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
    UnsupportedError,
)
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import OWNER_DRIVER, Driver, group_lock, id_of, named, safe_name
from tonnage.csi.driver.filling import check_filled
from tonnage.csi.driver.group_members import group_of, members
from tonnage.csi.driver.services.paging import check_token, cut
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import PoolVolume, Snapshot, is_inline
from tonnage.storage.pools.core.pool import Pool


class SnapshotCalls:
    """The snapshot calls of the Controller service."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def CreateSnapshot(self, request: csi_pb2.CreateSnapshotRequest) -> csi_pb2.CreateSnapshotResponse:
        """Create a snapshot. Idempotent by name; it is ready when this returns.

        Raises: InvalidError, NotFoundError, AlreadyExistsError (of another volume), ExhaustedError, PreconditionError,
        UnsupportedError.
        """
        if not request.source_volume_id:
            raise InvalidError("source_volume_id is missing")
        check_parameters(request.parameters, "VolumeSnapshotClass")
        pool, volume = source_place(self._driver, request.source_volume_id)
        name = safe_name(request.name)
        owner = named({OWNER_DRIVER: self._driver.name}, name, request.name)
        for other in self._driver.pools.values():
            if other is not pool and (found := await find(other, name)):
                raise AlreadyExistsError(f"snapshot {name} exists in pool {other.name} and is of volume {found.volume}")
        await pool.snapshots.make_way(name)  # who asks for a snapshot has none of that name yet
        if (found := await find(pool, name)) is None:
            self._driver.reclaimed.check(pool.name, volume)
            source = await pool.get(volume)
            check_source(self._driver, request.source_volume_id, source)
            if cluster := source.owner.get(names.PARAM_CLUSTER):
                owner[names.PARAM_CLUSTER] = cluster  # the volume may be deleted before its snapshot
        elif group := group_of(found.owner):
            raise AlreadyExistsError(f"snapshot {name} exists and is a member of group snapshot {group}")
        made = await pool.snapshots.create(name, volume, owner=owner)
        return csi_pb2.CreateSnapshotResponse(snapshot=as_proto(pool, made))

    async def DeleteSnapshot(self, request: csi_pb2.DeleteSnapshotRequest) -> csi_pb2.DeleteSnapshotResponse:
        """Delete a snapshot; an unknown one is success. Volumes made from it stay.

        Raises: InvalidError for a member of a group that has other members.
        """
        place = self._driver.locate(request.snapshot_id)
        if place is None or not place[0].features.snapshots:
            return csi_pb2.DeleteSnapshotResponse()
        pool, name = place
        if group := group_of(found.owner) if (found := await find(pool, name)) else "":
            with self._driver.in_flight.hold(group_lock(group), "DeleteSnapshot"):
                await self._check_last(request.snapshot_id, group)
                await pool.snapshots.delete(name)
        else:
            await pool.snapshots.delete(name)
        return csi_pb2.DeleteSnapshotResponse()

    async def _check_last(self, vid: str, group: str) -> None:
        """Raises: InvalidError unless the snapshot is the only member of its group, UnavailableError if unknown."""
        for pool in self._driver.pools.values():
            self._driver.check_open(pool)  # it may have other members
        if others := [member.id for member in await members(self._driver, group) if member.id != vid]:
            raise InvalidError(
                f"snapshot {vid} is a member of group snapshot {group}, with {others[0]}"
                f"{f' and {len(others) - 1} more' if others[1:] else ''}: delete the group"
            )

    async def ListSnapshots(self, request: csi_pb2.ListSnapshotsRequest) -> csi_pb2.ListSnapshotsResponse:
        """List this driver's snapshots, sorted by id, filtered by id and by volume; an unknown one gives an empty list.

        A token is the last id returned.
        """
        check_token(self._driver, request)
        for vid in (request.snapshot_id, request.source_volume_id):
            if (place := self._place(vid)) is not None:
                self._driver.check_open(place[0])  # an empty list would mean that there are none
        found = {
            snapshot.snapshot_id: snapshot
            async for snapshot in self._all()
            if request.snapshot_id in ("", snapshot.snapshot_id)
            and request.source_volume_id in ("", snapshot.source_volume_id)
        }
        page, token = cut(found, request)
        entries = [csi_pb2.ListSnapshotsResponse.Entry(snapshot=snapshot) for snapshot in page]
        return csi_pb2.ListSnapshotsResponse(entries=entries, next_token=token)

    def _place(self, vid: str) -> tuple[Pool, str] | None:
        """Pool and name of an id, which may be invented or of a pool that is no longer served."""
        with suppress(UnavailableError):
            return self._driver.locate(vid)
        return None

    async def _all(self) -> AsyncIterator[csi_pb2.Snapshot]:
        for pool in self._driver.pools.values():
            try:
                snapshots = await pool.snapshots.list()
            except UnavailableError:
                continue
            for snapshot in snapshots:
                if snapshot.owner.get(OWNER_DRIVER, self._driver.name) == self._driver.name:
                    yield as_proto(pool, snapshot)

    async def GetSnapshot(self, request: csi_pb2.GetSnapshotRequest) -> csi_pb2.GetSnapshotResponse:
        """One snapshot. Raises: NotFoundError."""
        pool, name = self._driver.place(request.snapshot_id, "snapshot")
        return csi_pb2.GetSnapshotResponse(snapshot=as_proto(pool, await pool.snapshots.get(name)))


def are_offered(driver: Driver) -> bool:
    """Whether a pool has snapshots."""
    return any(pool.features.snapshots for pool in driver.pools.values())


def check_parameters(parameters: Mapping[str, str], kind: str) -> None:
    """Raises: InvalidError for a parameter of a class of that kind: none is known."""
    if unknown := sorted(key for key in parameters if not key.startswith(names.CSI_PREFIX)):
        raise InvalidError(f"unknown parameter {unknown[0][:60]!r}: a {kind} has none here")


def source_place(driver: Driver, vid: str) -> tuple[Pool, str]:
    """Pool and name of a volume to take a snapshot of.

    Raises: NotFoundError, UnavailableError, UnsupportedError.
    """
    pool, volume = driver.place(vid)
    if not pool.features.snapshots:
        raise UnsupportedError(f"pool {pool.name!r} ({pool.kind}) does not offer snapshots")
    return pool, volume


def check_source(driver: Driver, vid: str, volume: PoolVolume) -> None:
    """Check that snapshots of a volume may be taken. Raises: NotFoundError, PreconditionError."""
    if (other := volume.owner.get(OWNER_DRIVER, driver.name)) != driver.name:
        raise NotFoundError(f"volume {vid} is of driver {other}: there is none of that id here")
    if is_inline(volume.owner):
        raise PreconditionError(f"volume {vid} is an inline volume: it ends with its pod")
    check_filled(volume)


async def find(pool: Pool, name: str) -> Snapshot | None:
    """A snapshot of a pool, None for none or when the pool cannot be read."""
    try:
        return await pool.snapshots.get(name)
    except (NotFoundError, UnavailableError):
        return None


def timestamp(seconds: float) -> Timestamp:
    """A time for a message. seconds: since the epoch."""
    found = Timestamp()
    found.FromNanoseconds(int(seconds * 1e9))
    return found


def as_proto(pool: Pool, snapshot: Snapshot) -> csi_pb2.Snapshot:
    """A snapshot for a message."""
    return csi_pb2.Snapshot(
        size_bytes=snapshot.size,
        snapshot_id=id_of(pool.name, snapshot.name),
        source_volume_id=id_of(pool.name, snapshot.volume),
        creation_time=timestamp(snapshot.created),
        ready_to_use=True,
        group_snapshot_id=group_of(snapshot.owner),
    )
