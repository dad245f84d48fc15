"""Validation of a VolumeRequest, the same for all kinds of pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tonnage.api.quantity import from_bytes
from tonnage.errors import AlreadyExistsError, InvalidError, OutOfRangeError, UnsupportedError
from tonnage.pools.base.contract import FeaturedPool, PoolVolume, Snapshot, VolumeRequest, check_name
from tonnage.pools.base.parameters import MKFS_OPTIONS, SOURCE, check_refused
from tonnage.pools.base.record import VolumeRecord
from tonnage.pools.base.reservation import LARGEST
from tonnage.pools.fs.formats import form_of


@dataclass(frozen=True)
class RequestedVolume:
    """A checked request: the size to create and the file system, "" for raw block."""

    size: int
    fstype: str


def fstype_of(pool: FeaturedPool, fstype: str, *, block: bool) -> str:
    """The requested file system, "" for raw block, or for any where that is a choice. Raises UnsupportedError."""
    if block:
        if not pool.features.blocks:
            raise UnsupportedError(
                f"pool {pool.name!r} ({pool.features.kind}) has no raw block volumes: ask for a file system"
            )
        return ""
    if not fstype and pool.features.whole_disks:
        return ""
    wanted = fstype or pool.features.fstypes[0]
    if wanted not in pool.features.fstypes:
        raise UnsupportedError(
            f"pool {pool.name!r} ({pool.features.kind}) has no file system {wanted[:40]!r}: it has {_list(pool)}"
        )
    return wanted


def check(pool: FeaturedPool, request: VolumeRequest, *, least: int = 1, step: int = 1) -> RequestedVolume:
    """Check a request and round its size up to `least` and to a multiple of `step`, both in bytes.

    Raises InvalidError, UnsupportedError, and OutOfRangeError when the rounded size passes the request's limit.
    """
    check_name(request.name)
    if not 1 <= request.size <= LARGEST or not 0 <= request.limit <= LARGEST:
        raise InvalidError(
            f"volume {request.name}: size {request.size}, limit {request.limit}: want 1 to {LARGEST} bytes"
        )
    fstype = fstype_of(pool, request.fstype, block=request.block)
    if request.source and not pool.features.clones:
        raise UnsupportedError(
            f"pool {pool.name!r} ({pool.features.kind}) does not offer volumes made from a {request.source}"
        )
    check_refused(pool, request.parameters)
    if unknown := sorted(set(request.parameters) - pool.features.parameters):
        raise InvalidError(f"pool {pool.name!r} ({pool.features.kind}) does not know the parameter {unknown[0][:60]!r}")
    if request.limit and request.size > request.limit:
        raise OutOfRangeError(f"volume {request.name}: size {request.size} is more than its limit {request.limit}")
    size = -(-max(request.size, least) // step) * step
    if request.limit and size > request.limit:
        raise OutOfRangeError(
            f"volume {request.name}: a {fstype or 'block'} volume here has at least {from_bytes(size)},"
            f" which is more than its limit {from_bytes(request.limit)}"
        )
    return RequestedVolume(size, fstype)


def check_content(
    parameters: Mapping[str, str], fstype: str, origin: VolumeRecord | None = None, *, block: bool = False
) -> None:
    """Check the file system and content that a class asks for. origin: what to copy.

    Raises InvalidError for what a raw block volume cannot have, or a copy, whose file system exists already.
    """
    options = parameters.get(MKFS_OPTIONS, "")
    if block:
        named = sorted({MKFS_OPTIONS, SOURCE} & {key for key, value in parameters.items() if value})
        if named:
            raise InvalidError(f"parameter {named[0]}: a raw block volume has no file system: use another class for it")
    if not options or not fstype:
        return
    wanted = form_of(fstype, options).options
    if origin is not None and wanted != form_of(fstype, origin.mkfs).options:
        raise InvalidError(
            f"parameter mkfsOptions: what the volume is filled from was made with {origin.mkfs or 'none'!r} and is"
            " copied as it is: use a class with the same or none"
        )


def check_existing(volume: PoolVolume, request: VolumeRequest, want: RequestedVolume) -> None:
    """Check that an existing volume fits the request. Raises AlreadyExistsError with the difference.

    A volume larger than requested fits up to the limit (CSI, CreateVolume). The owner is not compared.
    """
    differs = []
    if volume.size < request.size or (request.limit and volume.size > request.limit):
        differs.append(f"its size is {volume.size}, requested {request.size} to {request.limit or 'any'} bytes")
    if volume.block != request.block:
        differs.append("it is raw block" if volume.block else "it is a file system")
    elif want.fstype and volume.fstype != want.fstype:
        differs.append(f"its file system is {volume.fstype}, requested {want.fstype}")
    if dict(volume.parameters) != dict(request.parameters):
        differs.append(f"its parameters are {dict(volume.parameters)}, requested {dict(request.parameters)}")
    if volume.source != request.source:
        differs.append(f"it was made from {volume.source or 'nothing'}, requested {request.source or 'an empty one'}")
    if differs:
        raise AlreadyExistsError(f"volume {request.name} exists and {'; '.join(differs)}")


def filled(pool: FeaturedPool, request: VolumeRequest, origin: PoolVolume | Snapshot) -> VolumeRequest:
    """The request for a copy of origin, completed by origin's properties.

    Raises UnsupportedError, InvalidError when it is of another kind, OutOfRangeError when the size is below origin's.
    """
    if not pool.features.clones:
        raise UnsupportedError(
            f"pool {pool.name!r} ({pool.features.kind}) does not offer volumes made from a {request.source}"
        )
    if request.block != origin.block:
        is_ = "raw block" if origin.block else "a file system"
        raise InvalidError(f"volume {request.name}: its source, {request.source}, is {is_}: ask for the same")
    if request.fstype not in ("", origin.fstype):
        raise InvalidError(
            f"volume {request.name}: its source, {request.source}, has the file system {origin.fstype}, asked is"
            f" {request.fstype[:40]}: content is copied as it is, ask for {origin.fstype}"
        )
    if request.size < origin.size:
        raise OutOfRangeError(
            f"volume {request.name}: size {request.size} is less than that of its source, {request.source}:"
            f" ask for {origin.size} bytes or more"
        )
    return replace(request, fstype=origin.fstype)


def again(volume: PoolVolume, request: VolumeRequest) -> VolumeRequest:
    """The original request of an existing volume: fstype "" with a source meant the source's."""
    return replace(request, fstype=volume.fstype) if request.source and not request.fstype else request


