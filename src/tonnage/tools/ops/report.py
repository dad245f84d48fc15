"""Reports of `tonnage pools` and `tonnage volumes`: pools, volumes, snapshots, and contents being erased."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tonnage.base.aio.clock import rfc3339
from tonnage.base.errors import InvalidError
from tonnage.csi.client.types import CreatedVolume, ListedSnapshot
from tonnage.csi.driver.driver import CONTEXT_CREATED, OWNER_DRIVER, id_of
from tonnage.csi.inline.memory import RecordedVolume
from tonnage.kubernetes.api import names
from tonnage.storage.pools.base.contract import Erasure, PoolVolume, Snapshot, is_inline
from tonnage.storage.pools.base.parameters import ERASE, IoLimits, io_limits_of
from tonnage.storage.pools.base.record import LATEST, TRASHED, UNDELETE, seconds_of
from tonnage.storage.pools.core.status import PoolStatus

NOT_MADE = "not made yet"
GONE = "fake: ended with its driver"


class PoolReport(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A pool; sizes in bytes, None if unknown. state: "ready", NOT_MADE, GONE, or its fault.

    allocated: to volumes and snapshots. inline: reserved for inline volumes in all; inline_allocated: allocated of
    that.
    erasing: bytes that become free when all deleted volumes are erased. abnormal: number of abnormal volumes. lacks:
    faults
    of a readable pool, with remedies.
    """

    pool: str
    state: str = "ready"
    node: str = ""
    kind: str = ""
    where: str = ""
    size: int | None = None
    free: int | None = None
    largest: int | None = None
    allocated: int | None = None
    erasing: int | None = None
    volumes: int | None = None
    snapshots: int = 0
    abnormal: int = 0
    inline: int = 0
    inline_allocated: int = 0
    lacks: Sequence[str] = ()

    @property
    def readable(self) -> bool:
        """Whether the numbers are there, or none is to be expected."""
        return self.free is not None or self.state in (NOT_MADE, GONE)

    def with_status(self, status: PoolStatus) -> PoolReport:
        """The report with the faults that the pool reports."""
        if status.capacity is None:
            return msgspec.structs.replace(self, kind=status.kind, state=status.problem)
        failing = [f"volume {e.name} cannot be erased: {e.problem}" for e in status.erasing if e.problem]
        return msgspec.structs.replace(
            self,
            kind=status.kind,
            size=status.capacity.total,
            free=status.capacity.free,
            largest=status.capacity.largest,
            allocated=status.reserved,
            erasing=status.erasing_bytes,
            volumes=len(status.volumes),
            snapshots=len(status.snapshots),
            abnormal=len(status.abnormal),
            inline=status.inline,
            inline_allocated=status.inline_reserved,
            lacks=(*status.lacks, *(line for line in failing if line not in status.lacks)),
        )


