"""The pmem pool with `mode=lvm`: the LVM back end on a volume group of fsdax namespaces.

Volumes grow, have any size and any free extents, and are still mapped into programs: DAX works through device-mapper's
linear and striped targets. It does not work through mirrors, thin pools and snapshots, and the kernel does not let a
device lose it. So there are no thin pools and snapshots here. Each region gives all its free memory to one namespace
with the label LABEL, a physical volume of the group `tonnage-NAME`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from uuid import uuid4

from tonnage.base.aio.clock import Clock
from tonnage.base.errors import NotFoundError, UnavailableError
from tonnage.host import lvm, ndctl
from tonnage.host.ndctl import Ndctl, PmemNamespace, Region
from tonnage.storage.pools.base.parameters import LIMITS
from tonnage.storage.pools.lvm import backend
from tonnage.storage.pools.lvm.backend import LvmBackend
from tonnage.storage.pools.lvm.thin_pool import LvmLimits
from tonnage.storage.pools.pmem.backend import MAPPED
from tonnage.storage.pools.pmem.device import wipe_ends
from tonnage.storage.pools.pmem.region import select, take

log = logging.getLogger(__name__)
_PLAIN = "memory that programs map cannot have snapshots or lie in a thin pool"
LABEL, UNFINISHED = "tonnage-lvm", "tonnage-lvm-unfinished"


FEATURES = replace(
    backend.FEATURES,
    kind="pmem",
    fstypes=("ext4", "xfs"),
    parameters=backend.FEATURES.parameters - LIMITS - {"cowSize", "thin"},
    modifiable=backend.FEATURES.modifiable - LIMITS,
    rejected={**MAPPED, "cowSize": _PLAIN, "thin": _PLAIN},
    snapshots=False,
    clones=False,
)


def make_backend(pool: str, region: str = "", *, size: int = 0, clock: Clock | None = None) -> LvmBackend:
    """The back end of a pool with `mode=lvm`. region: its name or cookie, "" for all. size: bytes, 0 for all.

    A missing group is made of the regions' free memory when the pool is opened.
    """
    group = f"tonnage-{pool}"
    return LvmBackend(
        pool, group, LvmLimits(size), features=FEATURES, dax=True, clock=clock,
        prepare=lambda: prepare(region, group, f"pmem pool {pool!r}"),
    )  # fmt: skip


def prepare(wanted: str, group: str, where: str) -> None:
    """Enable the namespaces of a group; make them and the group where there are none yet. Blocking. Idempotent.

    A namespace has the label UNFINISHED until it is part of the group, so leftovers of a kill are reused. Raises
    UnavailableError, HostError.
    """
    with ExitStack() as held:
        tools = {}
        for region in select(wanted, where):
            lock = take(region.name)
            held.callback(os.close, lock)
            tools[region.name] = Ndctl(lock)
        _prepare(tools, group, where)


def _prepare(tools: Mapping[str, Ndctl], group: str, where: str) -> None:
    parts = {name: _part(tool, name) for name, tool in tools.items()}
    finished = [tools[part.region].ready(part) for part in parts.values() if part is not None and part.label == LABEL]
    disks = _disks(group)
    if finished and not disks:
        raise UnavailableError(
            f"{where}: {finished[0].name} is part of volume group {group}, which LVM does not find (lvm pvs, lvm vgs)"
        )
    for name, tool in tools.items():
        part, region = parts[name], ndctl.region(name)
        if part is None and region.largest >= 2 * region.align:
            part = _make(tool, region)
        if part is not None and part.label == UNFINISHED:
            _add(tool, part, group, disks)
            disks = _disks(group)
    if not disks:
        raise UnavailableError(
            f"{where}: there is no volume group {group} and no region has free memory for one (ndctl list -RN)"
        )


def _part(tool: Ndctl, region: str) -> PmemNamespace | None:
    """The namespace that a region gave to a group, also if that was interrupted."""
    for namespace in ndctl.namespaces(region):
        if namespace.label == LABEL:
            return namespace
        if namespace.label == UNFINISHED:
            if namespace.device:
                return namespace
            log.info("removing half-made namespace region=%s", region)
            tool.destroy(namespace.name)
    return None


def _make(tool: Ndctl, region: Region) -> PmemNamespace:
    size = region.largest // region.align * region.align
    return tool.create(region.name, mode="fsdax", size=size, uuid=uuid4(), label=UNFINISHED)


def _add(tool: Ndctl, part: PmemNamespace, group: str, disks: Sequence[str]) -> None:
    if part.device not in disks:
        wipe_ends(part.device)  # what was in that memory before must not be taken for a physical volume
        lvm.lvm("vgextend" if disks else "vgcreate", "--yes", "--quiet", group, part.device)
    tool.rename(part, LABEL)


def _disks(group: str) -> list[str]:
    """The disks of a group, none when there is no such group. Raises: HostError."""
    try:
        return [disk.name for disk in lvm.read(group).disks]
    except (NotFoundError, UnavailableError):
        return []
