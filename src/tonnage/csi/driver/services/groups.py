"""The CSI GroupController service: snapshots of several volumes at one moment (CSI 1.12, GroupController Service)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise

from tonnage.base.errors import AlreadyExistsError, InvalidError, NotFoundError
from tonnage.csi._proto import csi_pb2
from tonnage.csi.driver.driver import OWNER_DRIVER, Driver, lock_name, safe_name
from tonnage.csi.driver.group_members import SOURCES, GroupMember, is_complete, member_name, member_owner, members
from tonnage.csi.driver.services import snapshots
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import SnapshotRequest
from tonnage.storage.pools.core.group import MemberRequest, take
from tonnage.storage.pools.core.pool import Pool

_RPC = csi_pb2.GroupControllerServiceCapability.RPC


class GroupControllerService:
    """The GroupController service."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def GroupControllerGetCapabilities(
        self, _request: csi_pb2.GroupControllerGetCapabilitiesRequest
    ) -> csi_pb2.GroupControllerGetCapabilitiesResponse:
        """Capabilities of the service: none where no pool has snapshots."""
        kinds = [_RPC.CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT] if snapshots.are_offered(self._driver) else []
        offered = [csi_pb2.GroupControllerServiceCapability(rpc=_RPC(type=kind)) for kind in kinds]
        return csi_pb2.GroupControllerGetCapabilitiesResponse(capabilities=offered)

    async def CreateVolumeGroupSnapshot(
        self, request: csi_pb2.CreateVolumeGroupSnapshotRequest
    ) -> csi_pb2.CreateVolumeGroupSnapshotResponse:
        """Create snapshots of all source volumes at one moment, or none. Idempotent by name; ready when this returns.

        Raises: InvalidError, NotFoundError, AlreadyExistsError (of other volumes), ExhaustedError, PreconditionError
        (also for volumes that cannot be held still together), UnsupportedError, BusyError.
        """
        snapshots.check_parameters(request.parameters, "VolumeGroupSnapshotClass")
        ids = sorted(request.source_volume_ids)
        _check_ids(ids)
        group = safe_name(request.name)
        places = [snapshots.source_place(self._driver, vid) for vid in ids]
        owner = member_owner(group, ids)
        found = await members(self._driver, group)
        if is_complete(found):
            if found[0].snapshot.owner.items() >= owner.items():
                return csi_pb2.CreateVolumeGroupSnapshotResponse(group_snapshot=_as_proto(group, found))
            volumes = ", ".join(sorted(member.snapshot.volume for member in found))
            raise AlreadyExistsError(f"group snapshot {group} exists and is of other volumes: {volumes}")
        with ExitStack() as held:
            for key in sorted(set(map(lock_name, ids))):
                held.enter_context(self._driver.in_flight.hold(key, "CreateVolumeGroupSnapshot"))
            for pool, _ in places:
                self._driver.check_open(pool)  # its member would seem to be missing
                pool.backend.check_open()
            await _delete(found)  # what a killed call left: it is of another moment
            made = await self._take(group, ids, places, owner)
        return csi_pb2.CreateVolumeGroupSnapshotResponse(group_snapshot=_as_proto(group, made))

    async def _take(
        self, group: str, ids: Sequence[str], places: Sequence[tuple[Pool, str]], owner: dict[str, str]
    ) -> list[GroupMember]:
        wanted: list[MemberRequest] = []
        for vid, (pool, volume) in zip(ids, places, strict=True):
            source = await pool.get(volume)
            snapshots.check_source(self._driver, vid, source)
            cluster = source.owner.get(names.PARAM_CLUSTER)
            more = {names.PARAM_CLUSTER: cluster} if cluster else {}
            recorded = {OWNER_DRIVER: self._driver.name, **owner, **more}
            if not wanted:  # the first has it when all were taken in time
                del recorded[SOURCES]
            name = member_name(group, vid)
            await pool.snapshots.make_way(name)
            wanted.append(MemberRequest(pool, SnapshotRequest(name, volume, recorded)))
        taken = await take(wanted, completed={SOURCES: owner[SOURCES]})
        made = [GroupMember(pool, made) for (pool, _), made in zip(places, taken, strict=True)]
        return sorted(made, key=lambda member: member.id)

    async def DeleteVolumeGroupSnapshot(
        self, request: csi_pb2.DeleteVolumeGroupSnapshotRequest
    ) -> csi_pb2.DeleteVolumeGroupSnapshotResponse:
        """Delete all members that a group has, also of an incomplete one; an unknown group is success.

        Raises: InvalidError when snapshot_ids name others than its members, UnavailableError when a pool that may have
        members is not open.
        """
        found = await members(self._driver, request.group_snapshot_id)
        await self._check_members(request.group_snapshot_id, request.snapshot_ids, found)
        if not is_complete(found):
            self._check_open(request.snapshot_ids)
        await _delete(found)
        return csi_pb2.DeleteVolumeGroupSnapshotResponse()

    async def GetVolumeGroupSnapshot(
        self, request: csi_pb2.GetVolumeGroupSnapshotRequest
    ) -> csi_pb2.GetVolumeGroupSnapshotResponse:
        """One group with its members.

        Raises: NotFoundError, also for an incomplete group, InvalidError when snapshot_ids name others than its
        members.
        """
        group = request.group_snapshot_id
        found = await members(self._driver, group)
        if not is_complete(found):
            self._check_open(request.snapshot_ids)
            raise NotFoundError(f"there is no group snapshot {group!r} on node {self._driver.node_id}")
        await self._check_members(group, request.snapshot_ids, found)
        return csi_pb2.GetVolumeGroupSnapshotResponse(group_snapshot=_as_proto(group, found))

    def _check_open(self, ids: Sequence[str]) -> None:
        """Raises: UnavailableError when a pool that may have members is not open."""
        named = [place[0] for vid in ids if (place := self._driver.locate(vid)) is not None]
        for pool in named or self._driver.pools.values():
            self._driver.check_open(pool)

    async def _check_members(self, group: str, ids: Sequence[str], found: Sequence[GroupMember]) -> None:
        """Raises: InvalidError unless ids, if given, name the members; one that does not exist may be deleted."""
        if not ids:
            return
        present = {member.id for member in found}
        if unnamed := sorted(present - set(ids)):
            raise InvalidError(f"group snapshot {group}: {unnamed[0]} is a member and not among snapshot_ids")
        for vid in sorted(set(ids) - present):
            if await self._exists(vid):
                raise InvalidError(f"group snapshot {group}: {vid} of snapshot_ids is not a member")
            if is_complete(found):
                raise InvalidError(f"group snapshot {group}: {vid} of snapshot_ids does not exist")

    async def _exists(self, vid: str) -> bool:
        place = self._driver.locate(vid)
        return place is not None and await snapshots.find(*place) is not None


def _check_ids(ids: Sequence[str]) -> None:
    if not ids:
        raise InvalidError("source_volume_ids is missing: name the volumes of the group")
    if twice := [vid for vid, following in pairwise(ids) if vid == following]:
        raise InvalidError(f"source_volume_ids names {twice[0]} twice")


async def _delete(found: Sequence[GroupMember]) -> None:
    for member in found:
        await member.pool.snapshots.delete(member.snapshot.name)


def _as_proto(group: str, found: Sequence[GroupMember]) -> csi_pb2.VolumeGroupSnapshot:
    made = [snapshots.as_proto(member.pool, member.snapshot) for member in found]
    return csi_pb2.VolumeGroupSnapshot(
        group_snapshot_id=group,
        snapshots=made,
        creation_time=snapshots.timestamp(min(member.snapshot.created for member in found)),
        ready_to_use=True,
    )