class VolumeReport(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A volume or snapshot.

    id: its CSI id. snapshot_of: of a snapshot, the id of its volume. claim: namespace/name that it was made for. pod:
    of an
    inline volume. condition: its fault. iops, bandwidth: limits for its pods per second, 0 for none. block, fstype,
    erase:
    only of our own drivers. topology: labels of its node. deleted, until: of trash, when it was
    deleted and until when it stays.
    """

    id: str
    size: int
    node: str = ""
    driver: str = ""
    created: str = ""
    snapshot_of: str = ""
    condition: str = ""
    claim: str = ""
    persistent_volume: str = ""
    cluster: str = ""
    ephemeral: bool = False
    reclaim: str = ""
    inline: bool = False
    pod: str = ""
    block: bool | None = None
    fstype: str = ""
    erase: str = ""
    iops: int = 0
    bandwidth: int = 0
    place: str = ""
    topology: Mapping[str, str] = {}
    deleted: str = ""
    until: str = ""

    @property
    def name(self) -> str:
        """Without its pool."""
        return self.id.partition("/")[2]

    @property
    def pool(self) -> str:
        """The pool of the volume."""
        return self.id.partition("/")[0]

    @property
    def what(self) -> str:
        """Whether it is a volume or a snapshot, in a word."""
        return "snapshot" if self.snapshot_of else "volume"

    @property
    def used_by(self) -> str:
        """Whom it was made for, in words."""
        if self.inline:
            return f"pod {self.pod}" if self.pod else "a pod (inline)"
        return f"claim {self.claim}" if self.claim else ""


class ErasureReport(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """A deleted volume whose content is being erased.

    id: the volume's. size: bytes that become free at the end. done, total: bytes, of shred over all passes. problem:
    why it
    has stopped.
    """

    id: str
    size: int
    method: str
    done: int
    total: int
    percent: int
    node: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Contents:
    """Content of pools, in the order of the ids."""

    volumes: Sequence[VolumeReport] = ()
    snapshots: Sequence[VolumeReport] = ()
    erasing: Sequence[ErasureReport] = field(default=())
    trash: Sequence[VolumeReport] = ()


def contents_of(pools: Sequence[PoolStatus], *, node: str = "", driver: str = "") -> Contents:
    """Content of the pools. driver: the name for volumes that do not record their driver."""
    volumes = [_volume(volume, pool, node, driver) for pool in pools for volume in pool.volumes]
    volumes += [report for pool in pools for report in _unlisted(pool, node, driver)]
    snapshots = [_snapshot(snapshot, pool, node, driver) for pool in pools for snapshot in pool.snapshots]
    erasing = [_erasure(erasure, pool.pool, node) for pool in pools for erasure in pool.erasing]
    trash = [_trash(volume, pool, node, driver) for pool in pools for volume in pool.trash]
    return Contents(
        sorted(volumes, key=lambda v: v.id),
        sorted(snapshots, key=lambda s: s.id),
        sorted(erasing, key=lambda e: e.id),
        sorted(trash, key=lambda v: v.deleted),
    )


def _trash(volume: PoolVolume, pool: PoolStatus, node: str, driver: str) -> VolumeReport:
    deleted = seconds_of(volume.owner, TRASHED)
    until = min(deleted + seconds_of(volume.owner, UNDELETE), LATEST)
    report = _volume(volume, pool, node, driver)
    return msgspec.structs.replace(report, deleted=rfc3339(deleted), until=rfc3339(until))


def _volume(volume: PoolVolume, pool: PoolStatus, node: str, driver: str) -> VolumeReport:
    driver = volume.owner.get(OWNER_DRIVER, driver)
    vid = id_of(pool.pool, volume.name)
    report = _recorded(vid, volume.size, node, driver, volume.owner, rfc3339(volume.created))
    limits = _limits(volume)
    return msgspec.structs.replace(
        report,
        block=volume.block,
        fstype=volume.fstype,
        inline=is_inline(volume.owner),
        condition=pool.abnormal.get(volume.name, ""),
        erase=volume.effective.get(ERASE, ""),
        iops=limits.iops,
        bandwidth=limits.bandwidth,
        place=volume.place,
    )


def _unlisted(pool: PoolStatus, node: str, driver: str) -> list[VolumeReport]:
    """Volumes with damaged records, of which only the fault is known."""
    known = {volume.name for volume in pool.volumes}
    return [
        VolumeReport(id_of(pool.pool, name), 0, node=node, driver=driver, condition=fault)
        for name, fault in sorted(pool.abnormal.items())
        if name not in known
    ]


def _limits(volume: PoolVolume) -> IoLimits:
    try:
        return io_limits_of(volume.effective)
    except InvalidError:  # of a record that was changed by hand: the driver reports it where it matters
        return IoLimits()


def _snapshot(snapshot: Snapshot, pool: PoolStatus, node: str, driver: str) -> VolumeReport:
    return VolumeReport(
        id_of(pool.pool, snapshot.name),
        snapshot.size,
        node=node,
        driver=snapshot.owner.get(OWNER_DRIVER, driver),
        created=rfc3339(snapshot.created),
        snapshot_of=id_of(pool.pool, snapshot.volume),
        cluster=snapshot.owner.get(names.PARAM_CLUSTER, ""),
        block=snapshot.block,
        fstype=snapshot.fstype,
    )


def _erasure(erasure: Erasure, pool: str, node: str) -> ErasureReport:
    return ErasureReport(
        id_of(pool, erasure.name),
        erasure.reserved,
        erasure.method,
        erasure.done,
        erasure.total,
        erasure.percent,
        node=node,
        problem=erasure.problem,
    )


def listed(made: CreatedVolume, driver: str, node: str) -> VolumeReport:
    """A volume as CSI lists it."""
    report = _recorded(made.id, made.size, node, driver, made.context, made.context.get(CONTEXT_CREATED, ""))
    return msgspec.structs.replace(report, topology=dict(made.topologies[0]) if made.topologies else {})


def listed_snapshot(made: ListedSnapshot, driver: str, node: str) -> VolumeReport:
    """A snapshot as CSI lists it."""
    created = rfc3339(made.created) if made.created else ""
    return VolumeReport(
        made.id, made.size, node=node, driver=driver, created=created, snapshot_of=made.volume_id or "unknown"
    )


def _recorded(vid: str, size: int, node: str, driver: str, record: Mapping[str, str], created: str) -> VolumeReport:
    return VolumeReport(
        vid,
        size,
        node=node,
        driver=driver,
        created=created,
        claim=_pair(record, names.CSI_PVC_NAMESPACE, names.CSI_PVC_NAME),
        persistent_volume=record.get(names.CSI_PV_NAME, ""),
        cluster=record.get(names.PARAM_CLUSTER, ""),
        ephemeral=record.get(names.PARAM_EPHEMERAL) == "true",
        reclaim=record.get(names.PARAM_RECLAIM, ""),
        pod=_pair(record, names.CSI_POD_NAMESPACE, names.CSI_POD_NAME),
    )


def _pair(record: Mapping[str, str], namespace: str, name: str) -> str:
    return f"{record.get(namespace, '')}/{record[name]}" if name in record else ""


def of_inline_driver(volume: RecordedVolume, node: str) -> VolumeReport:
    """A volume of an inline driver: its id is DRIVER/HANDLE, its size that of its files or of its writable layer."""
    record, tree = volume.record, volume.record.tree()
    writable = tree.writable if tree is not None else None
    return VolumeReport(
        f"{volume.driver}/{record.handle}",
        writable.size if writable is not None else volume.size,
        node=node,
        driver=volume.driver,
        condition=record.error,
        inline=True,
        pod=f"{record.namespace}/{record.pod}",
    )