def check_snapshot(snapshot: Snapshot, volume: str) -> None:
    """Raises AlreadyExistsError unless an existing snapshot is of that volume."""
    if snapshot.volume != volume:
        raise AlreadyExistsError(
            f"snapshot {snapshot.name} exists and is of volume {snapshot.volume}, requested {volume}"
        )


def larger(pool: FeaturedPool, volume: PoolVolume, size: int, limit: int, *, step: int = 1) -> int:
    """The size of a volume after expand(), its present size when that is large enough.

    Raises InvalidError, UnsupportedError, and OutOfRangeError when it is or would be larger than limit: no volume
    shrinks.
    """
    if not pool.features.expansion:
        raise UnsupportedError(f"pool {pool.name!r} ({pool.features.kind}) does not offer larger volumes")
    if not 0 <= size <= LARGEST or not 0 <= limit <= LARGEST:
        raise InvalidError(f"volume {volume.name}: size {size}, limit {limit}: want 0 to {LARGEST} bytes")
    if limit and volume.size > limit:
        raise OutOfRangeError(
            f"volume {volume.name} has {volume.size} bytes, requested at most {limit}: a volume is never made smaller,"
            " its content could be cut off; make a new one and copy"
        )
    wanted = max(volume.size, -(-size // step) * step)
    if limit and wanted > limit:
        raise OutOfRangeError(f"volume {volume.name}: {wanted} bytes (whole blocks) are more than the limit {limit}")
    return wanted


def _list(pool: FeaturedPool) -> str:
    return ", ".join(pool.features.fstypes)


def source_of(request: VolumeRequest) -> tuple[str, ...]:
    """The name to lock for the source of a copy; a snapshot's has a character that no volume name has."""
    if request.source is None:
        return ()
    return (f"{request.source.snapshot}@",) if request.source.snapshot else (request.source.volume,)
